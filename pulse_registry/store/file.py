"""A store in a folder of a local or mounted file system: one file an object, whole or not there at all.

A put writes aside, syncs, and then links or renames: the one step that makes the object appear. So a crash at
any point leaves the whole object or none, and `link`, which refuses a name that is taken, picks the one
winner of a create. Half-written files have names that are no keys; `remove_leftovers` clears up after crashed
writers.
"""

from __future__ import annotations

import errno
import os
import stat
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from fsspec.implementations.local import LocalFileSystem  # type: ignore[import-untyped]

from pulse_registry.errors import AlreadyExists, InvalidArgument, StoreUnavailable
from pulse_registry.store.base import MOST_WHOLE_BYTES, Body, ByteRange, body_views, check_range, check_whole
from pulse_registry.store.fsspec_store import FsspecStore, not_found, too_short, translated
from pulse_registry.store.keys import TEMP_PREFIX, check_key, check_prefix, key_problem

# writev takes at most IOV_MAX buffers (1,024 on Linux and macOS) and, on macOS, 2^31 - 1 bytes.
_WRITE_BUFFERS = 512
_WRITE_BYTES = 1 << 30

# How often a put starts over when somebody removes its folder from under it.
_FOLDER_ATTEMPTS = 16

_NO_HARD_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV)


