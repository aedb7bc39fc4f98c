"""File operations of a pull into a checkpoint folder: the few steps that a crash can fall between.

They are one small class, passed in, so that tests can stop a pull, or fill the disk, at each of them. Others may write
into the folder, too: what is written are new files, by the descriptors that made them, and through no link.
"""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

from pulse_registry.process.open_files import open_regular, sync_folder

_BLOCK = bytes(1 << 20)


class FileOperations:
    """File operations that have happened, durably where they say so, when they return; else they raise OSError."""

    def make_folder(self, folder: Path) -> None:
        """Make a folder and those above it; one that is there is no error."""
        missing = [path for path in (folder, *folder.parents) if not path.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        for path in missing:
            self.sync_folder(path.parent)

    def copy(self, source: Path, target: Path) -> int:
        """Copy a file's bytes to a new file, and return its descriptor, to read and write."""
        descriptor = _new(target)
        try:
            with open_regular(source) as old, open(descriptor, "wb", closefd=False) as new:
                shutil.copyfileobj(old, new, len(_BLOCK))
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def create(self, path: Path, head: bytes, size: int) -> int:
        """Make a file of ``size`` bytes that begins with ``head``, and return its descriptor, to read and write.

        All of its blocks are there. Without them, a store through a memory map on a full disk would kill the process.
        """
        descriptor = _new(path)
        try:
            with open(descriptor, "wb", closefd=False) as file:
                file.write(head)
            _reserve(descriptor, len(head), size)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def write(self, path: Path, data: bytes) -> None:
        """Write a new file, durably, in place of what is there."""
        path.unlink(missing_ok=True)
        with open(_new(path), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    def sync(self, path: Path) -> None:
        """Make a file's bytes survive a power loss, those stored through memory maps too."""
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def sync_folder(self, folder: Path) -> None:
        """Make the names in a folder survive a power loss, where the file system can do that."""
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            sync_folder(descriptor)
        finally:
            os.close(descriptor)

    def replace(self, source: Path, target: Path) -> None:
        """Give a file another name, in one step, in place of what has that name."""
        os.replace(source, target)

    def remove(self, path: Path) -> None:
        """Remove a file; one that is not there is no error."""
        path.unlink(missing_ok=True)


def _new(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)


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
