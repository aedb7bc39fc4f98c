"""Layout documents of a run: read, and checked against the id that names them."""

from __future__ import annotations

from functools import partial

from pulse_registry.errors import CorruptObject, UnsupportedFormat
from pulse_registry.format.keys import layout_key
from pulse_registry.log.documents import LAYOUT
from pulse_registry.store import Store
from pulse_registry.store.verified_read import verified
from pulse_schemas import Fault, Layout, SchemaError


def fetch_layout_bytes(store: Store, layout_id: str) -> bytes:
    """Fetch the bytes of a layout, which hash to its id."""
    key = layout_key(layout_id)
    read = partial(store.get, key, max_bytes=LAYOUT)
    return verified(read, bytes.fromhex(layout_id), f"{key}: the BLAKE3 of its bytes")


def fetch_layout(store: Store, layout_id: str) -> Layout:
    """Fetch a layout."""
    key = layout_key(layout_id)
    try:
        return Layout.parse(fetch_layout_bytes(store, layout_id))
    except SchemaError as error:
        kind = UnsupportedFormat if error.fault is Fault.UNSUPPORTED else CorruptObject
        raise kind(f"{key}: {error}") from error
