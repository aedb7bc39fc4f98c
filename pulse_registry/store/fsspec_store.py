"""What the stores over fsspec file systems share: reading, listing and deleting.

How an object is written whole or not at all differs by store, so that `put` belongs to the subclasses.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Protocol

from pulse_registry.errors import NotFound
from pulse_registry.store.base import MOST_WHOLE_BYTES, ByteRange, check_range, check_whole
from pulse_registry.store.keys import check_key, check_prefix, key_problem
from pulse_registry.store.os_errors import not_found, too_short, translated


class FileSystem(Protocol):
    """The part of fsspec's AbstractFileSystem, which has no type hints, that stores use."""

    def cat_file(self, path: str, start: int | None = None, end: int | None = None) -> bytes:
        """Return a file's bytes from start to end."""
        ...

    def info(self, path: str) -> dict[str, Any]:
        """Return at least the file's `type` and `size`."""
        ...

    def find(self, path: str) -> Sequence[str]:
        """Return the paths of all files below a folder; none if there is no such folder."""
        ...

    def rm_file(self, path: str) -> None:
        """Remove one file."""
        ...

    def modified(self, path: str) -> datetime:
        """Return when a file was last written."""
        ...

    def pipe_file(self, path: str, value: bytes) -> None:
        """Write a file."""
        ...


class FsspecStore:
    """Base of the stores over fsspec: all verbs of Store except `put`."""

    def __init__(self, fs: FileSystem, root: str, url: str) -> None:
        """Join a file system and a folder of it.

        Args:
            fs: the fsspec file system.
            root: absolute path in it, without a trailing slash; "" for its top.
            url: what messages call this store.
        """
        self._fs = fs
        self._root = root
        self._url = url

    @property
    def url(self) -> str:
        """Where this store is, for messages."""
        return self._url

    def __repr__(self) -> str:
        """Show the class and the URL."""
        return f"{type(self).__name__}({self._url!r})"

    def get(self, key: str, byte_range: ByteRange | None = None, *, max_bytes: int = MOST_WHOLE_BYTES) -> bytes:
        """Return an object's bytes, or those of a range: see Store.get."""
        path = self._path(key)
        if byte_range is not None:
            check_range(key, byte_range)
        # The size first: neither a range out of a damaged header nor an object that is longer than any of ours must
        # make the read below allocate what it asks for.
        size = self.size(key)
        if byte_range is None:
            check_whole(key, self._url, size, max_bytes)
            with translated("get", key, self._url):
                return self._fs.cat_file(path, 0, size)
        start, stop = byte_range
        if stop > size:
            raise too_short(key, self._url, byte_range, size)
        with translated("get", key, self._url):
            data = self._fs.cat_file(path, start, stop) if stop > start else b""
        if len(data) != stop - start:
            raise too_short(key, self._url, byte_range, start + len(data))
        return data

    def exists(self, key: str) -> bool:
        """Tell whether the object is there: see Store.exists."""
        try:
            self.size(key)
        except NotFound:
            return False
        return True

    def size(self, key: str) -> int:
        """Return the object's size in bytes: see Store.size."""
        path = self._path(key)
        with translated("size", key, self._url):
            info = self._fs.info(path)
        if info["type"] != "file":
            raise not_found(key, self._url)
        return int(info["size"])

    def modified(self, key: str) -> datetime:
        """Return when the object was last written, by the file system's clock: see Dated.modified."""
        path = self._path(key)
        self.size(key)  # a folder has a time, too
        with translated("size", key, self._url):
            return self._fs.modified(path).astimezone(UTC)

    def list(self, prefix: str, after: str | None = None) -> Iterator[str]:
        """Iterate over the keys that begin with a string: see Store.list."""
        check_prefix(prefix)
        folder = prefix.rpartition("/")[0]
        with translated("list", prefix, self._url):
            paths = self._fs.find(f"{self._root}/{folder}" if folder else self._root)
        keys = (path[len(self._root) + 1 :] for path in paths)
        return iter(
            sorted(
                key
                for key in keys
                if key.startswith(prefix) and (after is None or key > after) and key_problem(key) is None
            )
        )

    def delete(self, key: str) -> None:
        """Remove an object if it is there: see Store.delete."""
        path = self._path(key)
        with translated("delete", key, self._url):
            try:
                self._fs.rm_file(path)
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                return

    def _path(self, key: str) -> str:
        """Return the file system's path of a valid key."""
        check_key(key)
        return f"{self._root}/{key}"
