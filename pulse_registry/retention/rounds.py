"""Retention of a run's outer rounds: what leads to the last checkpoint but one may go, and what counts for nothing.

Members that read it meanwhile begin at a checkpoint instead. As with versions, a record comes first, and the objects go
when that is older than the grace time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import islice
from typing import Any, Final

from pulse_registry.errors import NotFound
from pulse_registry.format import keys
from pulse_registry.log import StoreClock
from pulse_registry.outer.checkpoint_turn import writer_of
from pulse_registry.outer.log import FOLDER, OuterLog
from pulse_registry.outer.state import OuterState
from pulse_registry.process.parallel import Map
from pulse_registry.retention.policy import RetentionPolicy
from pulse_registry.retention.survey import BATCH, MOST
from pulse_registry.store import PrefixStore, Store
from pulse_schemas.outer import DeleteRoundsRecord, RetireRoundsRecord

_SNAPSHOTS_KEPT: Final = 2


class Fate(StrEnum):
    """What becomes of a stored object of outer rounds."""

    KEPT = "kept"
    RETIRED = "retired"
    ORPHAN = "orphan"


@dataclass(frozen=True, slots=True)
class RoundsGc:
    """What a garbage collection did to a run's outer rounds, or would do.

    Attributes:
        round: what leads to it was retired; 0: nothing was.
        retired: objects retired now.
        deleted: objects deleted, which were retired before, or are orphans.
        orphans: of these, objects that no record that counts names, and none can any more.
        waiting: objects that were retired for less than the grace time.
        snapshots: old snapshots of the log deleted.
    """

    round: int
    retired: int
    deleted: int
    orphans: int
    waiting: int
    snapshots: int


def fate(state: OuterState, key: str, retired: int) -> Fate:
    """Return what becomes of an object, by its key, if what leads to a round is retired.

    Kept is, too, what the state can't tell of, and what a record may name yet.
    """
    found = keys.outer_object(key)
    if found is None:
        return Fate.KEPT
    kind, number = found
    if number < retired or (number == retired and kind != "checkpoint"):
        return Fate.RETIRED
    named = _named(state, kind, number)
    return Fate.KEPT if named is None or _place(kind, key) in named else Fate.ORPHAN


def needed_versions(state: OuterState, cells: int) -> Mapping[int, str]:
    """Return the versions of the run that outer rounds need, and why.

    These are the ones of the last two checkpoints, and of those that may be under way; until there are two, the one
    that rounds began with.
    """
    if state.start is None:
        return {}
    first, newest = state.start.version, [record.round for record in state.checkpoints[-2:]]
    needed = {first + number: f"of the checkpoint of outer round {number}" for number in newest}
    if len(newest) < 2:
        needed[first + state.begun] = "outer rounds began with it"
    for closed in state.closed:
        if closed.number > max(newest, default=0) and writer_of(state, closed, cells) is not None:
            needed.setdefault(first + closed.number, f"a checkpoint of outer round {closed.number} may be under way")
    return needed


class RoundsCollector:
    """Collects the garbage of one run's outer rounds; for one thread at a time. It may be killed anywhere."""

    def __init__(self, store: Store, log: OuterLog, clock: StoreClock, *, each: Map = map) -> None:
        """Prepare; no I/O yet.

        Args:
            store: scoped to the run; the bucket itself.
            log: of its outer rounds.
            clock: the store's.
            each: how to make many requests: ``map``, or a parallel one.
        """
        self._store, self._log, self._clock, self._each = PrefixStore(store, FOLDER), log, clock, each

    def state(self) -> OuterState:
        """Return the newest state; empty of a run without outer rounds: then there is nothing to collect.

        Raises:
            CorruptObject, UnsupportedFormat, Untrusted, StoreUnavailable: the log can't be read.
        """
        return self._log.refresh()

    def collect(self, policy: RetentionPolicy, now: datetime, *, dry_run: bool) -> RoundsGc:
        """Retire and delete what may go; with ``dry_run``, only look.

        Raises:
            Untrusted: the rounds are signed, and what is to be written would not be believed.
            AccessDenied, StoreUnavailable: the store did not do it; what was done stays done: run it again.
        """
        state = self._log.refresh()
        old = now - timedelta(seconds=policy.grace_seconds)
        until = max((round_ for round_, seq in state.retirements.items() if self._is_older(seq, old)), default=0)
        until = max(until, state.deleted)
        wanted = max(state.spare, state.retired)
        retired, waiting, deletable, orphans, more = 0, 0, list[str](), list[str](), False
        for key in self._store.list(keys.OBJECTS):
            match fate(state, key, wanted):
                case Fate.RETIRED if fate(state, key, until) is Fate.RETIRED:
                    deletable.append(key)
                case Fate.RETIRED if fate(state, key, state.retired) is Fate.RETIRED:
                    waiting += 1
                case Fate.RETIRED:
                    retired += 1
                case Fate.ORPHAN:
                    orphans.append(key)
            if more := len(deletable) + len(orphans) >= MOST:
                break
        orphans = self._old(orphans, now - timedelta(seconds=policy.orphan_seconds))
        listed = (key for key in islice(self._store.list(keys.SNAPSHOTS), MOST) if keys.snapshot_seq(key) is not None)
        snapshots = sorted(listed)[:-_SNAPSHOTS_KEPT]
        if not dry_run:
            self._retire()
            for _ in self._each(self._store.delete, [*deletable, *orphans, *snapshots]):
                pass
            if not more:
                self._tell_deleted(until)
        deleted = len(deletable) + len(orphans)
        return RoundsGc(wanted if retired else 0, retired, deleted, len(orphans), waiting, len(snapshots))

    def _retire(self) -> None:
        def wanted(state: OuterState, common: dict[str, Any]) -> RetireRoundsRecord | None:
            return RetireRoundsRecord(**common, round=state.spare) if state.spare > state.retired else None

        self._log.append(wanted)

    def _tell_deleted(self, until: int) -> None:
        def wanted(state: OuterState, common: dict[str, Any]) -> DeleteRoundsRecord | None:
            return DeleteRoundsRecord(**common, round=until) if until in state.retirements else None

        self._log.append(wanted)

    def _is_older(self, seq: int, moment: datetime) -> bool:
        return self._clock.written(keys.OUTER + keys.record_key(seq)) <= moment

    def _old(self, orphans: Iterable[str], moment: datetime) -> list[str]:
        """Return those of some objects that are old enough to be a dead member's."""

        def is_old(key: str) -> bool:
            try:
                return self._clock.written(keys.OUTER + key) <= moment
            except NotFound:
                return False  # another collector was faster

        found, waiting = list[str](), iter(orphans)
        while batch := [*islice(waiting, BATCH)]:
            found += (key for key, old in zip(batch, self._each(is_old, batch), strict=True) if old)
        return found


def _named(state: OuterState, kind: str, number: int) -> set[str] | None:
    """Return the objects of a kind and a round that records name which count: of a checkpoint, its folder.

    None: one may be named yet, or the state can't tell.
    """
    if kind == "checkpoint":
        found = {_place(kind, record.object.key) for record in state.checkpoints if record.round == number}
        newest = state.checkpoints[-1].round if state.checkpoints else 0
        return found if found or number <= newest else None
    if number <= state.dropped or number >= state.open:
        return None
    if kind == "merged":
        return {state.merged[number].object.key} if number in state.merged else None
    closed = state.ended(number)
    parts = () if closed is None else closed.contributions.values()
    return {part.object.key for part in parts if part.object is not None}


def _place(kind: str, key: str) -> str:
    return key.rpartition("/")[0] if kind == "checkpoint" else key
