"""Garbage collector: retires by policy, deletes what was retired long enough ago. The edge around `plan_gc`.

Two phases, never in one run: a `retire` record first, then, once that is older than the grace time by the store's
clock, deletion and a `delete` record. It may be killed anywhere and started again, and several may run: all that is
decided is decided on the newest state, by the log's own create-if-absent.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from pulse_registry.errors import NotFound, PulseError
from pulse_registry.format import keys
from pulse_registry.format.keys import versions_of
from pulse_registry.log import LogReader, LogWriter, NewId, RunState, StoreClock
from pulse_registry.log.fold import advance
from pulse_registry.log.superseded import listed, superseded
from pulse_registry.outer.log import OuterLog
from pulse_registry.process.parallel import Map
from pulse_registry.retention.leases import Leases, read_leases
from pulse_registry.retention.plan import Needs, Plan, harm, is_garbage, plan_gc
from pulse_registry.retention.policy import RetentionPolicy
from pulse_registry.retention.rounds import RoundsCollector, RoundsGc, needed_versions
from pulse_registry.retention.survey import BATCH, MOST, Survey, first_younger, survey
from pulse_schemas import DeleteRecord, RetireRecord

if TYPE_CHECKING:
    from pulse_registry.store import Store

LONGEST: Final = 2000
"""Versions and keys in one record."""
_NEVER: Final = "1970-01-01T00:00:00.000Z"


class _NothingLeft(Exception):
    """Somebody else did it: there is no record to append."""


@dataclass(frozen=True, slots=True)
class GcResult:
    """Result of a garbage collection, or of its dry run.

    Attributes:
        plan: what stays, and what was retired.
        held: the versions that readers hold, by reader.
        orphan_bytes: of the plan's orphans.
        deleted: objects deleted, which were retired before or could not be named.
        waiting: objects retired for less than the grace time.
        snapshots: old snapshots of the log deleted, their segments not counted.
        leases: leases deleted that had run out.
        more: whether there was more than one run takes: run it again.
        dry_run: whether nothing was done.
        rounds: what became of outer rounds; None: the run has none.
    """

    plan: Plan
    held: Mapping[str, int]
    orphan_bytes: int
    deleted: int
    waiting: int
    snapshots: int
    leases: int
    more: bool
    dry_run: bool
    rounds: RoundsGc | None = None


@dataclass(frozen=True, slots=True)
class _Left:
    """What of a plan is still to be retired, if the log is at record ``seq``."""

    seq: int
    versions: list[int]
    keys: list[str]

    def after(self, record: RetireRecord) -> _Left:
        """Return what is left once a record has retired the first of it."""
        return _Left(record.seq, self.versions[len(record.versions) :], self.keys[len(record.keys) :])


class Collector:
    """Collects one run's garbage; for one thread at a time."""

    def __init__(
        self,
        store: Store,
        run: str,
        reader: LogReader,
        writer: LogWriter,
        new_id: NewId,
        rounds: OuterLog | None = None,
        *,
        each: Map = map,
    ) -> None:
        """Prepare to collect; no I/O yet.

        Args:
            store: the store, scoped to the run's prefix: the bucket itself, not a service.
            run: the run's name.
            reader: reads its log.
            writer: appends to its log; it needs no term.
            new_id: gives write ids.
            rounds: the log of its outer rounds; None: one that neither signs nor pins.
            each: how to make many requests: `map`, or a parallel one.
        """
        self._store = store
        self._run = run
        self._reader = reader
        self._writer = writer
        self._new_id = new_id
        self._each = each
        self._clock = StoreClock(store)
        self._rounds = RoundsCollector(store, rounds or OuterLog(store, run), self._clock, each=each)

    def collect(self, policy: RetentionPolicy, *, dry_run: bool = True) -> GcResult:
        """Retire and delete what the policy, the tags and the readers' leases allow; with ``dry_run``, only look.

        Costs a LIST of the run's objects, snapshots and leases, a PUT, and a HEAD or two for each record that its
        search for ages meets, each lease and each orphan; then what it writes and deletes.

        Raises:
            NotFound: there is no such run.
            Fenced: it has moved elsewhere; nothing was done.
            InvalidArgument: the store is a service: go to the bucket, or let the service do it.
            CorruptObject, UnsupportedFormat, Untrusted: the log, or a lease, can't be read.
            Untrusted: the run is signed, and this writer has no key that fits; nothing was done.
            AccessDenied, StoreUnavailable: the store did not do it; what was done stays done: run it again.
        """
        now = self._clock.now()
        state = self._reader.refresh()
        if state.seq < 0:
            raise NotFound(f"there is no run {self._run!r} in {self._store.url}")
        if not dry_run:
            self._writer.check("retire")
        leases = read_leases(self._store, self._run, self._clock, now, policy, each=self._each)
        until = self._until(state, now, policy)
        found = survey(
            self._store,
            state,
            self._clock,
            until=until,
            orphans_until=now - timedelta(seconds=policy.orphan_seconds),
            each=self._each,
        )
        rounds = self._rounds.state()
        needed = needed_versions(rounds, state.latest.cells if state.latest is not None else 0)
        needs = Needs(leases.held, self._young_from(state, now, policy), tuple(found.orphans), needed)
        plan = plan_gc(state, policy, needs)
        old = superseded(self._store, listed(self._store), state.seq, {})[:MOST]  # the next collection goes on
        collected = GcResult(
            plan=plan,
            held=leases.held,
            orphan_bytes=found.orphan_bytes,
            deleted=len(found.deletable),
            waiting=found.waiting,
            snapshots=sum(keys.snapshot_seq(key) is not None for key in old),
            leases=len(leases.dead),
            more=found.more,
            dry_run=dry_run,
        )
        if rounds.start is not None:
            collected = dataclasses.replace(collected, rounds=self._rounds.collect(policy, now, dry_run=dry_run))
        if dry_run:
            return collected
        self._retire(policy, needs)
        deleted = self._delete(found, until)
        self._tidy(old, leases, now, policy)
        return dataclasses.replace(collected, deleted=deleted)

    def _until(self, state: RunState, now: datetime, policy: RetentionPolicy) -> int:
        """Return the newest record that retired something and is older than the grace time; -1 for none."""
        bases = (seq for seq in state.bases.values() if seq is not None)
        seqs = sorted({*state.retired_versions.values(), *state.retired_keys.values(), *bases})
        old = first_younger(seqs, self._clock, now, policy.grace_seconds)
        return seqs[old - 1] if old else -1

    def _young_from(self, state: RunState, now: datetime, policy: RetentionPolicy) -> int:
        entries = list(state.versions_since(0))
        old = first_younger([entry.seq for entry in entries], self._clock, now, policy.keep_seconds)
        return entries[old].version if old < len(entries) else len(state.versions)

    def _retire(self, policy: RetentionPolicy, needs: Needs) -> None:
        """Append what there is to retire, a record at a time, each planned on the state that it follows."""
        left = _Left(-1, [], [])

        def make(state: RunState, shared: dict[str, Any]) -> RetireRecord:
            nonlocal left
            if left.seq != state.seq:  # others have gone on, or it is the first record
                left = self._plan_anew(state, policy, needs)
            if not left.versions and not left.keys:
                raise _NothingLeft
            # Versions first: while their objects are still there, nobody is told that nothing leads to them.
            versions = left.versions[:LONGEST]
            return RetireRecord(**shared, versions=tuple(versions), keys=tuple(left.keys[: LONGEST - len(versions)]))

        try:
            while True:
                record = self._writer.append(make, self._new_id())
                if isinstance(record, RetireRecord):
                    left = left.after(record)
        except _NothingLeft:
            return

    def _plan_anew(self, state: RunState, policy: RetentionPolicy, needs: Needs) -> _Left:
        """Plan on a state, and make sure that to retire all of it, and so any part of it, does no harm."""
        plan = plan_gc(state, policy, needs)
        after = state.copy()
        advance(after, _whole(state, plan), "0" * 64)
        wrong = harm(state, after, plan, needs.held)
        if wrong is not None:
            raise PulseError(f"run {self._run!r}: nothing more is retired, for {wrong}: this is a defect, report it")
        return _Left(state.seq, list(plan.versions), [*plan.keys, *plan.orphans])

    def _delete(self, found: Survey, until: int) -> int:
        """Delete what can be deleted, and tell of it; return how many objects."""
        deleted = 0
        for start in range(0, len(found.deletable), BATCH):
            state = self._reader.refresh()
            batch = [key for key in found.deletable[start : start + BATCH] if is_garbage(state, key)]
            for _ in self._each(self._store.delete, batch):
                pass
            deleted += len(batch)
        if not found.more:
            self._tell_deleted(until)
        return deleted

    def _tell_deleted(self, until: int) -> None:
        def make(state: RunState, shared: dict[str, Any]) -> DeleteRecord:
            if not _forgets(state, until):
                raise _NothingLeft
            return DeleteRecord(**shared, until=until)

        try:
            self._writer.append(make, self._new_id())
        except _NothingLeft:
            return

    def _tidy(self, old: Sequence[str], leases: Leases, now: datetime, policy: RetentionPolicy) -> None:
        """Delete snapshots and segments that newer ones replace, and leases that have run out."""
        again = (
            read_leases(self._store, self._run, self._clock, now, policy, each=self._each).dead if leases.dead else []
        )
        dead = sorted(set(leases.dead) & set(again))  # a reader may have come back to life meanwhile
        for _ in self._each(self._store.delete, [*old, *dead]):
            pass


def _whole(state: RunState, plan: Plan) -> RetireRecord:
    """Return one record that would retire all of a plan; it is never written."""
    return RetireRecord(
        run=state.run,
        seq=state.seq + 1,
        epoch=state.epoch,
        write_id="0" * 32,
        previous=state.last,
        created_at=_NEVER,
        versions=plan.versions,
        keys=(*plan.keys, *plan.orphans),
    )


def _forgets(state: RunState, until: int) -> bool:
    """Tell whether a delete record up to ``until`` would make the state smaller."""

    def forgotten(version: int) -> bool:
        return (
            version < len(state.versions)
            and state.retired_versions.get(version, -1) <= until
            and state.is_retired(version)
        )

    return any(seq <= until for seq in state.retired_versions.values()) or any(
        seq <= until and (not versions_of(key) or any(map(forgotten, versions_of(key))))
        for key, seq in state.retired_keys.items()
    )
