"""The base of the stores that wrap another one and add a single ability to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import TypeAlias

from pulse_registry.store.base import MOST_WHOLE_BYTES, Store
from pulse_registry.store.body import Body
from pulse_registry.store.checks import ByteRange
from pulse_registry.store.gateway import Gateway
from pulse_registry.store.presigner import Presigner
from pulse_registry.store.roots import Roots

Listing: TypeAlias = Callable[[str, str | None], Iterator[str]]
"""`list` or `folders` of a store."""


class WrapperStore(Store):
    """A Store that hands every verb on to another one. Subclasses override what they are about.

    `get_into` is not handed on: it reads by `get`, so that a wrapper which watches or changes that one misses no read.
    """

    def __init__(self, store: Store) -> None:
        """Wrap a store."""
        self._store = store
        self.url = store.url

    def __repr__(self) -> str:
        """Show the class and what it wraps."""
        return f"{type(self).__name__}({self._store!r})"

    def get(self, key: str, byte_range: ByteRange | None = None, *, max_bytes: int = MOST_WHOLE_BYTES) -> bytes:
        """Return an object's bytes, or those of a range: see Store.get."""
        return self._store.get(key, byte_range, max_bytes=max_bytes)

    def put(self, key: str, data: Body, *, if_absent: bool = False) -> None:
        """Write an object, all or nothing: see Store.put."""
        self._store.put(key, data, if_absent=if_absent)

    def exists(self, key: str) -> bool:
        """Tell whether the object is there: see Store.exists."""
        return self._store.exists(key)

    def size(self, key: str) -> int:
        """Return the object's size in bytes: see Store.size."""
        return self._store.size(key)

    def list(self, prefix: str, after: str | None = None) -> Iterator[str]:
        """Iterate over the keys that begin with a string: see Store.list."""
        return self._store.list(prefix, after)

    def folders(self, prefix: str, after: str | None = None) -> Iterator[str]:
        """Iterate over the folders behind a prefix: see Store.folders.

        Handed on where `list` is, too: a wrapper that watches or changes `list`, and not this, misses nothing.
        """
        handed_on = type(self).list is WrapperStore.list
        return self._store.folders(prefix, after) if handed_on else super().folders(prefix, after)

    def delete(self, key: str) -> None:
        """Remove an object if it is there: see Store.delete."""
        self._store.delete(key)

    def modified(self, key: str) -> datetime:
        """Return when the object was last written, by the store's clock, if it tells: see Store.modified."""
        return self._store.modified(key)

    def presigner(self) -> Presigner | None:
        """Return what signs requests for this store's objects, or None if the wrapped store can't."""
        return self._store.presigner()

    def gateway(self) -> Gateway | None:
        """Return the service that the wrapped store goes through, or None."""
        return self._store.gateway()

    def roots(self) -> Roots[Store] | None:
        """Return what chooses among the wrapped store's roots, or None."""
        return self._store.roots()