class FileStore(FsspecStore):
    """A Store in a folder. Any number of threads and processes may share it; over NFS too.

    The file system must have hard links: without them a create-if-absent raises StoreUnavailable, for there
    is no safe substitute. Once `put` has returned, the object survives a power loss; a deleted object may
    come back.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        """Open the store in a folder, which is created by the first put.

        Raises:
            InvalidArgument: the path is empty or not a folder.
        """
        given = os.fspath(root)
        if not given or "\0" in given:
            raise InvalidArgument(f"{given!r} is not the path of a folder")
        path = os.path.abspath(given)
        if os.path.exists(path) and not os.path.isdir(path):
            raise InvalidArgument(f"{path} is not a folder: a file store needs one, or a path where it can make one")
        super().__init__(LocalFileSystem(), root=path.rstrip("/"), url=Path(path).as_uri())
        # Folders known to survive a power loss: their names, and those of the folders above, are synced.
        self._durable: set[str] = set()

    def get(self, key: str, byte_range: ByteRange | None = None, *, max_bytes: int = MOST_WHOLE_BYTES) -> bytes:
        """Return an object's bytes, or those of a range: see Store.get.

        Not through fsspec: size and bytes are those of one open file, so that what is replaced meanwhile comes whole.
        """
        path = self._path(key)
        if byte_range is not None:
            check_range(key, byte_range)
        with translated("get", key, self.url), open(path, "rb", opener=_open_at_once) as file:
            about = os.fstat(file.fileno())
            if not stat.S_ISREG(about.st_mode):
                raise not_found(key, self.url)
            if byte_range is None:
                check_whole(key, self.url, about.st_size, max_bytes)
            start, stop = byte_range or (0, about.st_size)
            if stop > about.st_size:
                raise too_short(key, self.url, (start, stop), about.st_size)
            file.seek(start)
            data = file.read(stop - start)
        if len(data) != stop - start:
            raise too_short(key, self.url, (start, stop), start + len(data))
        return data

    def put(self, key: str, data: Body, *, if_absent: bool = False) -> None:
        """Write an object, all or nothing; see Store.put."""
        target = self._path(key)
        folder = os.path.dirname(target)
        views = body_views(data)
        with translated("put", key, self.url):
            temp = self._write_aside(folder, views)
            try:
                if if_absent:
                    self._create(key, temp, target)
                else:
                    os.replace(temp, target)
            finally:
                with suppress(FileNotFoundError):
                    os.unlink(temp)
            _sync_folder(folder)

    def list(self, prefix: str, after: str | None = None) -> Iterator[str]:
        """Iterate over the keys that begin with a string, a folder at a time: see Store.list.

        Not through fsspec, whose walk leaves out folders that it can't read.
        """
        check_prefix(prefix)
        folder, slash, _ = prefix.rpartition("/")
        return self._walk(folder + slash, prefix, after)

    def remove_folders(self, prefix: str) -> None:
        """Remove the folders that deleted objects leave behind: those below a prefix, and its own, that are empty."""
        check_key(prefix)
        for _, folders, _, descriptor in os.fwalk(self._path(prefix), topdown=False):
            for folder in folders:
                with suppress(OSError):  # something is in it, or is being put there
                    os.rmdir(folder, dir_fd=descriptor)
        with suppress(OSError):
            os.rmdir(self._path(prefix))

    def remove_leftovers(self, older_than_s: float, now: Callable[[], float] = time.time) -> int:
        """Remove the half-written files of crashed writers, and return how many there were.

        Args:
            older_than_s: age in seconds since the last write. A put that is still going on and pauses longer
                than this fails with StoreUnavailable.
            now: the wall clock.

        Raises:
            StoreUnavailable: a folder can't be read or changed.
        """
        removed = 0
        with translated("delete", TEMP_PREFIX, self.url):
            for folder, _, names in os.walk(self._root or "/", onerror=_unless_missing):
                for name in names:
                    if name.startswith(TEMP_PREFIX):
                        path = os.path.join(folder, name)
                        with suppress(FileNotFoundError):
                            if now() - os.stat(path).st_mtime > older_than_s:
                                os.unlink(path)
                                removed += 1
        return removed

    def _walk(self, folder: str, prefix: str, after: str | None) -> Iterator[str]:
        """Yield the keys of a folder ("" or ending with '/') in order; a folder sorts with its '/'."""
        with translated("list", folder, self.url):
            names = _names_in(f"{self._root}/{folder}")
        for name in names:
            key = folder + name
            if not key.startswith(prefix) or key_problem(key.removesuffix("/")) is not None:
                continue
            if not name.endswith("/"):
                if after is None or key > after:
                    yield key
            elif after is None or key > after or after.startswith(key):
                yield from self._walk(key, prefix, after)

    def _write_aside(self, folder: str, views: Iterable[memoryview]) -> str:
        """Write and sync a temporary file in the object's folder, and return its path, or leave none."""
        temp = f"{folder}/{TEMP_PREFIX}{uuid.uuid4().hex}"
        descriptor = self._open_new(folder, temp)
        try:
            try:
                _write_all(descriptor, views)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except BaseException:
            with suppress(OSError):
                os.unlink(temp)
            raise
        return temp

    def _open_new(self, folder: str, path: str) -> int:
        """Open a new file, making its folder; starts over if the folder is removed meanwhile."""
        for _ in range(_FOLDER_ATTEMPTS):
            with suppress(FileNotFoundError):
                self._ensure_folder(folder)
                return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            self._durable.clear()
        raise OSError(errno.ENOENT, f"the folder {folder} is removed again and again")

    def _ensure_folder(self, folder: str) -> None:
        """Make a folder and those above it, and sync their names, whoever made them.

        A folder that another process made a moment ago may not be synced yet, and our object would be lost
        with it.
        """
        if folder in self._durable:
            return
        parent = os.path.dirname(folder)
        inside = folder.startswith(f"{self._root}/")
        if not inside and os.path.isdir(folder):
            # The root, or a folder above it, was there before: what is above is often not ours to read.
            if folder == self._root:
                with suppress(PermissionError):
                    _sync_folder(parent)
            self._durable.add(folder)
            return
        self._ensure_folder(parent)
        if not os.path.isdir(folder):
            with suppress(FileExistsError):
                os.mkdir(folder)
            # One look: it may be removed between two, and then this is no error but a reason to start over.
            if not stat.S_ISDIR(os.stat(folder).st_mode):
                raise NotADirectoryError(errno.ENOTDIR, "not a folder", folder)
        _sync_folder(parent)
        self._durable.add(folder)

    def _create(self, key: str, temp: str, target: str) -> None:
        """Give a finished file its name, unless that is taken."""
        try:
            os.link(temp, target)
        except FileExistsError:
            # NFS re-sends a link whose answer was lost, and then refuses its own: a second name tells.
            if os.stat(temp).st_nlink > 1:
                return
            if os.path.isdir(target):
                raise IsADirectoryError(errno.EISDIR, "is a folder", target) from None
            # Its writer may not have synced yet; the caller goes on from an object that will stay.
            _sync_folder(os.path.dirname(target))
            raise AlreadyExists(f"object {key!r} is already in {self.url}") from None
        except OSError as error:
            if error.errno not in _NO_HARD_LINKS:
                raise
            failure = StoreUnavailable(
                f"could not put {key!r} in {self.url}: {error.strerror}; create-if-absent needs a "
                "file system with hard links: keep the registry on another one"
            )
            failure.lasting = True
            raise failure from error


def _open_at_once(path: str, flags: int) -> int:
    """Open a file; what is none, such as a pipe, does not hold whoever opens it."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


def _unless_missing(error: OSError) -> None:
    """Raise an error of a walk, unless the folder was only removed meanwhile."""
    if not isinstance(error, FileNotFoundError):
        raise error


def _names_in(folder: str) -> Iterable[str]:
    """Return a folder's names in the order of the keys below it, folders with a '/'; none if missing."""
    names = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir():
                    names.append(f"{entry.name}/")
                elif entry.is_file():
                    names.append(entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return ()
    return sorted(names)


def _write_all(descriptor: int, views: Iterable[memoryview]) -> None:
    """Write all buffers in order, however little the system takes at a time."""
    for view in views:
        left = view
        while left.nbytes:
            written = os.writev(descriptor, [left[:_WRITE_BYTES]])
            if not written:
                raise OSError(errno.EIO, "the file system takes no more bytes")
            left = left[written:]


def _sync_folder(folder: str) -> None:
    """Make the names in a folder survive a power loss, where the file system can do that."""
    descriptor = os.open(folder or "/", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems have no fsync of folders: their names are durable at once, or never.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)
