"""Deletes at a copy what its records have retired or forgotten, once its own grace time is over by its own clock.

The source's collector deletes there; nobody else may at the copy, whose readers began later than the source's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from pulse_registry.errors import CorruptObject, NotFound
from pulse_registry.format import keys
from pulse_registry.log import RunState, StoreClock
from pulse_registry.log.guard import AnyRecord
from pulse_registry.log.mirror_mark import read_mark
from pulse_registry.mirror.followed_log import FollowedLog, FollowedRounds, FollowedRun
from pulse_registry.outer.state import OuterState
from pulse_registry.process.parallel import Map
from pulse_registry.retention import RetentionPolicy
from pulse_registry.retention.leases import Leases, read_leases
from pulse_registry.retention.plan import can_be_named
from pulse_registry.retention.rounds import Fate, fate
from pulse_registry.retention.survey import first_younger
from pulse_registry.store import PrefixStore, Store
from pulse_schemas import RetireRecord
from pulse_schemas.outer import RestartRecord, RetireRoundsRecord

_BATCH: Final = 1000
"""Objects that are deleted between two looks at what the copy names."""
_RETIRING: Final = (RetireRoundsRecord, RestartRecord)


@dataclass(frozen=True, slots=True)
class _Garbage:
    """An object that nothing names any more: record ``seq`` of the log in a folder, or one before it, freed it.

    Attributes:
        seq: None where no record ever named it, and a mirror or a refused writer has left it.
        forgotten: whether the log has forgotten which record it was, so that it is ``seq`` at the latest.
    """

    key: str
    folder: str
    seq: int | None
    forgotten: bool = False


class Collection:
    """Collects one copy's garbage; for one thread."""

    def __init__(self, destination: Store, run: str, each: Map, policy: RetentionPolicy) -> None:
        """Prepare; no I/O yet.

        Args:
            destination: scoped to the run.
            run: its name.
            each: makes requests beside one another.
            policy: of which the grace time counts, and the time after which what nothing names is left behind.
        """
        self._store, self._run, self._policy = destination, run, policy
        self._clocks = {
            "": StoreClock(destination),
            keys.OUTER: StoreClock(PrefixStore(destination, keys.OUTER.rstrip("/"))),
        }
        self._each = each
        self._seen: dict[str, int] = {}  # by which record each was freed, so that it stays known once that is forgotten

    def leases(self) -> Leases:
        """Return the leases of the copy's readers: a PUT, a LIST, and a GET and a HEAD each.

        Raises:
            CorruptObject, UnsupportedFormat: what a reader asks for can't be known.
            AccessDenied, StoreUnavailable: the store did not do it.
        """
        clock = self._clocks[""]
        return read_leases(self._store, self._run, clock, clock.now(), self._policy, each=self._each)

    def collect(self, source: FollowedRun, copy: FollowedRun, rounds: FollowedRounds, dead: list[str]) -> int:
        """Delete what may go; return how many objects did.

        Args:
            source: the run at its source: what is copied for records to come stays.
            copy, rounds: the copy's logs.
            dead: keys of leases that have run out.

        Raises:
            CorruptObject, UnsupportedFormat: a record of the copy can't be read, or is gone; nothing was deleted.
            AccessDenied, StoreUnavailable: the store did not do it; what was deleted stays so.
        """
        now = self._clocks[""].now()
        found = [*self._of_run(source.state, copy.state), *self._of_rounds(rounds.state)]
        self._seen = {one.key: self._seen[one.key] for one in found if one.key in self._seen}
        old, count = self._old(found, now, copy, rounds), 0
        for start in range(0, len(old), _BATCH):
            if read_mark(self._store) is None:
                return count  # it is the home now, which has records that are not known here
            copy.refresh(), rounds.refresh()  # another mirror may have put records since that name what nothing named
            batch = [one.key for one in old[start : start + _BATCH] if not self._is_named(one, source, copy, rounds)]
            for _ in self._each(self._store.delete, batch):
                count += 1
        for _ in self._each(self._store.delete, dead):
            count += 1
        return count

    def _is_named(self, one: _Garbage, source: FollowedRun, copy: FollowedRun, rounds: FollowedRounds) -> bool:
        """Tell whether a record names it by now."""
        if one.folder:
            return fate(rounds.state, one.key.removeprefix(keys.OUTER), rounds.state.retired) is Fate.KEPT
        return source.state.is_live(one.key) or copy.state.is_live(one.key)

    def _of_run(self, source: RunState, copy: RunState) -> Iterator[_Garbage]:
        for key in self._store.list(keys.OBJECTS):
            # Files are never collected at a source: they are named by their content.
            if key.startswith(keys.FILES) or copy.is_live(key) or source.is_live(key):
                continue
            seq = copy.retired_keys.get(keys.named_key(key))
            if seq is None and can_be_named(copy, key):
                yield _Garbage(key, "", None)
            else:
                at_latest = self._seen.setdefault(key, copy.seq if seq is None else seq)
                yield _Garbage(key, "", at_latest, forgotten=seq is None)
        for key in self._store.list(keys.REFERENCES):
            base = keys.reference_of(key)
            retired = None if base is None else copy.bases.get(base)
            if retired is not None:
                yield _Garbage(key, "", retired)

    def _of_rounds(self, state: OuterState) -> Iterator[_Garbage]:
        for key in self._store.list(keys.OUTER + keys.OBJECTS):
            below = key.removeprefix(keys.OUTER)
            match fate(state, below, state.retired):
                case Fate.RETIRED:
                    retired = sorted(state.retirements.items())
                    by = next((seq for number, seq in retired if fate(state, below, number) is Fate.RETIRED), None)
                    at_latest = self._seen.setdefault(key, state.seq if by is None else by)
                    yield _Garbage(key, keys.OUTER, at_latest, forgotten=by is None)
                case Fate.ORPHAN:
                    yield _Garbage(key, keys.OUTER, None)

    def _old(self, found: list[_Garbage], now: datetime, copy: FollowedRun, rounds: FollowedRounds) -> list[_Garbage]:
        """Return those that have waited for long enough."""
        until = {folder: self._until(folder, found, now) for folder in self._clocks}
        moment = now - timedelta(seconds=self._policy.orphan_seconds)

        def has_waited(one: _Garbage) -> bool:
            return one.seq is not None and one.seq <= until[one.folder]

        def is_old(one: _Garbage) -> bool:
            if has_waited(one):
                return True
            if one.seq is not None and not one.forgotten:
                return False
            try:
                return self._clocks[""].written(one.key) <= moment
            except NotFound:
                return False  # another mirror was faster

        old = [one for one, is_old in zip(found, self._each(is_old, found), strict=True) if is_old]
        unsure = [one for one in old if one.forgotten and not has_waited(one)]
        young = {
            *self._young(copy, now, [one.key for one in unsure if not one.folder]),
            *self._young_of_rounds(rounds, now, [one.key for one in unsure if one.folder]),
        }
        return [one for one in old if one.key not in young]

    def _young(self, copy: FollowedRun, now: datetime, found: list[str]) -> Iterator[str]:
        """Yield those, of objects of forgotten versions, that may have been retired a short while ago.

        A mirror that is started anew for each look finds no others: the source forgets what it deletes before the copy
        may delete it.
        """
        if found:
            lately = {v for record in self._lately(copy, now) for v in _versions_in(record)}
            yield from (key for key in found if lately.intersection(keys.versions_of(key)))

    def _young_of_rounds(self, rounds: FollowedRounds, now: datetime, found: list[str]) -> Iterator[str]:
        """Yield those, of objects of forgotten rounds, that may have been retired a short while ago."""
        if found:
            numbers = {one.round for one in self._lately(rounds, now) if isinstance(one, _RETIRING)}
            if rounds.state.deleted in numbers:
                yield from found

    def _lately(self, log: FollowedLog, now: datetime) -> Iterator[AnyRecord]:
        """Yield the records of a log that are younger than the grace time: a GET each."""
        numbers = range(log.seq + 1)
        old = first_younger(numbers, self._clocks[log.folder], now, self._policy.grace_seconds)
        for seq, one in zip(numbers[old:], self._each(log.read, numbers[old:]), strict=True):
            if one is None:
                raise CorruptObject(f"{log.folder}{keys.record_key(seq)} of the copy is gone: nothing is deleted there")
            yield one[0]

    def _until(self, folder: str, found: list[_Garbage], now: datetime) -> int:
        """Return the newest record of a log that freed something and is older than the grace time; -1: none is."""
        seqs = sorted({one.seq for one in found if one.folder == folder and one.seq is not None})
        old = first_younger(seqs, self._clocks[folder], now, self._policy.grace_seconds)
        return seqs[old - 1] if old else -1


def _versions_in(record: AnyRecord) -> Iterator[int]:
    """Yield the versions that a record retires, and those that objects are of which it retires."""
    if isinstance(record, RetireRecord):
        yield from record.versions
        for key in record.keys:
            yield from keys.versions_of(key)
