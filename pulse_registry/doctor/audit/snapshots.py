"""The audit of a run's snapshots: those that a reader would try can be opened, with all of their segments.

Nothing is lost with one that can't: readers pass it over. Segments that no snapshot names are left out of account: a
writer that stopped between the two left them, and a later one deletes them.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Final

from pulse_registry.doctor.audit.defect import Defect, DefectKind
from pulse_registry.errors import CorruptObject, NotFound, UnsupportedFormat
from pulse_registry.format import keys
from pulse_registry.log import RunState
from pulse_registry.log.documents import read_document
from pulse_registry.log.segmented import state_of
from pulse_registry.log.segments import fetch
from pulse_registry.log.superseded import TRIES, listed
from pulse_registry.log.unsealing import record_with_hash, unsealed_snapshot
from pulse_registry.store.verified_read import checked
from pulse_schemas import Snapshot

if TYPE_CHECKING:
    from pulse_registry.store import Store

_REMEDY: Final = (
    "nothing is lost, but readers open the run at an older snapshot, or from its first record: delete it, and the "
    "segment that is named here as damaged, if one is; the next snapshot takes its place"
)


def snapshot_defects(store: Store, run: str, end: int) -> Iterator[Defect]:
    """Open the snapshots that a reader of a run may try, and yield those that can't be opened.

    Args:
        store: scoped to the run's prefix.
        run: the run's name.
        end: the newest record; snapshots that tell of later ones are not looked at.

    Raises:
        AccessDenied, StoreUnavailable: the store can't be read.
    """
    for seq in [number for number in listed(store).snapshots if number <= end][-TRIES:]:
        key = keys.snapshot_key(seq)
        try:
            _open(store, run, seq)
        except NotFound as error:
            if store.exists(key):  # or a writer has deleted it meanwhile, and its segments
                yield Defect(key, DefectKind.DAMAGED, f"something that it names is not there: {error}", _REMEDY)
        except (CorruptObject, UnsupportedFormat) as error:
            yield Defect.of(key, error, _REMEDY)


def _open(store: Store, run: str, seq: int) -> None:
    """Do what a reader does who opens the run at a snapshot."""
    snapshot, _ = checked(partial(read_document, store, keys.snapshot_key(seq)), unsealed_snapshot)
    if snapshot.run != run or snapshot.seq != seq:
        raise CorruptObject(f"it is snapshot {snapshot.seq} of run {snapshot.run!r}")
    checked(partial(read_document, store, keys.record_key(seq)), partial(record_with_hash, seq, snapshot.last))
    if isinstance(snapshot, Snapshot):
        RunState.from_snapshot(snapshot)
    else:
        state_of(snapshot, fetch(store, run, snapshot.segments, lambda count, name: ThreadPoolExecutor(count, name)))
