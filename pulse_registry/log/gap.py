"""Gaps: records that are missing from a log although it went on after them.

To who reads one record after the other, a missing record looks like the end. Records are created in order, so that one
is missing for certain if it is not there when it is asked for after a later one was seen.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final

from pulse_registry.errors import CorruptObject
from pulse_registry.format import keys

if TYPE_CHECKING:
    from pulse_registry.store import Store


MOST_LISTED: Final = 1 << 20
"""Keys of a listing of snapshots, which might have no end: they would be of more records than any log has."""
_NEWEST: Final = 8
"""Snapshots that are told of, however many there are."""


@dataclass(frozen=True, slots=True)
class Beyond:
    """Later records and snapshots that a listing shows.

    Attributes:
        record: number of the next record that is there, None where there is none.
        snapshots: keys of the newest snapshots that fold later records, newest first; not looked for where there is a
            record.
    """

    record: int | None
    snapshots: tuple[str, ...]


def beyond(store: Store, seq: int) -> Beyond:
    """List what a log has beyond record ``seq``; -1 for all of it. Costs a LIST, mostly of one page.

    Raises:
        AccessDenied, StoreUnavailable: the store can't be listed.
    """
    snapshots: deque[str] = deque(maxlen=_NEWEST)
    for key in islice(store.list(keys.LOG, keys.record_key(seq) if seq >= 0 else None), MOST_LISTED):
        number, folded = keys.record_seq(key), keys.snapshot_seq(key)
        if number is not None:
            return Beyond(number, ())
        if folded is not None and folded > seq:
            snapshots.append(key)
    return Beyond(None, tuple(reversed(snapshots)))


def missing(run: str, seq: int, last: int, witness: str) -> CorruptObject:
    """Return the error that records ``seq`` + 1 to ``last`` are missing, as ``witness`` says that they were there."""
    which = f"record {last} is" if last == seq + 1 else f"records {seq + 1} to {last} are"
    end = f"at record {seq}" if seq >= 0 else "before its first record"
    error = CorruptObject(
        f"run {run!r}: {which} missing: the log ends {end}, and {witness}. Write nothing: restore "
        f"{keys.record_key(seq + 1)} first, from the bucket's versioning or a backup (pulse doctor --run {run} says "
        "what is missing)"
    )
    error.key = keys.record_key(seq + 1)
    return error
