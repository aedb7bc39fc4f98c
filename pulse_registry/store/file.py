"""A store in a folder of a local or mounted file system: one file an object, whole or not there at all.

A put writes aside, syncs, and then links or renames: the one step that makes the object appear. So a crash at
any point leaves the whole object or none, and `link`, which refuses a name that is taken, picks the one
winner of a create. Half-written files have names that are no keys; `remove_leftovers` clears up after crashed
writers. Nothing leads out of the folder: see `Root`.
"""

from __future__ import annotations

import errno
import os
import stat
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from pulse_registry.errors import InvalidArgument, StoreUnavailable
from pulse_registry.process.open_files import read_into, sync_folder
from pulse_registry.store.base import MOST_WHOLE_BYTES, Store
from pulse_registry.store.body import Body, Buffer, body_views
from pulse_registry.store.checks import (
    ByteRange,
    already_exists,
    check_buffer,
    check_range,
    check_whole,
    too_short,
)
from pulse_registry.store.keys import MAX_KEY_BYTES, TEMP_PREFIX, check_key, check_prefix, key_problem
from pulse_registry.store.os_errors import translated
from pulse_registry.store.root import Root

# What the system reads, or writes, of one buffer at a time: a little less than 2^31 bytes.
_PIECE: Final = 1 << 30

# A listing holds the names of one folder in memory, twice so many at most; of a larger folder it takes several looks.
_NAMES: Final = 250_000

_FIRST: Final = datetime(2, 1, 1, tzinfo=UTC).timestamp()
_LAST: Final = datetime(9999, 1, 1, tzinfo=UTC).timestamp()

_NO_HARD_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV)


