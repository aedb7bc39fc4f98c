"""A hidden folder to make things in, beside where they will lie: they show up there whole, in one step, or not at all.

Readers of the common delta format take a folder without an index for a whole checkpoint, so that writing the index last
is not enough.
"""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from filelock import FileLock, Timeout

from pulse_registry.checkpoint.files import FileOperations
from pulse_registry.errors import AlreadyExists, Conflict, InvalidArgument, StoreUnavailable

_LOCK = ".lock"


class Workshop:
    """A folder that one process works in at a time; what another one left there is removed. A context manager.

    Attributes:
        path: of the folder.
        files: what writes.
    """

    def __init__(self, path: Path, files: FileOperations) -> None:
        self.path = path
        self.files = files
        self._lock = FileLock(path / _LOCK, timeout=0)

    def __enter__(self) -> Self:
        """Make and empty the folder.

        Raises:
            Conflict: another process is at work in it.
            OSError: it can't be written.
        """
        self.files.make_folder(self.path)
        try:
            self._lock.acquire()
        except Timeout as error:
            raise Conflict(f"another process is at work in {self.path}; wait for its end, then try again") from error
        self._empty()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove the folder and all that is in it; what can't be removed now goes the next time."""
        try:
            self._empty()
            (self.path / _LOCK).unlink(missing_ok=True)
        except OSError:
            self._lock.release()
            return
        self._lock.release()
        try:
            self.path.rmdir()
        except OSError:
            return  # another process has come in since

    def folder(self, name: str) -> Path:
        """Make an empty folder in here."""
        folder = self.path / name
        self.files.make_folder(folder)
        return folder

    def publish(self, made: Path, place: Path) -> None:
        """Give a folder of here its place, in one step; its files are durable.

        Raises:
            AlreadyExists: something is there by now.
        """
        self.files.sync_folder(made)
        try:
            self.files.replace(made, place)
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise taken(place) from error
            raise
        self.files.sync_folder(place.parent)

    def _empty(self) -> None:
        for entry in self.path.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            elif entry.name != _LOCK:
                self.files.remove(entry)


def taken(place: Path) -> AlreadyExists:
    """Return the error that something lies where a folder is to go."""
    return AlreadyExists(f"{place} is there already, and is not empty; choose another folder, or remove it")


def check_free(place: Path) -> None:
    """Raise AlreadyExists where something lies that is no empty folder."""
    if place.is_symlink() or (place.exists() and (not place.is_dir() or any(place.iterdir()))):
        raise taken(place)


@contextmanager
def typed(folder: Path) -> Iterator[None]:
    """Turn what goes wrong with files into errors of the tree."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StoreUnavailable(f"{folder}: the disk is full: free space, then try again") from error
        raise InvalidArgument(f"{error.filename or folder} can't be used: {error.strerror or error}") from error
