"""The mirror of one run: copies what its log names from one root to another, byte for byte, objects first.

look at the source -> copy what its new records name -> put the records, in order -> snapshots and hint. It may be
killed anywhere: the copy's own log says where to go on. Nothing is decoded, so that hashes and signatures hold.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Any, Final, Generic, Self, TypeVar

from pulse_registry.errors import CorruptObject, Forked, InvalidArgument, NotFound, PulseError
from pulse_registry.events import Event, EventKind, Events
from pulse_registry.format import keys
from pulse_registry.log.mirror_mark import read_mark
from pulse_registry.log.names import run_name
from pulse_registry.log.record_put import put_record
from pulse_registry.mirror.claim import claim, may_live
from pulse_registry.mirror.collection import Collection
from pulse_registry.mirror.copier import Copier, Copying
from pulse_registry.mirror.documents import Documents
from pulse_registry.mirror.followed_log import FollowedLog, FollowedRecord, FollowedRounds, FollowedRun
from pulse_registry.mirror.lanes import Lanes
from pulse_registry.mirror.leases import CarriedLeases
from pulse_registry.mirror.needs import Document, Unit
from pulse_registry.retention import RetentionPolicy
from pulse_registry.store import PrefixStore, RetryStore, RunStore, Store
from pulse_schemas import HomeEntry

_BATCH: Final = 64
"""Units, or records, whose objects are on their way at a time."""
_COLLECT_S: Final = 600.0
"""How often what the copy needs no more is looked for: a LIST of its objects."""
_AGAIN_S: Final = 60.0
"""What the source could not give is asked for again after so long: a damaged object is read whole to find out."""


@dataclass(frozen=True, slots=True)
class Copied:
    """What a step, or several, did.

    Attributes:
        records: put at the copy, those of outer rounds included.
        objects, nbytes: sent to it.
        present: objects that were there already.
        blocked: keys of what the source can't give, whole: the copy ends before the records that name them.
        seq, source_seq: newest record of the run at the copy, and at the source as last seen; -1: none.
        deleted: objects and leases deleted at the copy.
    """

    records: int = 0
    objects: int = 0
    nbytes: int = 0
    present: int = 0
    blocked: tuple[str, ...] = ()
    seq: int = -1
    source_seq: int = -1
    deleted: int = 0

    def and_then(self, later: Copied) -> Copied:
        """Return what both did, one after the other."""
        counts = ("records", "objects", "nbytes", "present", "deleted")
        return replace(later, **{name: getattr(self, name) + getattr(later, name) for name in counts})


Log = TypeVar("Log", bound=FollowedLog)


@dataclass(slots=True)
class _Pair(Generic[Log]):
    """One log, as the source has it and as the copy has it; and units: copied, for records to come, or under way.

    ``blocked``: those that the source could not give, which are asked for again at ``again``.
    """

    source: Log
    copy: Log
    done: set[str] = field(default_factory=set)
    under_way: dict[str, Copying] = field(default_factory=dict)
    blocked: tuple[str, ...] = ()
    again: float = 0.0

    @property
    def name(self) -> str:
        return "outer record" if self.source.folder else "record"


class Mirror:
    """Copies one run; for one thread at a time. Several mirrors of one run do no harm: they write the same bytes."""

    def __init__(
        self,
        source: Store,
        destination: Store,
        run: str,
        *,
        events: Events | None = None,
        verify: bool = False,
        lanes: Lanes | None = None,
        policy: RetentionPolicy | None = None,
        retrying: Callable[[Store], Store] = RetryStore,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare; no I/O yet.

        Args:
            source: the root that has the run: a bucket, a folder or a service.
            destination: the root that is to have the copy: a bucket, a folder, or the copies of a service.
            run: the run's name.
            events: hear of what can't be copied.
            verify: read back what the copy has already, and send again what is damaged there.
            lanes: threads, memory and rate that it shares with other mirrors, and does not close; None: of its own.
            policy: of which the grace time at the copy counts; None: an hour.
            retrying: wraps a store so that calls that fail for a moment are made again.
            monotonic: seconds.

        Raises:
            InvalidArgument: the name is not valid, or the destination is a service.
        """
        self.run = run_name(run)
        if destination.gateway() is not None:
            raise InvalidArgument(
                f"{destination.url} is a service as trainers see it: open its copies (`open_copies`), or the bucket"
            )
        root = retrying(destination)
        self._source, self._source_url = RunStore(retrying(source), self.run), source.url
        self._destination, self._destination_url = RunStore(root, self.run), destination.url
        self._events, self._monotonic, self._verify = events or Events(), monotonic, verify
        self._lanes, self._owns_lanes = lanes or Lanes(), lanes is None
        self._listed: set[str] = set()
        self._copier = Copier(
            self._source, self._destination, root, self.run, self._lanes, verify=verify, listed=self._listed
        )
        self._run = _Pair(FollowedRun(self._source, self.run), FollowedRun(self._destination, self.run))
        self._rounds = _Pair(FollowedRounds(self._source, self.run), FollowedRounds(self._destination, self.run))
        self._pairs: tuple[_Pair[Any], ...] = (self._run, self._rounds)
        self._leases = CarriedLeases(self._source, self.run, self._events, monotonic)
        self._collection = Collection(self._destination, self.run, self._lanes.workers, policy or RetentionPolicy())
        self._collected: float | None = None
        self._documents = Documents(self._source, self._destination)
        self._told: set[str] = set()  # units that the source could not give
        self._begun = False
        self._proved: str | None = None  # the move that is known to have led to the source

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give up its lease, and end its threads. Idempotent."""
        self._leases.close()
        if self._owns_lanes:
            self._lanes.close()

    def wait(self, poll_s: float, sleep: Callable[[float], object] = time.sleep) -> None:
        """Wait for a record at the source, at most so long: a service answers at once, a bucket is not asked.

        Raises:
            AccessDenied, StoreUnavailable: the service can't tell.
        """
        gateway = self._source.gateway()
        if gateway is None:
            sleep(poll_s)
            return
        with suppress(NotFound):
            gateway.wait_for_record(self.run, self._run.source.seq + 1, poll_s)

    def catch_up(self) -> Copied:
        """Copy until the copy has the source's newest record, and all that goes with it.

        Raises:
            CorruptObject: the source can't give an object that a record names; the copy ends before that record.
            Others as ``step``; what was copied stays: call again.
        """
        done = Copied()
        while True:
            one = self.step()
            done = done.and_then(one)
            if one.blocked:
                key = one.blocked[0]
                raise CorruptObject(
                    f"run {self.run!r}: {self._source_url} can't give {key}, whole, and no record is copied that names "
                    f"it: the copy ends at record {one.seq} of {one.source_seq}: restore it there, or retire it"
                )
            if not one.records:
                return done

    @property
    def left(self) -> HomeEntry | None:
        """Where the run has moved to from the source, if the copy has all that this had; None: it goes on there.

        Raises:
            CorruptObject, UnsupportedFormat, StoreUnavailable: the source can't tell.
        """
        run = self._run
        home = run.source.home
        if home is None or home.move == self._proved or any(pair.copy.seq < pair.source.seq for pair in self._pairs):
            return None
        if read_mark(self._source) is not None:
            return None  # a copy itself, whose home goes on
        if may_live(self._source, self.run, run.source):
            self._proved = home.move
            return None
        return home

    def step(self, *, tidy: bool = True) -> Copied:
        """Copy what is new at the source, up to the newest record that is there.

        Args:
            tidy: look for countersignatures, snapshots and the hint, and for outer rounds where there were none, too:
                some requests more, which need not follow on every record.

        Raises:
            NotFound: the source has no such run.
            Conflict: the destination has a run of this name that is no copy.
            Forked: the two have other records of one number; nothing was written.
            CorruptObject, UnsupportedFormat: the source's log can't be read.
            AccessDenied, StoreUnavailable: a store did not do it; what was copied stays: call again.
        """
        tally = self._copier.tally
        objects, nbytes, present = tally.objects, tally.nbytes, tally.present
        blocked: list[str] = []
        if not self._begun:
            blocked += self._begin()
            self._begun = True
        self._hold()
        records = deleted = 0
        for pair in self._pairs:
            if pair.source.seq >= 0 or tidy:
                try:
                    pair.source.refresh(partial(self._begin_record, pair))
                    records += self._copy(pair, blocked)
                finally:
                    for one in pair.under_way.values():
                        one.end()
                    pair.under_way.clear()
        if tidy:
            for pair in self._pairs:
                self._documents.copy(pair.source.folder, pair.copy.seq)
            deleted = self._collect()
        run = self._run
        return Copied(
            records,
            tally.objects - objects,
            tally.nbytes - nbytes,
            tally.present - present,
            tuple(dict.fromkeys(blocked)),
            run.copy.seq,
            run.source.seq,
            deleted,
        )

    def _begin(self) -> list[str]:
        """Open both logs, claim the destination, compare what they have; copy what the copy has lost."""
        for pair in self._pairs:
            pair.copy.refresh()  # first: another mirror may go on meanwhile
            pair.source.refresh()
        if self._run.source.seq < 0:
            raise NotFound(f"there is no run {self.run!r} in {self._source_url}")
        claim(self._destination, self.run, self._source_url, [pair.copy for pair in self._pairs])
        for pair in self._pairs:
            self._compare(pair)
        for folder in (keys.OBJECTS, keys.OUTER + keys.OBJECTS, keys.LAYOUTS):
            self._listed.update(self._destination.list(folder))
        blocked: list[str] = []
        for pair in self._pairs:
            needed = (unit for unit in pair.copy.needed() if pair.source.needs(unit))
            lost = (unit for unit in needed if self._verify or unit.key not in self._listed)
            while batch := [*islice(lost, _BATCH)]:
                copying = [self._copier.begin(unit) for unit in batch]
                try:
                    blocked += [one.unit.key for one in copying if not self._is_copied(pair, one)]
                finally:
                    for one in copying:
                        one.end()
        return blocked

    def _hold(self) -> None:
        """Ask the source to keep what leads from the copy's newest version to its own."""
        copied = self._run.copy.state.latest or self._run.source.state.latest
        if copied is not None:
            self._leases.hold(copied.version)

    def _collect(self) -> int:
        """Carry the leases of the copy's readers to the source; now and then delete what the copy needs no more."""
        leases = self._collection.leases()
        self._leases.carry(leases.held)
        now = self._monotonic()
        if self._collected is not None and now - self._collected < _COLLECT_S:
            return 0
        self._collected = now
        return self._collection.collect(self._run.source, self._run.copy, self._rounds.copy, leases.dead)

    def _compare(self, pair: _Pair[Any]) -> None:
        """Raise Forked where one log is not the beginning of the other, or the copy's is the longer one."""
        last = min(pair.source.seq, pair.copy.seq)
        if last < 0:
            return
        if _sealed(pair.source, last) != _sealed(pair.copy, last):
            raise self._forked(pair, _first_other(pair.source, pair.copy, last))
        if pair.copy.seq > pair.source.seq:
            raise self._forked(pair, last + 1)

    def _copy(self, pair: _Pair[Any], blocked: list[str]) -> int:
        """Copy the records that are new, and before each what it names; return how many."""
        if pair.source.seq <= pair.copy.seq:
            return 0
        if pair.blocked and self._monotonic() < pair.again:
            blocked += pair.blocked
            return 0
        pair.blocked = ()
        count = 0
        records = pair.source.records(pair.copy.seq + 1)
        while batch := [*islice(records, _BATCH)]:
            copying = self._begin_batch(pair, batch)
            try:
                for record in batch:
                    missing = [unit.key for unit in record.units if not self._is_copied(pair, copying[unit.key])]
                    if missing:
                        pair.blocked, pair.again = tuple(missing), self._monotonic() + _AGAIN_S
                        blocked += missing
                        for one in copying.values():
                            self._is_copied(pair, one)  # the others: they are there when this one is restored
                        return count
                    self._put(pair, record)
                    count += 1
            finally:
                for one in copying.values():
                    one.end()
        return count

    def _begin_batch(self, pair: _Pair[Any], batch: list[FollowedRecord]) -> Mapping[str, Copying]:
        """Begin to copy what records name: versions first, and then what was attached to versions that are there."""
        copying: dict[str, Copying] = {}
        for record in sorted(batch, key=lambda record: record.later):
            for unit in record.units:
                if unit.key not in copying:
                    begun = pair.under_way.pop(unit.key) if unit.key in pair.under_way else None
                    copying[unit.key] = begun or self._begin_unit(pair, unit)
        return copying

    def _begin_record(self, pair: _Pair[Any], record: FollowedRecord) -> None:
        """Begin to copy what a record names that has just come, while the next one is looked for."""
        if not record.later and not pair.blocked:
            for unit in record.units:
                if unit.key not in pair.under_way:
                    pair.under_way[unit.key] = self._begin_unit(pair, unit)

    def _begin_unit(self, pair: _Pair[Any], unit: Unit) -> Copying:
        if unit.key in pair.done:
            return Copying(unit, ())
        return self._copier.begin(unit)

    def _is_copied(self, pair: _Pair[Any], copying: Copying) -> bool:
        """Wait for a unit; tell whether the copy has it, or has no need of it."""
        unit, error = copying.unit, copying.outcome()
        if error is None:
            pair.done.add(unit.key)
            self._told.discard(unit.key)
            return True
        if not unit.required or not self._still_needed(pair, unit):
            return True
        if unit.key not in self._told:
            self._told.add(unit.key)
            self._tell(unit.key, error)
        return False

    def _still_needed(self, pair: _Pair[FollowedLog], unit: Unit) -> bool:
        pair.source.refresh()
        return pair.source.needs(unit)

    def _put(self, pair: _Pair[Any], record: FollowedRecord) -> None:
        folder = pair.source.folder
        store = PrefixStore(self._destination, folder.rstrip("/")) if folder else self._destination
        if not put_record(store, record.seq, record.sealed):
            raise self._forked(pair, record.seq)
        pair.copy.accept(record.sealed)
        # The next records name the same layout and the same files: these are not looked for again.
        pair.done.difference_update(unit.key for unit in record.units if not isinstance(unit.of, Document))

    def _tell(self, key: str, error: PulseError) -> None:
        message = f"{self._source_url} can't give {key}, whole: no record that names it is copied: {error}"
        self._events.tell(Event(EventKind.OBJECT_NOT_COPIED, self.run, message, key), error)

    def _forked(self, pair: _Pair[Any], seq: int) -> Forked:
        key = pair.source.folder + keys.record_key(seq)
        return Forked(
            f"run {self.run!r}: {pair.name} {seq} of {self._destination_url} is not that of {self._source_url}: "
            f"somebody else has written to one of them. Nothing was written; both are kept under {key}: find out who "
            "wrote which, and mirror to another root meanwhile",
            seq,
        )


def _sealed(log: FollowedLog, seq: int) -> bytes | None:
    found = log.read(seq)
    return None if found is None else found[1]


def _first_other(one: FollowedLog, two: FollowedLog, last: int) -> int:
    """Return the first number at which two logs differ, which they do at ``last``: each record names the one before."""
    low, high = 0, last
    while low < high:
        middle = (low + high) // 2
        if _sealed(one, middle) == _sealed(two, middle):
            low = middle + 1
        else:
            high = middle
    return low
