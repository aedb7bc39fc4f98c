"""The put of a record at its number: once, whatever answers are lost."""

from __future__ import annotations

import math

from pulse_registry.errors import AlreadyExists, NotFound, StoreUnavailable
from pulse_registry.format import keys
from pulse_registry.log.documents import read_document
from pulse_registry.store import Store
from pulse_registry.store.wrappers.retry import retrying_at_most


def put_record(store: Store, seq: int, sealed: bytes) -> bool:
    """Put a sealed record if its number is free; tell whether the log has it there now, or another one.

    Args:
        store: scoped to the log's folder.
        seq: its number.
        sealed: its bytes.

    Raises:
        StoreUnavailable: it may have landed, or land yet; send it again.
    """
    key = keys.record_key(seq)
    try:
        store.put(key, sealed, if_absent=True)
    except (AlreadyExists, StoreUnavailable) as error:
        # Taken, perhaps by this very put, whose answer was lost: the store knows. If it was away, time is spent.
        spent = isinstance(error, StoreUnavailable)
        try:
            with retrying_at_most(0.0 if spent else math.inf):
                return read_document(store, key) == sealed
        except (NotFound, StoreUnavailable) as failure:
            if spent:
                raise error from None
            if isinstance(failure, StoreUnavailable):
                raise
            raise StoreUnavailable(f"{store.url}: record {seq} is said to exist and not to; send it again") from error
    return True
