"""The folder of a file store, and what lies below it: reached by descriptors, a step at a time, and no link followed.

Others may write into a shared folder. A link that they put there must lead nobody out of it, to read, to write or to
delete, and a pipe must keep nobody waiting, whatever they exchange while it is looked at: so what was looked at is a
descriptor, and each step goes on from one. The path of the folder itself is its owner's, and may have links.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from pulse_registry.process.open_files import sync_folder

_FOLDER: Final = os.O_DIRECTORY | os.O_CLOEXEC
READ: Final = os.O_RDONLY | _FOLDER
"""A folder that is opened so can be listed and synced."""
PASS: Final = getattr(os, "O_PATH", os.O_RDONLY) | _FOLDER
"""A folder that is opened so can be gone through: it need not be readable."""
# Without O_NONBLOCK, to open a pipe would wait for its other end.
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

# What open says of a link (ENOTDIR where a folder was asked for), a socket, and a device that nobody drives.
_NO_FILE: Final = (errno.ELOOP, errno.EMLINK, errno.ENOTDIR, errno.ENXIO, errno.ENODEV, errno.EOPNOTSUPP)
_KINDS: Final = {stat.S_IFLNK: "a symbolic link", stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket"}

# How often a file is made anew when somebody removes its folder from under it.
_ATTEMPTS: Final = 16


class Misplaced(OSError):
    """Something that is neither a file nor a folder is where one of them should be."""

    def __init__(self, place: str, mode: int) -> None:
        """Say what it is, by ``st_mode``, and where, by its path below the root."""
        super().__init__(errno.EINVAL, f"{place!r} is {_KINDS.get(stat.S_IFMT(mode), 'a device')}", place)


class Root:
    """A folder in which files are found, made and listed by their keys. Thread-safe; keeps nothing open.

    Each call opens the folder anew, by its path: it may be removed and made again.
    """

    def __init__(self, path: str) -> None:
        """Prepare; no I/O yet.

        Args:
            path: absolute path of the folder, which need not exist.
        """
        self._path = path
        # Folders known to survive a power loss: their names, and those of the folders above, are synced. "" is the
        # root, the others end with '/'.
        self._durable: set[str] = set()

    def open_folder(self, folder: str, flags: int = PASS) -> int:
        """Return a descriptor of a folder, given by its path below the root; "" is the root itself.

        Raises:
            FileNotFoundError, NotADirectoryError: there is no such folder.
            Misplaced: a link or the like is in its way.
        """
        descriptor = os.open(self._path, flags)
        try:
            for end in _ends(folder):
                above, descriptor = descriptor, _enter(descriptor, folder[:end], flags)
                os.close(above)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def open_file(self, key: str) -> tuple[int, int]:
        """Return a descriptor of a regular file, to read, and its size in bytes.

        Raises:
            FileNotFoundError, NotADirectoryError, IsADirectoryError: there is none.
            Misplaced: a link or the like is in its place, or in its way.
        """
        folder, _, name = key.rpartition("/")
        inside = self.open_folder(folder)
        try:
            descriptor = os.open(name, _FILE, dir_fd=inside)
        except OSError as error:
            if error.errno in _NO_FILE:
                _check(key, os.stat(name, dir_fd=inside, follow_symlinks=False))
            raise
        finally:
            os.close(inside)
        try:
            about = os.fstat(descriptor)
            _check(key, about)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor, about.st_size

    def stat(self, key: str) -> os.stat_result:
        """Return what a regular file is; raises as `open_file`."""
        folder, _, name = key.rpartition("/")
        inside = self.open_folder(folder)
        try:
            about = os.stat(name, dir_fd=inside, follow_symlinks=False)
        finally:
            os.close(inside)
        _check(key, about)
        return about

    def scan(self, folder: str) -> Iterator[tuple[str, bool]]:
        """Yield the names in a folder, and whether each is a folder, in no order; links and the like are left out.

        Yields nothing where the folder is missing, or a link.
        """
        try:
            descriptor = self.open_folder(folder, READ)
        except (FileNotFoundError, NotADirectoryError, Misplaced):
            return
        try:
            with os.scandir(descriptor) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        yield entry.name, True
                    elif entry.is_file(follow_symlinks=False):
                        yield entry.name, False
        finally:
            os.close(descriptor)

    def open_new(self, folder: str, name: str) -> tuple[int, int]:
        """Make a file, and its folders; return descriptors of its folder, and of the file, to write.

        Starts over where the folder is removed meanwhile.

        Raises:
            NotADirectoryError: a file is in the way of the folder.
            Misplaced: a link or the like is.
        """
        for _ in range(_ATTEMPTS):
            with suppress(FileNotFoundError):
                inside = self._make_folder(folder)
                try:
                    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
                    return inside, os.open(name, flags, 0o666, dir_fd=inside)
                except BaseException:
                    os.close(inside)
                    raise
        raise OSError(errno.ENOENT, f"the folder {folder!r} is removed again and again")

    def _make_folder(self, folder: str) -> int:
        """Open a folder, to read; make it and those above it, and sync their names, whoever made them.

        A folder that another process made a moment ago may not be synced yet, and what is put there would be lost with
        it.
        """
        descriptor = self._make_root()
        try:
            for end in _ends(folder):
                below = self._make_below(descriptor, folder[:end])
                above, descriptor = descriptor, below
                os.close(above)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _make_below(self, above: int, folder: str) -> int:
        try:
            below = _enter(above, folder, READ)
        except FileNotFoundError:
            self._durable.discard(folder)
            with suppress(FileExistsError):
                os.mkdir(folder.rpartition("/")[2], dir_fd=above)
            below = _enter(above, folder, READ)
        try:
            if folder not in self._durable:
                sync_folder(above)
                self._durable.add(folder)
        except BaseException:
            os.close(below)
            raise
        return below

    def _make_root(self) -> int:
        try:
            descriptor = os.open(self._path, READ)
        except FileNotFoundError:
            _make(self._path)
            self._durable.add("")
            return os.open(self._path, READ)
        try:
            if "" not in self._durable:
                # It was there before: what is above is often not ours to read.
                with suppress(PermissionError):
                    _sync_path(os.path.dirname(self._path))
                self._durable.add("")
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor


def _ends(folder: str) -> Iterator[int]:
    """Yield where the path of each folder ends that lies on the way to one, and of that one."""
    if folder:
        yield from (at for at, letter in enumerate(folder) if letter == "/")
        yield len(folder)


def _enter(above: int, folder: str, flags: int) -> int:
    """Open a folder, given by its path below the root, from the one above it."""
    name = folder.rpartition("/")[2]
    try:
        return os.open(name, flags | os.O_NOFOLLOW, dir_fd=above)
    except OSError as error:
        if error.errno in _NO_FILE:
            mode = os.stat(name, dir_fd=above, follow_symlinks=False).st_mode
            if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
                raise Misplaced(folder, mode) from error
        raise


def _check(key: str, about: os.stat_result) -> None:
    """Raise an error where something is no regular file."""
    if stat.S_ISDIR(about.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), key)
    if not stat.S_ISREG(about.st_mode):
        raise Misplaced(key, about.st_mode)


def _make(path: str) -> None:
    """Make the root, and the folders above it, and sync their names."""
    above = os.path.dirname(path)
    if not os.path.isdir(above):
        _make(above)
    with suppress(FileExistsError):
        os.mkdir(path)
    _sync_path(above)


def _sync_path(folder: str) -> None:
    descriptor = os.open(folder, READ)
    try:
        sync_folder(descriptor)
    finally:
        os.close(descriptor)
