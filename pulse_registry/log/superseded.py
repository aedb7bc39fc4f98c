"""Snapshots that newer ones have taken the place of, and segments that nobody needs for them any more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final, Self

from pulse_registry.errors import CorruptObject, NotFound, UnsupportedFormat
from pulse_registry.format import keys
from pulse_registry.log.documents import read_document
from pulse_registry.log.gap import MOST_LISTED
from pulse_registry.log.segments import segment_key
from pulse_registry.log.unsealing import unsealed_snapshot
from pulse_registry.store.verified_read import checked
from pulse_schemas import SegmentedSnapshot, open_sealed

if TYPE_CHECKING:
    from pulse_registry.store import Store

KEPT: Final = 2
"""The newest snapshots of each key, and of none: a reader may be about to open one, and may believe no other key."""
TRIES: Final = 8
"""Snapshots that a reader looks at: thousands that are damaged, or that nobody signed, would be fetched in vain."""
_BOTH: Final = "log/s"
"""What the keys of snapshots and of segments begin with: one listing has both."""


@dataclass(frozen=True, slots=True)
class Listed:
    """The snapshots of a run, by their numbers, rising, and the keys of its segments."""

    snapshots: tuple[int, ...]
    segments: frozenset[str]

    @classmethod
    def of(cls, listing: Iterable[str]) -> Self:
        """Sort the keys of a listing; what is neither is left alone."""
        found = [*islice(listing, MOST_LISTED)]
        snapshots = sorted(seq for key in found if (seq := keys.snapshot_seq(key)) is not None)
        return cls(tuple(snapshots), frozenset(key for key in found if keys.segment_of(key) is not None))


def listed(store: Store) -> Listed:
    """List a run's snapshots and segments.

    Raises:
        AccessDenied, StoreUnavailable: the store can't be listed.
    """
    return Listed.of(store.list(_BOTH))


@dataclass(frozen=True, slots=True)
class Told:
    """What of a snapshot counts here: the key that signed it, if one did, and the keys of its segments."""

    signer: str | None
    segments: frozenset[str]


def superseded(store: Store, there: Listed, seq: int, known: dict[int, Told]) -> list[str]:
    """Return the keys that can be deleted: of snapshots that readers need no more, then of segments that none names.

    What is of later records is left alone: who wrote it knows more. A segment that a later snapshot was to be the first
    to name may be one that somebody writes right now.

    Args:
        store: scoped to the run.
        there: what was listed.
        seq: the newest record that the caller knows.
        known: what is known of snapshots, by their numbers; others are read, and added.

    Raises:
        AccessDenied, StoreUnavailable: the store can't be read.
    """
    snapshots = [number for number in there.snapshots if number <= seq]
    kept: list[int] = []
    needed: set[str] = set()
    count: Counter[str | None] = Counter()
    foreign = False
    for number in reversed(snapshots[-TRIES:]):
        try:
            told = known[number] if number in known else known.setdefault(number, _read(store, number))
        except (NotFound, CorruptObject):
            continue  # nobody can open it
        except UnsupportedFormat:
            foreign, told = True, Told("a newer release", frozenset())
        if count[told.signer] < KEPT:
            count[told.signer] += 1
            kept.append(number)
            needed |= told.segments
    old = [keys.snapshot_key(number) for number in snapshots if number not in kept]
    if foreign or not kept:
        return old
    return [*old, *sorted(key for key in there.segments - needed if _first_named(key) <= kept[-1])]


def _read(store: Store, seq: int) -> Told:
    snapshot, sealed = checked(partial(read_document, store, keys.snapshot_key(seq)), unsealed_snapshot)
    signature = open_sealed(sealed).signature
    segments = map(segment_key, snapshot.segments) if isinstance(snapshot, SegmentedSnapshot) else ()
    return Told(None if signature is None else signature.public, frozenset(segments))


def _first_named(key: str) -> int:
    found = keys.segment_of(key)
    return -1 if found is None else found[0]
