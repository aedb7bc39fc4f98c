"""A program that the demo starts: its log, the lines that it tells, its end; none outlives the demo."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from pulse_registry.process import environment as variables
from pulse_registry.process.private_files import new_file

_END_S: Final = 10.0
# The kernel ends it when the thread that started it ends, however that ends.
_LAUNCHER: Final = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() != int(sys.argv[1]):
    sys.exit("the demo has ended")
os.execv(sys.argv[2], sys.argv[2:])
"""


class Program:
    """A process in a session of its own. Start it from a thread that lives as long as it is to live."""

    def __init__(
        self,
        name: str,
        command: Sequence[object],
        logs: Path,
        environment: Mapping[str, str],
        tell: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        """Start it.

        Args:
            name: of its log.
            command: the program's path, and its arguments.
            logs: folder of the log, which takes what the program prints.
            environment: variables besides this process's own.
            tell: is called, from a thread, with each JSON document that the program prints as a line.
        """
        self.name = name
        self.log = logs / f"{name}.log"
        launched = [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()), *map(str, command)]
        os.close(new_file(self.log, mode=0o644))
        with self.log.open("ab") as log:  # the program and the thread below add to it
            self._process = subprocess.Popen(
                launched,
                env=variables.without(()) | dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=log if tell is None else subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        if tell is not None:
            threading.Thread(target=self._read, args=(tell,), name=f"lines of {name}", daemon=True).start()

    @property
    def status(self) -> int | None:
        """Return the exit status; None: it runs."""
        return self._process.poll()

    def last_lines(self) -> str:
        """Return the end of the log."""
        return self.log.read_text(errors="replace")[-3000:]

    def pause(self) -> None:
        """Stop it where it stands, and what it has started, as a machine that sleeps."""
        os.killpg(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on after a pause."""
        os.killpg(self._process.pid, signal.SIGCONT)

    def kill(self) -> None:
        """End it, and what it has started, without a word."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        """End it and what it has started. Idempotent."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self._process.pid, number)
            except ProcessLookupError:
                break
            try:
                self._process.wait(_END_S)
            except subprocess.TimeoutExpired:
                continue

    def _read(self, tell: Callable[[dict[str, Any]], None]) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines, self.log.open("ab") as log:
            for line in lines:
                log.write(line)
                log.flush()
                try:
                    document = json.loads(line)
                except ValueError:
                    continue  # a library's own words
                if isinstance(document, dict):
                    tell(document)


class Start(Protocol):
    """Starts a program."""

    def __call__(
        self,
        name: str,
        command: Sequence[object],
        environment: Mapping[str, str],
        tell: Callable[[dict[str, Any]], None] | None = None,
    ) -> Program:
        """Start it; see ``Program``."""
