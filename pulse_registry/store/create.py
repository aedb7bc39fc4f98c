"""Create an object under a unique key, by a conditional put, so that a writer needs no right to replace anything."""

from __future__ import annotations

from pulse_registry.errors import AlreadyExists
from pulse_registry.store.base import Store
from pulse_registry.store.body import Body, body_size


def create(store: Store, key: str, data: Body) -> None:
    """Put an object whose key says whose it is, by a write id or by the hash of its bytes. Idempotent.

    Such a key is never taken by something else: if it is taken by as many bytes, an earlier try was not in vain, and
    only its answer was lost.

    Raises:
        AlreadyExists: the key is taken by an object of another size.
        StoreUnavailable: as `Store.put`.
    """
    try:
        store.put(key, data, if_absent=True)
    except AlreadyExists:
        if store.size(key) != body_size(data):
            raise
