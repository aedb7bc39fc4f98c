"""Cache of small documents that never change once they are stored: records, snapshots, layouts."""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from typing import Final

from blake3 import blake3

from pulse_registry.store.base import MOST_WHOLE_BYTES, Store
from pulse_registry.store.body import Body, body_views
from pulse_registry.store.checks import ByteRange, check_whole
from pulse_registry.store.wrappers.wrapper import WrapperStore
from pulse_schemas import SchemaError
from pulse_schemas.base import sealed_body

_SEALED: Final = re.compile(r"[^/]+/(outer/)?log/(snapshots/)?[0-9]{12}\.json")
_LAYOUT: Final = re.compile(r"[^/]+/layouts/([0-9a-f]{64})\.json")


class DocumentStore(WrapperStore):
    """A store of runs that asks for each such document once, and keeps it in bounded memory. Thread-safe.

    It remembers only bytes that fit their seal or their name, so that what was damaged on the way is read again; and a
    record that was put is known at once. That a document is missing is never remembered.
    """

    def __init__(self, store: Store, *, max_bytes: int = 64 << 20, max_document: int = 8 << 20) -> None:
        """Wrap a store.

        Args:
            store: holds all runs.
            max_bytes: of memory for documents; the least recently used go first.
            max_document: a longer one is not remembered.
        """
        super().__init__(store)
        self._max_bytes, self._max_document = max_bytes, max_document
        self._lock = threading.Lock()
        self._known: OrderedDict[str, bytes] = OrderedDict()
        self._nbytes = 0

    def get(self, key: str, byte_range: ByteRange | None = None, *, max_bytes: int = MOST_WHOLE_BYTES) -> bytes:
        """Return an object's bytes, or those of a range: see Store.get."""
        if byte_range is not None:
            return super().get(key, byte_range, max_bytes=max_bytes)
        known = self.known(key)
        if known is not None:
            check_whole(key, self.url, len(known), max_bytes)
            return known
        data = super().get(key, max_bytes=max_bytes)
        self._remember(key, data)
        return data

    def put(self, key: str, data: Body, *, if_absent: bool = False) -> None:
        """Write an object: see Store.put."""
        super().put(key, data, if_absent=if_absent)
        if if_absent and _is_document(key):
            self._remember(key, b"".join(body_views(data)))

    def delete(self, key: str) -> None:
        """Remove an object: see Store.delete."""
        self.forget(key)
        super().delete(key)
        self.forget(key)  # whoever read it meanwhile has remembered it

    def forget(self, key: str) -> None:
        """Remember a document no more: the next one to ask for it reads it anew."""
        with self._lock:
            self._nbytes -= len(self._known.pop(key, b""))

    def known(self, key: str) -> bytes | None:
        """Return a document if it is in memory; asks nothing of the store."""
        with self._lock:
            data = self._known.get(key)
            if data is not None:
                self._known.move_to_end(key)
            return data

    def _remember(self, key: str, data: bytes) -> None:
        if len(data) > self._max_document or not _is_intact(key, data):
            return
        with self._lock:
            self._nbytes += len(data) - len(self._known.pop(key, b""))
            self._known[key] = data
            while self._nbytes > self._max_bytes:
                _, oldest = self._known.popitem(last=False)
                self._nbytes -= len(oldest)


def _is_document(key: str) -> bool:
    return _SEALED.fullmatch(key) is not None or _LAYOUT.fullmatch(key) is not None


def _is_intact(key: str, data: bytes) -> bool:
    layout = _LAYOUT.fullmatch(key)
    if layout is not None:
        return blake3(data).hexdigest() == layout.group(1)
    if _SEALED.fullmatch(key) is None:
        return False
    try:
        sealed_body(data)
    except SchemaError:
        return False
    return True
