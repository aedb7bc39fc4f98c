"""A folder that others reload from: it holds one whole version at any time, and goes on by patches."""

from __future__ import annotations

from pathlib import Path

from pulse_registry.checkpoint import pull_checkpoint
from pulse_registry.follow.command import CommandEngine
from pulse_registry.follow.engine import Unpaused
from pulse_registry.format.keyframe import INDEX_NAME
from pulse_registry.registry import Registry


class FolderEngine(Unpaused):
    """A checkpoint folder, and a command that lets its readers know, if there is one."""

    def __init__(self, registry: Registry, folder: Path, command: CommandEngine | None = None) -> None:
        """Prepare; no I/O yet.

        Args:
            registry: the run, which is pulled here.
            folder: made if need be.
            command: called once the folder holds a version; the change counts only if it succeeds.
        """
        self.name = f"dir {folder}"
        self._registry, self._folder, self._command = registry, folder, command
        self._held: tuple[int, object] | None = None  # the version, and what its index file is known by

    def version(self) -> int | None:
        """Return the version that was put there, if nobody has changed the index since."""
        if self._held is None or self._held[1] != self._index():
            return None
        return self._held[0]

    def stage(self, version: int) -> None:
        """Write the version beside the old one, check it, and put it in its place in one step."""
        pull_checkpoint(self._registry, version, into=self._folder)
        self._held = None  # until its readers know

    def apply(self, version: int) -> None:
        """Call the command."""
        if self._command is not None:
            self._command.apply(version)
        self._held = version, self._index()

    def _index(self) -> object:
        try:
            told = (self._folder / INDEX_NAME).stat()
        except OSError:
            return None
        return told.st_ino, told.st_mtime_ns, told.st_size
