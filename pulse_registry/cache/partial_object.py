"""Partial object of the cache: a file that shows other processes which ranges of a download have landed.

The file holds the object's bytes and, behind them, a byte for each range that is 1 once the range has landed. So others
can read ranges as they land, and whoever takes over from a process that was killed goes on with what is there. Once all
bytes have been checked against what was committed, the marks are cut off and the file gets its name.
"""

from __future__ import annotations

import errno
import os
import threading

from pulse_registry.cache.folder import CacheFolder
from pulse_registry.format.patch_parts import Stored, pieces_of
from pulse_registry.process.hashing import large_hasher
from pulse_registry.process.open_files import read_into, reserve, write_all
from pulse_registry.process.private_files import release_lock, take_lock

RANGE_BYTES = 8 << 20
"""An object is fetched in ranges of this size."""


class PartialObject:
    """An open part. Every method raises OSError where the disk does not do it. Safe to share between threads.

    Attributes:
        ref: the object.
        count: ranges that it has.
        resumed: whether some of them were there before ``begin``.
    """

    def __init__(self, folder: CacheFolder, ref: Stored) -> None:
        """Open an object's part, which is made, empty, if it is not there."""
        self.ref = ref
        self.count = -(-ref.size // RANGE_BYTES)
        self.resumed = False
        self._folder = folder
        self._mutex = threading.Lock()
        self._descriptor = folder.open_part(ref)

    def lock(self) -> bool:
        """Take the right to write it, unless another process or thread has it; tell whether it is had now."""
        return take_lock(self._descriptor)

    def is_named(self) -> bool:
        """Tell whether this very file is still what lies under the part's name."""
        try:
            there = os.stat(self._folder.part(self.ref), follow_symlinks=False)
        except FileNotFoundError:
            return False
        return os.path.samestat(there, os.fstat(self._descriptor))

    def begin(self) -> None:
        """Give it all its blocks, so that a full disk is found at once; what an earlier process left is kept."""
        nbytes, found = self.ref.size + self.count, os.fstat(self._descriptor).st_size
        if found != nbytes:
            os.ftruncate(self._descriptor, 0)
        self.resumed = found == nbytes and self.progress() > 0
        self._folder.allot(self._descriptor, nbytes)
        try:
            reserve(self._descriptor, nbytes)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            self._folder.make_room(nbytes)
            reserve(self._descriptor, nbytes)

    def numbers(self, start: int, stop: int) -> range:
        """Return the ranges in which bytes of the object lie."""
        return range(start // RANGE_BYTES, -(-stop // RANGE_BYTES))

    def span(self, number: int) -> tuple[int, int]:
        """Return where a range lies in the object."""
        return number * RANGE_BYTES, min((number + 1) * RANGE_BYTES, self.ref.size)

    def has(self, start: int, stop: int) -> bool:
        """Tell whether these bytes of the object have landed."""
        numbers = self.numbers(start, stop)
        marks = os.pread(self._descriptor, len(numbers), self.ref.size + numbers.start)
        # Without marks it is finished, and about to get its name.
        return marks == b"\1" * len(numbers) or os.fstat(self._descriptor).st_size == self.ref.size

    def progress(self) -> int:
        """Return how many ranges have landed, as far as the marks say."""
        return os.pread(self._descriptor, self.count, self.ref.size).count(1)

    def write(self, number: int, data: memoryview) -> None:
        """Store a range, and mark it."""
        write_all(self._descriptor, data, self.span(number)[0])
        os.pwrite(self._descriptor, b"\1", self.ref.size + number)

    def check(self) -> bool:
        """Tell whether the bytes are those that were committed, by a full pass."""
        at = 0
        for size, digest in pieces_of(self.ref):
            if self._hash(at, size) != digest:
                return False
            at += size
        return at == self.ref.size

    def _hash(self, start: int, size: int) -> str:
        hasher, buffer, done = large_hasher(size), bytearray(min(RANGE_BYTES, size)), 0
        while done < size:
            got = read_into(self._descriptor, memoryview(buffer)[: size - done], start + done)
            if not got:
                break
            hasher.update(memoryview(buffer)[:got])
            done += got
        return hasher.hexdigest()

    def name(self) -> None:
        """Give the checked file the name of a whole object; does nothing if somebody has put another in its place."""
        os.ftruncate(self._descriptor, self.ref.size)
        if self.is_named():
            self._folder.name(self.ref, self._descriptor)

    def remove(self) -> None:
        """Remove the file."""
        if self.is_named():
            self._folder.part(self.ref).unlink(missing_ok=True)

    def duplicate(self) -> int | None:
        """Return a new descriptor to read from; None once it was closed."""
        with self._mutex:
            return os.dup(self._descriptor) if self._descriptor >= 0 else None

    def close(self) -> None:
        """Let go of it, and of the right to write it. Idempotent."""
        with self._mutex:
            if self._descriptor >= 0:
                release_lock(self._descriptor)
            self._descriptor = -1
