"""Open files: whole reads and writes by their descriptors, room for all their blocks; files of others to be read."""

from __future__ import annotations

import errno
import mmap
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

ReadRange = Callable[[int, int], bytes]
"""Reads bytes ``start`` to ``stop`` of a file or an object."""


def open_regular(path: Path) -> BinaryIO:
    """Open a file to read it; links are followed.

    Raises:
        OSError: it can't be opened, or is no file: a FIFO, whose other end would be waited for, or a device.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    return os.fdopen(descriptor, "rb")


def size_of(file: BinaryIO) -> int:
    """Return the size of an open file."""
    return os.fstat(file.fileno()).st_size


def reader_of_map(mapped: mmap.mmap) -> ReadRange:
    """Return what reads ranges of a mapped file."""
    return lambda start, stop: mapped[start:stop]


def reader_of(file: BinaryIO) -> ReadRange:
    """Return what reads a range of an open file; it gives fewer bytes where the file has become shorter."""
    return lambda start, stop: os.pread(file.fileno(), stop - start, start)


def read_into(descriptor: int, buffer: memoryview, at: int) -> int:
    """Read from a place of a file on, however little the system gives at a time; return how many bytes there were."""
    done = 0
    while done < buffer.nbytes and (got := os.preadv(descriptor, [buffer[done:]], at + done)):
        done += got
    return done


def write_all(descriptor: int, data: memoryview, at: int) -> None:
    """Write all bytes from a place of a file on, however little the system takes at a time."""
    while data:
        done = os.pwrite(descriptor, data, at)
        data, at = data[done:], at + done


def reserve(descriptor: int, size: int) -> None:
    """Make a file this long, with all its blocks where the file system can say so: full disks are found at once."""
    os.ftruncate(descriptor, size)
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(descriptor, 0, size)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS):
                raise


def sync_folder(descriptor: int) -> None:
    """Make the names in an open folder survive a power loss, where the file system can do that."""
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems have no fsync of folders: their names are durable at once, or never.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
