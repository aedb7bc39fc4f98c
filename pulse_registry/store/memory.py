"""A store in this process's memory, for tests and for trying things out. Nothing outlives the process.

All of its stores share one name space: the same URL sees the same data.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

from pulse_registry.store.base import MOST_WHOLE_BYTES, Store
from pulse_registry.store.body import Body, body_views
from pulse_registry.store.checks import (
    ByteRange,
    already_exists,
    check_range,
    check_whole,
    folder_of_another,
    not_found,
    too_short,
)
from pulse_registry.store.keys import check_key, check_prefix, key_problem

OBJECTS: Final[dict[str, tuple[bytes, datetime]]] = {}
"""All objects of this process, with the time at which each was written, under ``name/key``."""
# One for all instances, as their data is one.
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
        self._folder = f"{name}/"
        self.url = f"memory://{name}"

    def get(self, key: str, byte_range: ByteRange | None = None, *, max_bytes: int = MOST_WHOLE_BYTES) -> bytes:
        """Return an object's bytes, or those of a range: see Store.get."""
        check_key(key)
        if byte_range is not None:
            check_range(key, byte_range)
        data, _ = self._find(key)
        if byte_range is None:
            check_whole(key, self.url, len(data), max_bytes)
            return data
        if byte_range[1] > len(data):
            raise too_short(key, self.url, byte_range, len(data))
        return data[slice(*byte_range)]

    def put(self, key: str, data: Body, *, if_absent: bool = False) -> None:
        """Write an object, all or nothing: see Store.put."""
        check_key(key)
        content = b"".join(body_views(data))
        with _LOCK:
            if if_absent and self._folder + key in OBJECTS:
                raise already_exists(key, self.url)
            self._refuse_object_as_folder(key)
            OBJECTS[self._folder + key] = content, datetime.now(UTC)

    def size(self, key: str) -> int:
        """Return the object's size in bytes: see Store.size."""
        check_key(key)
        return len(self._find(key)[0])

    def modified(self, key: str) -> datetime:
        """Return when the object was last written, by this process's clock: see Store.modified."""
        check_key(key)
        return self._find(key)[1]

    def list(self, prefix: str, after: str | None = None) -> Iterator[str]:
        """Iterate over the keys that begin with a string, as they were at the call: see Store.list."""
        check_prefix(prefix)
        start, length = self._folder + prefix, len(self._folder)
        with _LOCK:
            keys = [path[length:] for path in OBJECTS if path.startswith(start)]
        return iter(sorted(key for key in keys if (after is None or key > after) and key_problem(key) is None))

    def folders(self, prefix: str, after: str | None = None) -> Iterator[str]:
        """Iterate over the folders behind a prefix, as they were at the call: see Store.folders."""
        at = len(prefix)
        names = {key[at:].partition("/")[0] for key in self.list(prefix) if "/" in key[at:]}
        folders = sorted(f"{prefix}{name}/" for name in names)
        return (folder for folder in folders if after is None or folder > after)

    def delete(self, key: str) -> None:
        """Remove an object if it is there: see Store.delete."""
        check_key(key)
        with _LOCK:
            OBJECTS.pop(self._folder + key, None)

    def _refuse_object_as_folder(self, key: str) -> None:
        """Raise InvalidArgument if a folder of the key is an object, as in a file store."""
        folder = key.rpartition("/")[0]
        while folder:
            if self._folder + folder in OBJECTS:
                raise folder_of_another(key, self.url)
            folder = folder.rpartition("/")[0]

    def _find(self, key: str) -> tuple[bytes, datetime]:
        try:
            return OBJECTS[self._folder + key]
        except KeyError:
            raise not_found(key, self.url) from None
