"""Size limits of a run's documents, by kind, and the one way to read one: no more of it is ever taken into memory.

What is longer is none of ours, whatever it is sealed or signed with; so writers refuse to write it. Seals and
signatures cover a whole document, and can't be looked at before it was read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pulse_registry.format import keys

if TYPE_CHECKING:
    from pulse_registry.store import Store

SMALL: Final = 64 << 10
"""Hints, countersignatures, leases, requests: hundreds of bytes."""
RECORD: Final = 8 << 20
"""The record of a keyframe of 2 TB takes 316 KB, the longest `retire` record 2 MB."""
SNAPSHOT: Final = 1 << 30
"""Of formats 2 to 4, where a version and its patch take 586 bytes; one of segments has what was retired, and tags."""
SEGMENT: Final = 64 << 20
"""Rows are cut every 16 MiB; the last ones before a cut may have 9 MiB, and numbers beside them."""
LOG: Final = 2 << 30
"""Of all that a log says and has not forgotten, as a snapshot would say it. A reader takes ten times as much memory."""
LAYOUT: Final = 32 << 20
"""A layout of 10^12 cells takes 6.6 MB."""


def most_bytes(key: str) -> int:
    """Return how many bytes the document under a key of a run, or of its outer rounds, has at most.

    Of a key that is no document's (objects are read by ranges, which records bound) it is the least of all bounds.
    """
    key = key.removeprefix(keys.OUTER)
    if keys.record_seq(key) is not None:
        return RECORD
    if keys.snapshot_seq(key) is not None:
        return SNAPSHOT
    if keys.segment_of(key) is not None:
        return SEGMENT
    return LAYOUT if key.startswith(keys.LAYOUTS) else SMALL


def read_document(store: Store, key: str) -> bytes:
    """Return the bytes of a run's document, unchecked.

    Args:
        store: scoped to the run.
        key: of a document.

    Raises:
        CorruptObject: it is longer than such a document can be (`most_bytes`); no memory was taken for it.
        NotFound, AccessDenied, StoreUnavailable: as `Store.get`.
    """
    return store.get(key, max_bytes=most_bytes(key))
