"""The cache's folder: objects under the BLAKE3 of their bytes, and a bound on what all of them take together.

What lies there is believed no more than what a store sends: readers check it. So nothing here needs to survive a power
loss, and anything may be deleted at any time.
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pulse_registry.errors import InvalidArgument
from pulse_registry.format.patch_parts import Stored
from pulse_registry.process.private_files import NotOurs, make_folder, open_file, take_lock

NAME = re.compile(r"[0-9a-f]{64}(?P<part>\.part)?")
"""Names of the folder's objects, whole and on their way."""
LEDGER = ".pulse-cache"
"""Holds how many bytes the objects take; whoever makes one, or removes some for it, holds the lock on it."""
_LEDGER_SECONDS = 10.0
_DIGITS = 20


class CacheFolder:
    """A folder that processes of one user share. Every method raises OSError where the disk does not do it.

    Attributes:
        path: of the folder, which is made when it is needed.
    """

    def __init__(self, path: Path, limit: int | None = None, *, clock: Callable[[], float] = time.time) -> None:
        """Name a folder; no I/O yet.

        Args:
            path: of the folder.
            limit: on the bytes of its objects; None: half of the disk.
            clock: the time of day; the objects that were used least recently are the first to go.

        Raises:
            InvalidArgument: the limit is not positive.
        """
        if limit is not None and limit < 1:
            raise InvalidArgument(f"cache_bytes is {limit}; it is a number of bytes, from 1 on")
        self.path = path
        self._limit = limit
        self._clock = clock

    def file(self, ref: Stored) -> Path:
        """Return where an object lies, or would lie, once it is whole."""
        return self.path / ref.blake3

    def open(self, ref: Stored) -> int | None:
        """Return a new descriptor of a whole object, which counts as used now; None if it is not there.

        What can't be the object, by its size or because it is not ours, is removed.
        """
        try:
            descriptor = open_file(self.file(ref), os.O_RDONLY)
        except FileNotFoundError:
            return None
        except NotOurs:
            self.file(ref).unlink(missing_ok=True)
            return None
        if os.fstat(descriptor).st_size != ref.size:
            os.close(descriptor)
            self.file(ref).unlink(missing_ok=True)
            return None
        self.touch(descriptor)
        return descriptor

    def holds(self, ref: Stored) -> bool:
        """Tell whether an object is there, whole; False too where the disk does not say."""
        try:
            descriptor = self.open(ref)
        except OSError:
            return False
        if descriptor is not None:
            os.close(descriptor)
        return descriptor is not None

    def touch(self, descriptor: int) -> None:
        """Let an object count as used now."""
        with suppress(OSError):  # a file system that is only read serves as well
            now = int(self._clock() * 1e9)
            os.utime(descriptor, ns=(now, now))

    def open_part(self, ref: Stored) -> int:
        """Return a new descriptor of an object on its way, which is made, empty, if it is not there."""
        try:
            return open_file(self.part(ref), os.O_RDWR | os.O_CREAT)
        except FileNotFoundError:
            make_folder(self.path)
            return open_file(self.part(ref), os.O_RDWR | os.O_CREAT)

    def part(self, ref: Stored) -> Path:
        """Return where an object on its way lies."""
        return self.path / f"{ref.blake3}.part"

    def discard(self, ref: Stored) -> bool:
        """Remove a whole object; tell whether it was there. What is open or mapped stays readable."""
        try:
            self.file(ref).unlink()
        except FileNotFoundError:
            return False
        return True

    def allot(self, descriptor: int, nbytes: int) -> None:
        """Reserve room for an open part; evict the least recently used objects if that is over the limit."""
        limit = self.limit()
        with self._ledger() as ledger:
            more = nbytes - os.fstat(descriptor).st_size
            total = _total(ledger)
            if nbytes <= limit and (total is None or total + more > limit):
                # Somewhat more than is needed, so that the folder is not looked through for every object.
                total = self._evict(min(limit - more, limit * 7 // 8))
            if total is None or total + more > limit:
                raise OSError(errno.ENOSPC, f"an object does not fit its limit of {limit} bytes, beside those in use")
            # Counted before it is there: whoever dies in between leaves too high a count, which the next look mends.
            _count(ledger, total + more)
            os.ftruncate(descriptor, nbytes)

    def name(self, ref: Stored, descriptor: int) -> None:
        """Rename a whole part to its object's name, as used now; not during an eviction, which would overlook it."""
        self.touch(descriptor)
        with self._ledger():
            os.rename(self.part(ref), self.file(ref))

    def make_room(self, nbytes: int) -> None:
        """Evict so many bytes of the least recently used objects: the disk is full before the limit is reached."""
        with self._ledger() as ledger:
            total = _total(ledger)
            _count(ledger, self._evict((self.limit() if total is None else total) - nbytes))

    def limit(self) -> int:
        """Return the bound on all objects together, in bytes."""
        if self._limit is None:
            make_folder(self.path)
            disk = os.statvfs(self.path)
            self._limit = max(1, disk.f_frsize * disk.f_blocks // 2)
        return self._limit

    @contextmanager
    def _ledger(self) -> Iterator[int]:
        """Hold the lock on the folder; the descriptor is of the file that says what the objects take."""
        descriptor = open_file(self.path / LEDGER, os.O_RDWR | os.O_CREAT)
        try:
            if not take_lock(descriptor, _LEDGER_SECONDS):
                raise OSError(errno.EBUSY, "another process has locked it for long")
            yield descriptor
        finally:
            os.close(descriptor)

    def _evict(self, most: int) -> int:
        """Remove the least recently used objects until they take ``most`` bytes; return what they take then.

        What other users have put there is neither counted nor touched.
        """
        found: list[tuple[int, str, int]] = []
        with os.scandir(self.path) as entries:
            for entry in entries:
                if NAME.fullmatch(entry.name):
                    with suppress(FileNotFoundError):
                        about = entry.stat(follow_symlinks=False)
                        if about.st_uid == os.geteuid():
                            found.append((about.st_mtime_ns, entry.name, about.st_size))
        total = sum(size for *_, size in found)
        for _, name, size in sorted(found):
            if total <= most:
                break
            if self._remove(name):
                total -= size
        return total

    def _remove(self, name: str) -> bool:
        """Remove an object by its file's name, unless it is on its way; tell whether it is gone."""
        path = self.path / name
        if not name.endswith(".part"):
            path.unlink(missing_ok=True)
            return True
        try:
            descriptor = open_file(path, os.O_RDWR)
        except FileNotFoundError:
            return True
        except OSError:
            return False  # no file of ours
        try:
            if not take_lock(descriptor):
                return False
            path.unlink(missing_ok=True)
            return True
        finally:
            os.close(descriptor)


def _count(ledger: int, total: int) -> None:
    """Let the ledger say what the objects take."""
    os.pwrite(ledger, b"%0*d" % (_DIGITS, total), 0)


def _total(ledger: int) -> int | None:
    """Return what the ledger says; None if it says nothing."""
    text = os.pread(ledger, _DIGITS, 0)
    return int(text) if len(text) == _DIGITS and text.isdigit() else None
