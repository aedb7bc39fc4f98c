"""A store in this process's memory, for tests and for trying things out. Nothing outlives the process.

All of its stores share one name space, as fsspec's memory file system does: the same URL sees the same data.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Container, Iterator
from datetime import datetime
from typing import Final

from fsspec.implementations.memory import MemoryFileSystem  # type: ignore[import-untyped]

from pulse_registry.errors import AlreadyExists
from pulse_registry.store.base import MOST_WHOLE_BYTES, Body, ByteRange, body_views
from pulse_registry.store.fsspec_store import FsspecStore
from pulse_registry.store.keys import check_key
from pulse_registry.store.os_errors import not_found, translated

# One for all instances, as their data is one; fsspec's own class takes no lock.
_LOCK: Final = threading.RLock()
# A child that is forked off while another thread holds it could never take it.
os.register_at_fork(before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_LOCK.release)


class MemoryStore(FsspecStore):
    """A Store in memory, shared by all instances of this process with the same name."""

    def __init__(self, name: str) -> None:
        """Open the store of a name, which need not exist yet.

        Args:
            name: a name, or a path of names below one another; valid as a key is.

        Raises:
            InvalidArgument: the name is not valid.
        """
        check_key(name)
        system = MemoryFileSystem()
        self._objects: Container[str] = system.store
        super().__init__(system, root=f"/{name}", url=f"memory://{name}")

    def get(self, key: str, byte_range: ByteRange | None = None, *, max_bytes: int = MOST_WHOLE_BYTES) -> bytes:
        """Return an object's bytes, or those of a range: see Store.get."""
        with _LOCK:
            self._find(key)
            return super().get(key, byte_range, max_bytes=max_bytes)

    def put(self, key: str, data: Body, *, if_absent: bool = False) -> None:
        """Write an object, all or nothing: see Store.put."""
        path = self._path(key)
        content = b"".join(body_views(data))
        with _LOCK, translated("put", key, self.url):
            if if_absent and self.exists(key):
                raise AlreadyExists(f"object {key!r} is already in {self.url}")
            self._refuse_object_as_folder(key)
            self._fs.pipe_file(path, content)

    def size(self, key: str) -> int:
        """Return the object's size in bytes: see Store.size."""
        with _LOCK:
            self._find(key)
            return super().size(key)

    def modified(self, key: str) -> datetime:
        """Return when the object was last written, by this process's clock: see Dated.modified."""
        with _LOCK:
            return super().modified(key)

    def list(self, prefix: str, after: str | None = None) -> Iterator[str]:
        """Iterate over the keys that begin with a string, as they were at the call: see Store.list."""
        with _LOCK:
            return super().list(prefix, after)

    def delete(self, key: str) -> None:
        """Remove an object if it is there: see Store.delete."""
        with _LOCK:
            super().delete(key)

    def _find(self, key: str) -> None:
        """Raise NotFound at once: the file system would look through every object for a folder of that name."""
        if self._path(key) not in self._objects:
            raise not_found(key, self.url)

    def _refuse_object_as_folder(self, key: str) -> None:
        """Raise NotADirectoryError if a folder of the key is an object."""
        folder = key.rpartition("/")[0]
        while folder:
            if self.exists(folder):
                raise NotADirectoryError(folder)
            folder = folder.rpartition("/")[0]
