"""Survey of a run's stored objects: orphans, which no record names, and retired ones to delete. One LIST."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, Final

from pulse_registry.errors import NotFound
from pulse_registry.format import keys
from pulse_registry.format.keyframe import INDEX_NAME
from pulse_registry.log import RunState, StoreClock
from pulse_registry.process.parallel import Map
from pulse_registry.retention.plan import can_be_named

if TYPE_CHECKING:
    from pulse_registry.store import Store

BATCH: Final = 1000
"""Objects that are asked for, or deleted, between two looks at the log."""
MOST: Final = 100_000
"""Objects of a kind that one run takes; the rest is left to the next one, so that memory stays bounded."""


@dataclass(slots=True)
class Survey:
    """Objects that a survey found.

    Attributes:
        orphans: old objects that no record names, and one still could; patches in parts by the keys of their heads,
            shared bases to which the run refers by those of their indexes.
        orphan_bytes: theirs.
        deletable: objects that can be deleted: retired for longer than the grace time, or old and never to be named;
            references to shared bases that were retired so.
        waiting: how many more were retired, but not so long ago.
        more: whether there is more than one run takes.
    """

    orphans: list[str] = field(default_factory=list)
    orphan_bytes: int = 0
    deletable: list[str] = field(default_factory=list)
    waiting: int = 0
    more: bool = False


def survey(
    store: Store, state: RunState, clock: StoreClock, *, until: int, orphans_until: datetime, each: Map = map
) -> Survey:
    """Look at every object of a run: a LIST, and two HEADs for each that no record names.

    Args:
        store: the store, scoped to the run's prefix.
        state: the run as it was before this call, so that what is not in it is new, or an orphan.
        clock: the store's.
        until: what records up to this one retired can be deleted.
        orphans_until: what is younger may be named yet.
        each: how to ask for many objects: `map`, or a parallel one.

    Raises:
        AccessDenied, StoreUnavailable: the store did not do it.
    """
    found = Survey()
    _references(store, state, _older(clock, orphans_until), until, found)
    unnamed = _retired_sorted_out(store.list(keys.OBJECTS), state, until, found)
    while batch := list(islice(unnamed, BATCH)):
        old = [key for key, is_old in zip(batch, each(_older(clock, orphans_until), batch), strict=True) if is_old]
        orphans = [key for key in old if can_be_named(state, key)]
        # A patch whose parts lie there is one orphan, with a head or without: its key can be named no more then.
        found.orphans += dict.fromkeys(key for key in map(keys.named_key, orphans) if key not in found.orphans[-1:])
        found.orphan_bytes += sum(each(lambda key: _size(store, key), orphans))
        found.deletable += (key for key in old if not can_be_named(state, key))
        if len(found.orphans) >= MOST:
            found.more = True
            break
    return found


def _retired_sorted_out(listed: Iterable[str], state: RunState, until: int, found: Survey) -> Iterator[str]:
    """Yield the keys that no record names or retired; note the others."""
    for key in listed:
        # Files are named by their content: a push that is on its way may name what nothing names now.
        if state.is_live(key) or key.startswith(keys.FILES):
            continue
        seq = state.retired_keys.get(keys.named_key(key))
        if seq is None:
            yield key
        elif seq > until:
            found.waiting += 1
        elif len(found.deletable) < MOST:
            found.deletable.append(key)
        else:
            found.more = True


def _references(store: Store, state: RunState, older: Callable[[str], bool], until: int, found: Survey) -> None:
    """Look at the run's references to shared bases."""
    for key in islice(store.list(keys.REFERENCES), MOST):
        base = keys.reference_of(key)
        if base is None:
            continue
        retired = state.bases.get(base)
        if retired is not None and retired <= until:
            found.deletable.append(key)
        elif retired is not None:
            found.waiting += 1
        elif base not in state.bases and older(key):
            found.orphans.append(keys.base_key(base, INDEX_NAME))


def _older(clock: StoreClock, moment: datetime) -> Callable[[str], bool]:
    def older(key: str) -> bool:
        try:
            return clock.written(key) <= moment
        except NotFound:
            return False  # another collector was faster

    return older


def _size(store: Store, key: str) -> int:
    try:
        return store.size(key)
    except NotFound:
        return 0


def first_younger(seqs: Sequence[int], clock: StoreClock, now: datetime, seconds: float) -> int:
    """Return how many of some records, given in order, are older than ``seconds``: a HEAD for each of some log2(n).

    Records are written one after the other, so that their times rise.

    Raises:
        NotFound, AccessDenied, StoreUnavailable: a record's time can't be had.
    """
    low, high = 0, len(seqs)
    limit = now - timedelta(seconds=seconds)
    while low < high:
        middle = (low + high) // 2
        if clock.written(keys.record_key(seqs[middle])) <= limit:
            low = middle + 1
        else:
            high = middle
    return low
