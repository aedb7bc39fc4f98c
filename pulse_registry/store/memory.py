"""A store in this process's memory, for tests and for trying things out. Nothing outlives the process.

All of its stores share one name space, that of fsspec's memory file system: the same URL sees the same data.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final

from fsspec.implementations.memory import MemoryFileSystem  # type: ignore[import-untyped]

from pulse_registry.store.base import MOST_WHOLE_BYTES, Store
from pulse_registry.store.body import Body, body_views
from pulse_registry.store.checks import ByteRange, already_exists, check_range, check_whole, not_found, too_short
from pulse_registry.store.keys import check_key, check_prefix, key_problem
from pulse_registry.store.os_errors import translated

# One for all instances, as their data is one; fsspec's own class takes no lock.
_LOCK: Final = threading.RLock()
# A child that is forked off while another thread holds it could never take it.
os.register_at_fork(before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_LOCK.release)


class MemoryStore(Store):
    """A Store in memory, shared by all instances of this process with the same name."""

    def __init__(self, name: str) -> None:
        """Open the store of a name, which need not exist yet.

        Args:
            name: a name, or a path of names below one another; valid as a key is.

        Raises:
            InvalidArgument: the name is not valid.
        """
        check_key(name)
        self._files = MemoryFileSystem()
        self._folder = f"/{name}/"
        self.url = f"memory://{name}"

    def get(self, key: str, byte_range: ByteRange | None = None, *, max_bytes: int = MOST_WHOLE_BYTES) -> bytes:
        """Return an object's bytes, or those of a range: see Store.get."""
        check_key(key)
        if byte_range is not None:
            check_range(key, byte_range)
        with _LOCK:
            file = self._file(key)
            if byte_range is None:
                check_whole(key, self.url, file.size, max_bytes)
            start, stop = byte_range or (0, file.size)
            if stop > file.size:
                raise too_short(key, self.url, (start, stop), file.size)
            return bytes(file.getbuffer()[start:stop])

    def put(self, key: str, data: Body, *, if_absent: bool = False) -> None:
        """Write an object, all or nothing: see Store.put."""
        check_key(key)
        content = b"".join(body_views(data))
        with _LOCK, translated("put", key, self.url):
            if if_absent and self.exists(key):
                raise already_exists(key, self.url)
            self._refuse_object_as_folder(key)
            self._files.pipe_file(self._folder + key, content)

    def exists(self, key: str) -> bool:
        """Tell whether the object is there: see Store.exists."""
        check_key(key)
        return self._folder + key in self._files.store

    def size(self, key: str) -> int:
        """Return the object's size in bytes: see Store.size."""
        check_key(key)
        with _LOCK:
            return int(self._file(key).size)

    def modified(self, key: str) -> datetime:
        """Return when the object was last written, by this process's clock: see Store.modified."""
        check_key(key)
        with _LOCK:
            written: datetime = self._file(key).modified
            return written.astimezone(UTC)

    def list(self, prefix: str, after: str | None = None) -> Iterator[str]:
        """Iterate over the keys that begin with a string, as they were at the call: see Store.list."""
        check_prefix(prefix)
        with _LOCK:
            start, length = self._folder + prefix, len(self._folder)
            keys = [path[length:] for path in self._files.store if path.startswith(start)]
        return iter(sorted(key for key in keys if (after is None or key > after) and key_problem(key) is None))

    def delete(self, key: str) -> None:
        """Remove an object if it is there: see Store.delete."""
        check_key(key)
        with _LOCK:
            self._files.store.pop(self._folder + key, None)

    def _file(self, key: str) -> Any:
        try:
            return self._files.store[self._folder + key]
        except KeyError:
            raise not_found(key, self.url) from None

    def _refuse_object_as_folder(self, key: str) -> None:
        """Raise NotADirectoryError if a folder of the key is an object."""
        folder = key.rpartition("/")[0]
        while folder:
            if self.exists(folder):
                raise NotADirectoryError(folder)
            folder = folder.rpartition("/")[0]