class FileStore(Store):
    """A Store in a folder. Any number of threads and processes may share it; over NFS too.

    The file system must have hard links: without them a create-if-absent raises StoreUnavailable, for there
    is no safe substitute. Once `put` has returned, the object survives a power loss; a deleted object may
    come back.

    An object is a regular file. Below the folder no symbolic link is followed: where one is in the place of an object,
    or of a folder of it, or a pipe, a socket or a device, every verb that needs what should be there raises
    CorruptObject; `list` leaves it out, and `put` and `delete` of its own key replace and remove it, not what
    it leads to. The folder's own path may have links.
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
        self.url = Path(path).as_uri()
        self._root = Root(path)

    def get(self, key: str, byte_range: ByteRange | None = None, *, max_bytes: int = MOST_WHOLE_BYTES) -> bytes:
        """Return an object's bytes, or those of a range: see Store.get."""
        check_key(key)
        if byte_range is not None:
            check_range(key, byte_range)
        with translated("get", key, self.url):
            file, size = self._root.open_file(key)
            try:
                if byte_range is None:
                    check_whole(key, self.url, size, max_bytes)
                start, stop = byte_range or (0, size)
                if stop > size:
                    raise too_short(key, self.url, (start, stop), size)
                data = _read(file, start, stop - start)
            finally:
                os.close(file)
        if len(data) != stop - start:
            raise too_short(key, self.url, (start, stop), start + len(data))
        return data

    def get_into(self, key: str, byte_range: ByteRange, buffer: Buffer) -> None:
        """Read a range into a buffer: see Store.get_into."""
        check_key(key)
        view = check_buffer(key, byte_range, buffer)
        with translated("get", key, self.url):
            file, size = self._root.open_file(key)
            try:
                if byte_range[1] > size:
                    raise too_short(key, self.url, byte_range, size)
                got = read_into(file, view, byte_range[0])
            finally:
                os.close(file)
        if got < view.nbytes:
            raise too_short(key, self.url, byte_range, byte_range[0] + got)

    def put(self, key: str, data: Body, *, if_absent: bool = False) -> None:
        """Write an object, all or nothing; see Store.put."""
        check_key(key)
        folder, _, name = key.rpartition("/")
        views = body_views(data)
        temp = f"{TEMP_PREFIX}{uuid.uuid4().hex}"
        with translated("put", key, self.url):
            inside, file = self._root.open_new(folder, temp)
            try:
                _write_aside(inside, temp, file, views)
                try:
                    if if_absent:
                        self._create(key, inside, temp, name)
                    else:
                        os.replace(temp, name, src_dir_fd=inside, dst_dir_fd=inside)
                finally:
                    with suppress(FileNotFoundError):
                        os.unlink(temp, dir_fd=inside)
                sync_folder(inside)
            finally:
                os.close(inside)

    def size(self, key: str) -> int:
        """Return the object's size in bytes: see Store.size."""
        check_key(key)
        with translated("size", key, self.url):
            return self._root.stat(key).st_size

    def modified(self, key: str) -> datetime:
        """Return when the object was last written, by the file system's clock: see Store.modified.

        A file's time is whatever its owner says: one that no calendar has is told as the last that it has.
        """
        check_key(key)
        with translated("size", key, self.url):
            written = self._root.stat(key).st_mtime
        return datetime.fromtimestamp(min(max(written, _FIRST), _LAST), UTC)

    def list(self, prefix: str, after: str | None = None) -> Iterator[str]:
        """Iterate over the keys that begin with a string, a folder at a time: see Store.list.

        Memory is bounded, however many files there are: by 500,000 names, of 255 bytes at most, for each folder on the
        way to a key.
        """
        check_prefix(prefix)
        folder, slash, _ = prefix.rpartition("/")
        return self._walk(folder + slash, prefix, after)

    def folders(self, prefix: str, after: str | None = None) -> Iterator[str]:
        """Iterate over the folders behind a prefix, by a look at one folder: see Store.folders."""
        check_prefix(prefix)
        folder, slash, _ = prefix.rpartition("/")
        paths = self._paths(folder + slash, prefix, after)
        return (path for path in paths if path.endswith("/") and (after is None or path > after))

    def delete(self, key: str) -> None:
        """Remove an object if it is there: see Store.delete."""
        check_key(key)
        folder, _, name = key.rpartition("/")
        with translated("delete", key, self.url), suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
            inside = self._root.open_folder(folder)
            try:
                os.unlink(name, dir_fd=inside)
            finally:
                os.close(inside)

    def remove_folders(self, prefix: str) -> None:
        """Remove the folders that deleted objects leave behind: those below a prefix, and its own, that are empty.

        Raises:
            StoreUnavailable: a folder can't be read.
        """
        check_key(prefix)
        for folder in self._folders(f"{prefix}/"):
            above, _, name = folder.removesuffix("/").rpartition("/")
            with suppress(OSError):  # something is in it, or is being put there
                inside = self._root.open_folder(above)
                try:
                    os.rmdir(name, dir_fd=inside)
                finally:
                    os.close(inside)

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
            for folder in self._folders(""):
                for name, is_folder in self._root.scan(folder.removesuffix("/")):
                    if not is_folder and name.startswith(TEMP_PREFIX):
                        removed += self._remove_older(folder + name, now() - older_than_s)
        return removed

    def _remove_older(self, path: str, moment: float) -> bool:
        folder, _, name = path.rpartition("/")
        with suppress(FileNotFoundError):
            inside = self._root.open_folder(folder)
            try:
                if os.stat(name, dir_fd=inside, follow_symlinks=False).st_mtime < moment:
                    os.unlink(name, dir_fd=inside)
                    return True
            finally:
                os.close(inside)
        return False

    def _folders(self, top: str) -> Iterator[str]:
        """Yield a folder ("" or ending with '/') and the folders of keys below it, each behind those that are in it."""
        ways = [(top, self._paths(top))]
        while ways:
            folder, paths = ways[-1]
            below = next((path for path in paths if path.endswith("/")), None)
            if below is None:
                ways.pop()
                yield folder
            else:
                ways.append((below, self._paths(below)))

    def _walk(self, folder: str, prefix: str, after: str | None) -> Iterator[str]:
        """Yield the keys of a folder ("" or ending with '/') in order."""
        # No recursion: a path of 1,024 bytes can have as many folders as Python has frames.
        ways = [self._paths(folder, prefix, after)]
        while ways:
            for path in ways[-1]:
                if path.endswith("/"):
                    ways.append(self._paths(path, prefix, after))
                    break
                yield path
            else:
                ways.pop()

    def _paths(self, folder: str, prefix: str = "", after: str | None = None) -> Iterator[str]:
        """Yield the keys in a folder, and its folders, which end with '/', in order: those to which a listing comes."""
        if after is None or after < folder:
            behind = ""
        elif after.startswith(folder):
            behind = after[len(folder) :]
        else:
            return  # all of it comes before
        last, more = "", True
        while more:
            with translated("list", folder, self.url):
                names, more = self._least(folder, prefix[len(folder) :], behind, last)
            for name in names:
                yield folder + name
            last = names[-1] if more else ""

    def _least(self, folder: str, start: str, behind: str, last: str) -> tuple[Sequence[str], bool]:
        """Return the first names in a folder behind the last ones, in order, and whether there are more.

        Of those that begin with ``start``, come behind a string, or lead there, and can be part of a key; a folder's
        has its '/'.
        """
        room = MAX_KEY_BYTES - len(folder.encode())
        found: list[str] = []
        bound = None
        for plain, is_folder in self._root.scan(folder.removesuffix("/")):
            name = f"{plain}/" if is_folder else plain
            if name <= last or (bound is not None and name > bound) or not name.startswith(start):
                continue
            if name <= behind and not (is_folder and behind.startswith(name)):
                continue
            if key_problem(plain) is not None or len(plain.encode()) > room:
                continue
            found.append(name)
            if len(found) == 2 * _NAMES:
                found.sort()
                del found[_NAMES:]
                bound = found[-1]
        found.sort()
        return found, bound is not None

    def _create(self, key: str, inside: int, temp: str, name: str) -> None:
        """Give a finished file its name, unless that is taken."""
        try:
            os.link(temp, name, src_dir_fd=inside, dst_dir_fd=inside, follow_symlinks=False)
        except FileExistsError:
            with suppress(FileNotFoundError):
                there = os.stat(name, dir_fd=inside, follow_symlinks=False)
                # NFS re-sends a link whose answer was lost, and then refuses its own. A second name does not tell:
                # others may have given it one.
                if os.path.samestat(there, os.stat(temp, dir_fd=inside, follow_symlinks=False)):
                    return
                if stat.S_ISDIR(there.st_mode):
                    raise IsADirectoryError(errno.EISDIR, "is a folder", key) from None
            # Its writer may not have synced yet; the caller goes on from an object that will stay.
            sync_folder(inside)
            raise already_exists(key, self.url) from None
        except OSError as error:
            if error.errno not in _NO_HARD_LINKS:
                raise
            failure = StoreUnavailable(
                f"could not put {key!r} in {self.url}: {error.strerror}; create-if-absent needs a "
                "file system with hard links: keep the registry on another one"
            )
            failure.lasting = True
            raise failure from error


def _read(file: int, start: int, count: int) -> bytes:
    """Return bytes of an open file; fewer only where it ends before."""
    if count <= _PIECE:
        data = os.pread(file, count, start)
        if len(data) == count:
            return data
    with open(file, "rb", closefd=False) as pieces:  # into one buffer, however little the system gives at a time
        pieces.seek(start)
        return pieces.read(count)


def _write_aside(inside: int, temp: str, file: int, views: Iterable[memoryview]) -> None:
    """Write, sync and close a new file, or remove it."""
    try:
        try:
            _write_all(file, views)
            os.fsync(file)
        finally:
            os.close(file)
    except BaseException:
        with suppress(OSError):
            os.unlink(temp, dir_fd=inside)
        raise


def _write_all(file: int, views: Iterable[memoryview]) -> None:
    """Write all buffers in order, however little the system takes at a time."""
    for view in views:
        left = view
        while left.nbytes:
            written = os.writev(file, [left[:_PIECE]])
            if not written:
                raise OSError(errno.EIO, "the file system takes no more bytes")
            left = left[written:]
