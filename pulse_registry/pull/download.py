"""Resumable download of a keyframe: the spool files, or memory, of its shards while they are fetched and read.

In a folder that the caller named, they have names made of their hashes, so that a pull after one that died finds what
was fetched; what is not ours under such a name is left alone. Elsewhere they are unnamed files, or memory of this
process.
"""

from __future__ import annotations

import mmap
import os
import re
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Protocol

from pulse_registry.errors import InvalidArgument, StoreUnavailable
from pulse_registry.process import environment, huge_pages
from pulse_registry.process.fork import OwnerProcess
from pulse_registry.process.open_files import reserve, write_all
from pulse_registry.process.private_files import NotOurs, open_file, take_lock
from pulse_registry.process.temporary_folder import temporary_folder
from pulse_schemas import ObjectRef

PART = re.compile(r"\.pulse-[0-9a-f]{64}\.part")
"""Names of the spool's files."""
MEMORY: Final = ":memory:"
"""In place of a folder's name: keyframes on their way are in memory alone."""
STALE_SECONDS = 7 * 86400.0
"""A file that nobody wrote to for so long belongs to a pull that will not be tried again."""


class ShardBytes(Protocol):
    """A shard's bytes where they lie now."""

    def map(self) -> mmap.mmap:
        """Return them as memory, which stays readable after ``close``."""
        ...

    def close(self) -> None:
        """Let go of them: they are not needed any more."""
        ...

    def keep(self) -> None:
        """Let go of them: the pull that they were for has failed, and a later one may go on with them."""
        ...


class Landing(ShardBytes, Protocol):
    """A place for a shard of known size, that takes its bytes in any order, from any thread.

    Attributes:
        resumed: whether some of them may be there already.
    """

    resumed: bool

    def read(self, start: int, stop: int) -> bytes:
        """Return what lies there."""
        ...

    def room(self, start: int, stop: int) -> memoryview | None:
        """Return the very memory of those bytes, to be filled in place; None if they are to be given to ``write``."""
        ...

    def write(self, start: int, data: memoryview) -> None:
        """Store bytes.

        Raises:
            StoreUnavailable: the disk did not take them.
        """
        ...


class MemoryShard:
    """A shard in memory of its own, which lives as long as an array of it does."""

    resumed = False

    def __init__(self, ref: ObjectRef) -> None:
        """Reserve it; pages are taken as they are written.

        Raises:
            StoreUnavailable: there is not so much memory.
        """
        try:
            # Private: a process that is forked off must not write into this one's weights.
            self._mapped = mmap.mmap(-1, ref.size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as error:
            raise StoreUnavailable(f"{ref.key}: no memory for its {ref.size} bytes: {error.strerror}") from error
        huge_pages.ask(self._mapped)

    def read(self, start: int, stop: int) -> bytes:
        """Return what lies there."""
        return self._mapped[start:stop]

    def room(self, start: int, stop: int) -> memoryview:
        """Return the memory of those bytes."""
        return memoryview(self._mapped)[start:stop]

    def write(self, start: int, data: memoryview) -> None:
        """Do nothing: ``data`` is the room."""

    def map(self) -> mmap.mmap:
        """Return it."""
        return self._mapped

    def close(self) -> None:
        """Do nothing: the memory goes with the last array of it."""

    keep = close


class SpoolFile:
    """A shard in a file, named if it has a folder of the caller's; what was written stays if the process dies."""

    def __init__(self, ref: ObjectRef, folder: Path | None) -> None:
        """Make the file with all its blocks, or take up the one that an earlier pull left.

        Raises:
            StoreUnavailable: the disk is too small, or can't be written.
        """
        self._ref, self._where = ref, folder or temporary_folder()
        self._path: Path | None = None
        self._descriptor = -1
        self._owner = OwnerProcess()
        self.resumed = self._written = False
        with self._disk():
            if folder is not None:
                self._open_named(folder / f".pulse-{ref.blake3}.part")
            if self._descriptor < 0:
                with tempfile.TemporaryFile(dir=self._where) as file:
                    self._descriptor = os.dup(file.fileno())
        try:
            with self._disk():
                reserve(self._descriptor, ref.size)
        except BaseException:
            self.close()
            raise

    def read(self, start: int, stop: int) -> bytes:
        """Return what lies there."""
        with self._disk():
            return os.pread(self._descriptor, stop - start, start)

    def room(self, start: int, stop: int) -> None:
        """Return nothing: a file's bytes are cheaper to write than to map."""

    def write(self, start: int, data: memoryview) -> None:
        """Store bytes."""
        self._written = True
        with self._disk():
            write_all(self._descriptor, data, start)

    def map(self) -> mmap.mmap:
        """Return its bytes as read-only memory."""
        return mmap.mmap(self._descriptor, self._ref.size, access=mmap.ACCESS_READ)

    def close(self) -> None:
        """Remove the file. Idempotent; a process that was forked off leaves its parent's file alone."""
        if self._path is not None and self._owner.is_current:
            with suppress(OSError):  # it is in nobody's way, and the next pull of the shard removes it
                self._path.unlink(missing_ok=True)
        self._close()

    def keep(self) -> None:
        """Close the file, which keeps its name, if it has one and holds anything. Idempotent."""
        if not (self.resumed or self._written):
            self.close()
        self._close()

    def _close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor, self._path = -1, None

    def _open_named(self, path: Path) -> None:
        """Open the file of this name and lock it, unless it is not ours or another pull is at work on it."""
        removed = True
        while removed:
            try:
                descriptor = open_file(path, os.O_RDWR | os.O_CREAT)
            except (NotOurs, PermissionError):
                return  # what another user has put there is not gone on with: it could change after it was checked
            try:
                taken = take_lock(descriptor)
            except OSError:
                taken = False  # a file system without locks: an unnamed file does as well
            found = os.fstat(descriptor)
            removed = taken and not found.st_nlink  # by whoever held it until just now
            if taken and not removed:
                self._descriptor, self._path, self.resumed = descriptor, path, found.st_size > 0
            else:
                os.close(descriptor)

    @contextmanager
    def _disk(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StoreUnavailable(
                f"{self._ref.key}: it can't be kept in {self._where} on its way: {error.strerror}; "
                f"it takes {self._ref.size} bytes there for a while"
            ) from error


def spool_of(folder: str | os.PathLike[str] | None) -> str | Path | None:
    """Return the folder for files on their way, or MEMORY; None takes it from PULSE_SPOOL, or there is none.

    Raises:
        InvalidArgument: it is no folder.
    """
    given = folder if folder is not None else environment.SPOOL.read()
    if given is None or os.fspath(given) == MEMORY:
        return None if given is None else MEMORY
    path = Path(given).expanduser().absolute()
    if not path.is_dir():
        raise InvalidArgument(f"spool is {path}, which is no folder: make it, name another one, or {MEMORY}")
    return path


def remove_stale(folder: Path, now: float | None = None) -> None:
    """Remove files that pulls of this user left in the folder which died long ago; failures are no matter."""
    before = (time.time() if now is None else now) - STALE_SECONDS
    with suppress(OSError):
        for path in folder.iterdir():
            if PART.fullmatch(path.name):
                found = os.lstat(path)
                if found.st_uid == os.geteuid() and found.st_mtime < before:
                    path.unlink(missing_ok=True)
