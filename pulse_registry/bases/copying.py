"""Copy of an object to another key or store: streamed, and checked on the way, so that nothing damaged is copied."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from blake3 import blake3

from pulse_registry.errors import AlreadyExists, CorruptObject, about
from pulse_registry.store import Store, Stream
from pulse_schemas import ObjectRef

_RANGE_BYTES: Final = 8 << 20


class CheckedCopy(Stream):
    """An object's bytes, range by range; the last one comes only if all of them hash to what was committed."""

    def __init__(self, store: Store, item: ObjectRef) -> None:
        """Read an object of a store; no I/O yet."""
        self.nbytes = item.size
        self._store, self._item = store, item

    def __iter__(self) -> Iterator[bytes]:
        """Begin anew.

        Raises:
            CorruptObject: it is not what was committed.
            NotFound, AccessDenied, StoreUnavailable: as `Store.get`.
        """
        hasher, item = blake3(), self._item
        for start in range(0, item.size, _RANGE_BYTES):
            stop = min(start + _RANGE_BYTES, item.size)
            data = self._store.get(item.key, (start, stop))
            hasher.update(data)
            if stop == item.size and hasher.hexdigest() != item.blake3:
                with about(item.key):
                    raise CorruptObject(f"{item.key}: its BLAKE3 is {hasher.hexdigest()}, {item.blake3} was committed")
            yield data


def copy_if_absent(source: Store, item: ObjectRef, target: Store, key: str) -> None:
    """Copy an object to a key, unless it is there.

    Raises:
        CorruptObject: it is not what was committed; or what lies under the key has another size.
        NotFound, AccessDenied, StoreUnavailable: as the stores.
    """
    if not target.exists(key):
        with suppress(AlreadyExists):  # another was faster; or this one was, and the answer was lost
            target.put(key, CheckedCopy(source, item), if_absent=True)
    size = target.size(key)
    if size != item.size:
        with about(key):
            raise CorruptObject(
                f"{key}: {size:,} bytes, where {item.size:,} of BLAKE3 {item.blake3} belong: delete it, and try again"
            )
