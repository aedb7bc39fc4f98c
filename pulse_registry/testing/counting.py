"""A store that keeps a ledger of the calls made through it: what a run costs in requests and bytes."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from datetime import datetime

from pulse_registry.store.base import MOST_WHOLE_BYTES, Store, Verb
from pulse_registry.store.body import Body, body_size
from pulse_registry.store.checks import ByteRange
from pulse_registry.store.wrappers.wrapper import WrapperStore


class CountingStore(WrapperStore):
    """Counts calls, whether they succeed or not, and the bytes of those that do. Thread-safe.

    Attributes:
        calls: number of calls by verb.
        bytes_read: bytes that `get` returned.
        bytes_written: bytes that `put` wrote.
        ledger: (verb, key) of each call, in order; for `list` the prefix stands for the key.
    """

    def __init__(self, store: Store) -> None:
        """Wrap a store, with an empty ledger."""
        super().__init__(store)
        self._lock = threading.Lock()
        self.reset()

    def reset(self) -> None:
        """Empty the ledger."""
        with self._lock:
            self.calls: Counter[Verb] = Counter()
            self.bytes_read = 0
            self.bytes_written = 0
            self.ledger: list[tuple[Verb, str]] = []

    def get(self, key: str, byte_range: ByteRange | None = None, *, max_bytes: int = MOST_WHOLE_BYTES) -> bytes:
        """Return an object's bytes, or those of a range, and count them."""
        self._note("get", key)
        data = super().get(key, byte_range, max_bytes=max_bytes)
        with self._lock:
            self.bytes_read += len(data)
        return data

    def put(self, key: str, data: Body, *, if_absent: bool = False) -> None:
        """Write an object and count its bytes."""
        self._note("put", key)
        super().put(key, data, if_absent=if_absent)
        size = body_size(data)  # only now, as what grows does so while it is stored
        with self._lock:
            self.bytes_written += size

    def exists(self, key: str) -> bool:
        """Tell whether the object is there, and count the call."""
        self._note("exists", key)
        return super().exists(key)

    def size(self, key: str) -> int:
        """Return the object's size, and count the call."""
        self._note("size", key)
        return super().size(key)

    def list(self, prefix: str, after: str | None = None) -> Iterator[str]:
        """Iterate over keys; one call, however many keys come."""
        self._note("list", prefix)
        return super().list(prefix, after)

    def folders(self, prefix: str, after: str | None = None) -> Iterator[str]:
        """Iterate over folders; one call, however many come. Counted as `list`, which is the same request."""
        self._note("list", prefix)
        return self._store.folders(prefix, after)

    def delete(self, key: str) -> None:
        """Remove an object, and count the call."""
        self._note("delete", key)
        super().delete(key)

    def modified(self, key: str) -> datetime:
        """Return when the object was last written: see Store.modified. Counted as `size`, which is the same request."""
        self._note("size", key)
        return super().modified(key)

    def _note(self, verb: Verb, key: str) -> None:
        with self._lock:
            self.calls[verb] += 1
            self.ledger.append((verb, key))
