"""What the writer of a checkpoint folder does to files: the few operations that a crash can fall between.

They are one small class, passed in, so that tests can stop a pull, or fill the disk, at each of them.
"""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

_BLOCK = bytes(1 << 20)


class FileOperations:
    """File operations that have happened, durably where they say so, when they return; else they raise OSError."""

    def make_folder(self, folder: Path) -> None:
        """Make a folder and those above it; one that is there is no error."""
        missing = [path for path in (folder, *folder.parents) if not path.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        for path in missing:
            self.sync_folder(path.parent)

    def copy(self, source: Path, target: Path) -> None:
        """Copy a file's bytes to a new file."""
        shutil.copyfile(source, target)

    def create(self, path: Path, head: bytes, size: int) -> None:
        """Make a file of ``size`` bytes that begins with ``head``; all of its blocks are there.

        Without them, a store through a memory map on a full disk would kill the process.
        """
        with path.open("xb") as file:
            file.write(head)
            file.flush()
            _reserve(file.fileno(), len(head), size)

    def write(self, path: Path, data: bytes) -> None:
        """Write a file, durably, over what is there."""
        with path.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    def sync(self, path: Path) -> None:
        """Make a file's bytes survive a power loss, those stored through memory maps too."""
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def sync_folder(self, folder: Path) -> None:
        """Make the names in a folder survive a power loss, where the file system can do that."""
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        except OSError as error:
            # Some network file systems have no fsync of folders: their names are durable at once, or never.
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):
                raise
        finally:
            os.close(descriptor)

    def replace(self, source: Path, target: Path) -> None:
        """Give a file another name, in one step, in place of what has that name."""
        os.replace(source, target)

    def remove(self, path: Path) -> None:
        """Remove a file; one that is not there is no error."""
        path.unlink(missing_ok=True)


def _reserve(descriptor: int, start: int, size: int) -> None:
    if size <= start:
        return
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(descriptor, start, size - start)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS):
                raise
        else:
            return
    at = start
    while at < size:
        at += os.pwrite(descriptor, _BLOCK[: size - at], at)
