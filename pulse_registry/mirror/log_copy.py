"""One log on its way: what the source has of it, what the copy has, and the units that go between.

Units that records name are copied first, many at a time, and records are put behind them, one after the other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from functools import partial
from itertools import islice
from typing import Final, Generic, TypeVar

from pulse_registry.errors import Conflict, CorruptObject, Forked, NotFound, PulseError
from pulse_registry.events import Event, EventKind, Events
from pulse_registry.format import keys
from pulse_registry.log.documents import read_document
from pulse_registry.log.record_put import put_record
from pulse_registry.mirror.copier import Copier, Copying
from pulse_registry.mirror.followed_log import FollowedLog, FollowedRecord
from pulse_registry.mirror.needs import Document, Unit
from pulse_registry.process.parallel import Map
from pulse_registry.store import PrefixStore, Store
from pulse_schemas import SchemaError, open_sealed

_BATCH: Final = 64
"""Units, or records, whose objects are on their way at a time."""
_AGAIN_S: Final = 60.0
"""What can't be copied is asked for again after so long: a damaged object is read whole to find out."""

Log = TypeVar("Log", bound=FollowedLog)


class LogCopy(Generic[Log]):
    """Copies one log of a run, and what it names; for one thread at a time.

    Attributes:
        source, copy: the log, as either side has it.
        blocked: units that can't be copied now, and why: the copy ends before the records that name them.
    """

    def __init__(
        self,
        source: Log,
        copy: Log,
        destination: Store,
        copier: Copier,
        *,
        run: str,
        urls: tuple[str, str],
        events: Events,
        meanwhile: Callable[[], object] = lambda: None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare; no I/O yet.

        Args:
            source, copy: the log at either side.
            destination: the copy's store, scoped to the run.
            copier: copies what records name.
            run: its name.
            urls: of the two roots, for messages.
            events: hear of what can't be copied.
            meanwhile: is called now and then while it goes on, which may take hours.
            monotonic: seconds.
        """
        self.source, self.copy = source, copy
        self.blocked: dict[str, PulseError] = {}
        folder = source.folder.rstrip("/")
        self._records = PrefixStore(destination, folder) if folder else destination
        self._copier, self._run, self._urls, self._events = copier, run, urls, events
        self._meanwhile, self._monotonic = meanwhile, monotonic
        self._again = 0.0  # when what is blocked is asked for again
        self._done = set[str]()  # units that were copied for records to come
        self._under_way = dict[str, Copying]()
        self._told = set[str]()

    @property
    def behind(self) -> bool:
        """Whether the copy lacks records that the source is known to have."""
        return self.copy.seq < self.source.seq

    def compare(self) -> None:
        """Raise Forked where one log is not the beginning of the other, or the copy's is the longer one."""
        last = min(self.source.seq, self.copy.seq)
        if last < 0:
            return
        if _sealed(self.source, last) != _sealed(self.copy, last):
            raise self._forked(_first_other(self.source, self.copy, last))
        if self.copy.seq > self.source.seq:
            raise self._forked(last + 1)

    def restore(self, listed: Collection[str]) -> dict[str, PulseError]:
        """Copy what the copy needs, and is not among the keys that are known to be there; return what can't be."""
        needed = (unit for unit in self.copy.needed() if self.source.needs(unit))
        lost = (unit for unit in needed if unit.key not in listed)
        while batch := [*islice(lost, _BATCH)]:
            copying = [self._copier.begin(unit) for unit in batch]
            try:
                for one in copying:
                    self._wait(one)
            finally:
                for one in copying:
                    one.end()
        blocked, self.blocked = self.blocked, {}
        return blocked

    def verify(self, each: Map) -> None:
        """Read all records of the copy back, and put those that it has lost.

        Args:
            each: reads many at a time.

        Raises:
            CorruptObject: a record is damaged, and a mirror deletes none; or a service is to have one that was lost.
            Forked: one is another one than the source's.
            UnsupportedFormat, AccessDenied, StoreUnavailable: as ``bring``.
        """
        records = (record for record in self.source.records(0) if record.seq <= self.copy.seq)
        while batch := [*islice(records, _BATCH)]:
            self._meanwhile()
            for record, found in zip(batch, each(self._found, [record.seq for record in batch]), strict=True):
                if found != record.sealed and (found is not None or not self._put_lost(record)):
                    raise self._other(record.seq, found)

    def _found(self, seq: int) -> bytes | None:
        try:
            return read_document(self._records, keys.record_key(seq))
        except NotFound:
            return None

    def _put_lost(self, record: FollowedRecord) -> bool:
        try:
            return put_record(self._records, record.seq, record.sealed)
        except NotFound as error:
            key = self.source.folder + keys.record_key(record.seq)
            raise CorruptObject(
                f"run {self._run!r}: {key} of {self._urls[1]} is gone, and a service takes none but the next: mirror "
                "with --verify to the bucket itself"
            ) from error

    def _other(self, seq: int, found: bytes | None) -> PulseError:
        try:
            open_sealed(found or b"")
        except SchemaError as error:
            key = self.source.folder + keys.record_key(seq)
            return CorruptObject(
                f"run {self._run!r}: {key} of {self._urls[1]} is damaged: {error}. A mirror deletes no record: delete "
                "it, and mirror with --verify again"
            )
        return self._forked(seq)

    def bring(self, *, whole: bool = True) -> int:
        """Copy the records that are new at the source, and before each what it names; return how many.

        Args:
            whole: look for records until there is none; else no further once the first ones could be put, which then
                wait for no others.

        Raises:
            Forked: the copy has another record of a number.
            CorruptObject, UnsupportedFormat: the source's log can't be read.
            AccessDenied, StoreUnavailable: a store did not do it; what was copied stays.
        """
        try:
            self.source.refresh(partial(self._begin_record, whole=whole))
            first = self.copy.seq + 1  # once: in another thread the copy may be found to have more
            return self._bring(first) if first <= self.source.seq else 0
        finally:
            for one in self._under_way.values():
                one.end()
            self._under_way.clear()

    def _bring(self, first: int) -> int:
        if self.blocked and self._monotonic() < self._again:
            return 0
        self.blocked, count = {}, 0
        records = self.source.records(first)
        while batch := [*islice(records, _BATCH)]:
            if count:  # what has just come waits for nothing
                self._meanwhile()
            copying = self._begin_batch(batch)
            try:
                for record in batch:
                    for unit in record.units:
                        self._wait(copying[unit.key])
                    if self.blocked:
                        blocked, self._again = dict(self.blocked), self._monotonic() + _AGAIN_S
                        for one in copying.values():
                            self._wait(one)  # the others: they are there when this one is restored
                        self.blocked = blocked
                        return count
                    self._put(record)
                    count += 1
            finally:
                for one in copying.values():
                    one.end()
        return count

    def _begin_batch(self, batch: list[FollowedRecord]) -> Mapping[str, Copying]:
        """Begin to copy what records name: versions first, and then what was attached to versions that are there."""
        copying: dict[str, Copying] = {}
        for record in sorted(batch, key=lambda record: record.later):
            for unit in record.units:
                if unit.key not in copying:
                    begun = self._under_way.pop(unit.key) if unit.key in self._under_way else None
                    copying[unit.key] = begun or self._begin(unit)
        return copying

    def _begin_record(self, record: FollowedRecord, *, whole: bool) -> bool:
        """Begin to copy what a record names that has just come; tell whether to look for the next one meanwhile."""
        waiting = bool(self._under_way) and all(one.is_over for one in self._under_way.values())
        if not record.later and not self.blocked:
            for unit in record.units:
                if unit.key not in self._under_way:
                    self._under_way[unit.key] = self._begin(unit)
        return whole or not waiting

    def _begin(self, unit: Unit) -> Copying:
        if unit.key in self._done:
            return Copying(unit, ())
        return self._copier.begin(unit)

    def _wait(self, copying: Copying) -> None:
        """Wait for a unit; where the copy has it not, and needs it, it is blocked."""
        unit, error = copying.unit, copying.outcome(self._meanwhile)
        if error is None:
            self._done.add(unit.key)
            self._told.discard(unit.key)
        elif unit.required and self._still_needed(unit):
            self.blocked[unit.key] = error
            if unit.key not in self._told:
                self._told.add(unit.key)
                self._tell(unit.key, error)

    def _still_needed(self, unit: Unit) -> bool:
        self.source.refresh()
        return self.source.needs(unit)

    def _put(self, record: FollowedRecord) -> None:
        if not put_record(self._records, record.seq, record.sealed):
            raise self._forked(record.seq)
        self.copy.accept(record.sealed)
        # The next records name the same layout and the same files: these are not looked for again.
        self._done.difference_update(unit.key for unit in record.units if not isinstance(unit.of, Document))

    def _tell(self, key: str, error: PulseError) -> None:
        source, _ = self._urls
        why = f"{error}" if isinstance(error, Conflict) else f"{source} can't give it whole: {error}"
        message = f"{key} is not copied, and no record that names it: {why}"
        self._events.tell(Event(EventKind.OBJECT_NOT_COPIED, self._run, message, key), error)

    def _forked(self, seq: int) -> Forked:
        key, (source, destination) = self.source.folder + keys.record_key(seq), self._urls
        name = "outer record" if self.source.folder else "record"
        return Forked(
            f"run {self._run!r}: {name} {seq} of {destination} is not that of {source}: somebody else has written to "
            f"one of them. Nothing was written; both are kept under {key}: find out who wrote which, and mirror to "
            "another root meanwhile",
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
