"""Files of others, to be read: opened once, and only where they are files; what is read comes by that descriptor."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

from pulse_registry.format.safetensors import ReadRange


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


def reader_of(file: BinaryIO) -> ReadRange:
    """Return what reads a range of an open file; it gives fewer bytes where the file has become shorter."""
    return lambda start, stop: os.pread(file.fileno(), stop - start, start)
