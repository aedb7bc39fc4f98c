"""Files and folders of ours outside of a store, in places where others may write too: a shared /tmp, a host's cache.

A name there says nothing of what lies under it. So it is opened once, no link is followed, no pipe waited for; what was
opened is looked at, and all else is done through its descriptor. Ours is a plain file, of this user, under one name
alone, that nobody else may write; what is made here is its user's alone, whatever the umask.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

_OPEN: Final = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_NO_FILE: Final = (errno.ELOOP, errno.EMLINK, errno.ENXIO, errno.EISDIR)
"""What opening a link says (on some systems the second), a socket or a pipe that nobody reads, and a folder."""
_PAUSES: Final = (0.002, 0.02)
"""The first and the longest pause between two tries to take a lock, in seconds."""

Name = str | os.PathLike[str]


class NotOurs(OSError):
    """What lies under a name is not ours: it is a link or no plain file, or another user owns it, or may write it."""

    def __init__(self, path: Name, why: str) -> None:
        super().__init__(errno.EACCES, f"{why}, and is not used", os.fspath(path))


def is_ours(found: os.stat_result, folder: os.stat_result | None = None) -> bool:
    """Tell whether a file is a plain one that nobody but this user can reach to write, under this name or another.

    Args:
        found: of the file, by its descriptor.
        folder: of the folder that it lies in, by its descriptor: where nobody else may enter it, a file's mode is no
            matter.
    """
    closed = folder is not None and not folder.st_mode & 0o077
    plain = stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and found.st_nlink <= 1
    return plain and (closed or not found.st_mode & 0o022)


def open_file(path: Name, flags: int, folder: int | None = None) -> int:
    """Return a descriptor of a file of ours, made with mode 0600 where ``flags`` say so.

    Args:
        path: of the file.
        flags: for ``os.open``, without O_TRUNC, which would change what is not ours before it is looked at.
        folder: a descriptor of the folder that ``path`` is relative to.

    Raises:
        NotOurs: what lies there is not ours.
        OSError: it can't be opened.
    """
    descriptor, made = _open_or_make(path, flags, 0o600, folder)
    found = os.fstat(descriptor)
    if not is_ours(found, None if folder is None else os.fstat(folder)):
        os.close(descriptor)
        if made:  # on a file system that gives what we make to another user
            os.unlink(path, dir_fd=folder)
        raise NotOurs(
            path,
            f"it is not a plain file of one name that user {os.geteuid()} owns and nobody else may write "
            f"(owner {found.st_uid}, mode {stat.filemode(found.st_mode)}, {found.st_nlink} names)",
        )
    return descriptor


def new_file(path: Name, folder: int | None = None, mode: int = 0o600) -> int:
    """Return a descriptor of a new file, to write, in place of what has its name: a link there goes, and leads nowhere.

    Raises:
        OSError: it can't be made; FileExistsError, if somebody was faster.
    """
    with suppress(FileNotFoundError):
        os.unlink(path, dir_fd=folder)
    return _open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode, folder)


def make_folder(path: Path) -> None:
    """Make a folder, and those above it that are missing, each with mode 0700; what is there stays as it is.

    Raises:
        OSError: one can't be made.
    """
    for folder in (*reversed(path.parents), path):
        folder.mkdir(mode=0o700, exist_ok=True)


@contextmanager
def own_folder(path: Path, *, make: bool = True) -> Iterator[int]:
    """Open a folder that is ours, which it is named for: its descriptor, for the files in it.

    Where others may write into it, as a lax umask let an earlier release make it, they may not from now on.

    Raises:
        NotOurs: it is a link, or another user's.
        OSError: it can't be made or opened; FileNotFoundError where it is not there and is not to be made.
    """
    if make:
        make_folder(path)
    descriptor = _open(path, os.O_RDONLY | os.O_DIRECTORY, 0, None)
    try:
        found = os.fstat(descriptor)
        if found.st_uid != os.geteuid():
            raise NotOurs(path, f"it is a folder of user {found.st_uid}, not of user {os.geteuid()}")
        if found.st_mode & 0o022:
            os.fchmod(descriptor, 0o700)
        yield descriptor
    finally:
        os.close(descriptor)


def take_lock(descriptor: int, seconds: float = 0.0) -> bool:
    """Lock an open file, unless somebody else has it for so long; tell whether it is had now.

    The lock goes with its last descriptor, or the process.

    Raises:
        OSError: the file system has no locks.
    """
    ends, pause = time.monotonic() + seconds, _PAUSES[0]
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= ends:
                return False
        else:
            return True
        time.sleep(pause)
        pause = min(2 * pause, _PAUSES[1])


def hold_lock(path: Name, seconds: float, folder: int | None = None) -> int | None:
    """Return a descriptor of a file that is made for its lock alone, locked; None if somebody else has it for so long.

    Nothing is written to it, so it may be another user's; what is no plain file is refused. ``release_lock`` ends it.

    Raises:
        NotOurs: what lies there is a link or no plain file.
        OSError: it can't be opened, or the file system has no locks.
    """
    while True:
        descriptor, _ = _open_or_make(path, os.O_RDWR | os.O_CREAT, 0o644, folder)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise NotOurs(path, "it is no plain file")
            if not take_lock(descriptor, seconds):
                os.close(descriptor)
                return None
            if os.fstat(descriptor).st_nlink:
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # whoever held it has removed it, so that it keeps nobody out any more


def release_lock(descriptor: int) -> None:
    """Let go of a lock, and of its file."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_UN)  # a duplicate, or one that a fork made, would keep it
    finally:
        os.close(descriptor)


def replace_file(folder: int, name: str, data: bytes, new: str = "new") -> None:
    """Write a file, durably, in place of what has its name, whole or not at all.

    Args:
        folder: a descriptor of a folder of ours, in which nobody else does this at the same time.
        name: of the file.
        data: its bytes.
        new: what it is called until it is whole.

    Raises:
        OSError: it can't be written.
    """
    with open(new_file(new, folder), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, name, src_dir_fd=folder, dst_dir_fd=folder)


def _open_or_make(path: Name, flags: int, mode: int, folder: int | None) -> tuple[int, bool]:
    """Open a file; tell whether it was made just now, which takes O_CREAT among ``flags``."""
    while flags & os.O_CREAT:
        with suppress(FileExistsError):
            return _open(path, flags | os.O_EXCL, mode, folder), True
        with suppress(FileNotFoundError):  # somebody has removed it in between
            # Without O_CREAT, with which Linux refuses root a file of another user in a folder with the sticky bit.
            return _open(path, flags & ~os.O_CREAT, mode, folder), False
    return _open(path, flags, mode, folder), False


def _open(path: Name, flags: int, mode: int, folder: int | None) -> int:
    try:
        return os.open(path, flags | _OPEN, mode, dir_fd=folder)
    except OSError as error:
        if error.errno in _NO_FILE or (error.errno == errno.ENOTDIR and os.path.islink(path)):
            raise NotOurs(path, "it is a link, or no plain file") from error
        raise
