"""A command that brings some engine to a version: a non-zero exit is a failure."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Sequence
from typing import Final

from pulse_registry.errors import InvalidArgument
from pulse_registry.follow.engine import EngineFailed, Unpaused
from pulse_registry.process import environment

_SHOWN_CHARACTERS: Final = 1_000
_SECRETS: Final = (environment.TOKEN, environment.ENGINE_TOKEN, environment.SIGNING_KEY)


class CommandEngine(Unpaused):
    """Whatever a command brings to a version.

    In its arguments ``{version}`` stands for the number; its environment has PULSE_VERSION, too, and no token of ours.
    """

    def __init__(self, command: str, *, folder: str | None = None, timeout_s: float = 3600.0) -> None:
        """Prepare; nothing is called yet.

        Args:
            command: its words as a shell splits them; no shell is called.
            folder: told to it as PULSE_FOLDER.
            timeout_s: it is killed after so many seconds.

        Raises:
            InvalidArgument: it is no command.
        """
        try:
            self._words: Sequence[str] = shlex.split(command)
        except ValueError as error:
            raise InvalidArgument(f"--exec {command!r}: {error}") from None
        if not self._words:
            raise InvalidArgument("--exec names no command")
        self.name = f"exec {self._words[0]}"
        self._folder, self._timeout_s = folder, timeout_s
        self._held: int | None = None

    def version(self) -> int | None:
        """Return the version that it was called for last, with success, by this process."""
        return self._held

    def stage(self, version: int) -> None:
        """Do nothing: the command does it all."""

    def apply(self, version: int) -> None:
        """Call the command.

        Raises:
            EngineFailed: it could not be started, took too long, or ended with another code than 0.
        """
        self._held = None
        words = [word.replace("{version}", str(version)) for word in self._words]
        around = (
            environment.without(_SECRETS)
            | {"PULSE_VERSION": str(version)}
            | ({} if self._folder is None else {"PULSE_FOLDER": self._folder})
        )
        try:
            ended = subprocess.run(
                words,
                env=around,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                timeout=self._timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise EngineFailed(f"{self.name}: it took more than {self._timeout_s:g} s, and was killed") from None
        except OSError as error:
            raise EngineFailed(f"{self.name}: it can't be started: {error.strerror}") from None
        if ended.returncode:
            said = ended.stderr.decode(errors="replace").strip()[-_SHOWN_CHARACTERS:]
            raise EngineFailed(f"{self.name}: it ended with {ended.returncode}{f': {said}' if said else ''}")
        self._held = version
