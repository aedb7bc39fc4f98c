"""Temporary folder of an export, hidden beside its destination: results appear there whole, in one step, or not at all.

Readers of the common delta format take a folder without an index for a whole checkpoint, so that writing the index last
is not enough.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from pulse_registry.checkpoint.files import FileOperations
from pulse_registry.errors import AlreadyExists, Conflict, InvalidArgument, StoreUnavailable
from pulse_registry.process.private_files import NotOurs, hold_lock, own_folder, release_lock

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
        self._open = ExitStack()

    def __enter__(self) -> Self:
        """Make and empty the folder, which is nobody else's.

        Raises:
            Conflict: another process is at work in it.
            OSError: it can't be written; NotOurs, if it is a link or others may write into it.
        """
        self.files.make_folder(self.path.parent)
        with suppress(FileExistsError):
            self.path.mkdir(mode=0o700)
        with ExitStack() as stack:
            try:
                folder = stack.enter_context(own_folder(self.path, make=False))
                lock = hold_lock(_LOCK, 0.0, folder)
            except FileNotFoundError:  # who was at work there has just removed it
                lock = None
            if lock is None:
                raise Conflict(f"another process is at work in {self.path}; wait for its end, then try again")
            stack.callback(self._leave, folder, lock)
            _empty(folder)
            self._open = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove the folder and all that is in it; what can't be removed now goes the next time."""
        self._open.close()

    def _leave(self, folder: int, lock: int) -> None:
        try:
            with suppress(OSError):
                _empty(folder)
                os.unlink(_LOCK, dir_fd=folder)
        finally:
            release_lock(lock)
        with suppress(OSError):
            self.path.rmdir()  # unless another process has come in since

    def folder(self, name: str) -> Path:
        """Make an empty folder in here."""
        folder = self.path / name
        self.files.make_folder(folder)
        return folder

    def publish(self, made: Path, place: Path) -> None:
        """Rename a folder of here to its destination, in one step; its files are durable.

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


def _empty(folder: int) -> None:
    """Remove all that is in an open folder but its lock; no link in it is followed."""
    with os.scandir(folder) as entries:
        found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, is_folder in found:
        if is_folder:
            shutil.rmtree(name, dir_fd=folder)
        elif name != _LOCK:
            os.unlink(name, dir_fd=folder)


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
    except NotOurs as error:
        raise InvalidArgument(f"{error.filename}: {error.strerror}; remove it, or choose another folder") from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StoreUnavailable(f"{folder}: the disk is full: free space, then try again") from error
        raise InvalidArgument(f"{error.filename or folder} can't be used: {error.strerror or error}") from error
