"""The audit of a run's log: every record is there, follows the one before, and no snapshot or hint knows of later ones.

Records are folded from the first one on, past all snapshots. Where that ends early, a listing tells what is missing and
what came after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Final

from pulse_registry.doctor.audit.defect import RESTORE, Defect, DefectKind
from pulse_registry.doctor.audit.snapshots import snapshot_defects
from pulse_registry.errors import CorruptObject, InvalidArgument, NotFound, PulseError, UnsupportedFormat, Untrusted
from pulse_registry.format import keys
from pulse_registry.log import Guard, LogReader, RunState, sealed_hash
from pulse_registry.log.documents import read_document
from pulse_registry.log.gap import beyond
from pulse_registry.process.parallel import parallel_map
from pulse_registry.store.verified_read import checked
from pulse_schemas import Fault, Head, Record, SchemaError

if TYPE_CHECKING:
    from pulse_registry.store import Store

THREADS: Final = 8
_BATCH: Final = 64
_BAD: Final = (CorruptObject, Untrusted, UnsupportedFormat)
_Found = tuple[Record, bytes] | Defect


class LogAudit:
    """Audits one run's log; for one thread at a time."""

    def __init__(self, store: Store, run: str, guard: Callable[[], Guard | None] = lambda: None) -> None:
        """Prepare; no I/O yet.

        Args:
            store: scoped to the run's prefix; the bucket itself.
            run: the run's name.
            guard: makes what judges the records of one reading.

        Raises:
            InvalidArgument: the store is a service, which lists nothing.
        """
        if store.gateway() is not None:
            raise InvalidArgument(f"{store.url} is a service, which lists no objects: go to the bucket")
        self._store, self._run, self._guard = store, run, guard
        self._reader = LogReader(store, run, guard(), ThreadPoolExecutor, whole=True)
        self._broken = False
        self.state = RunState(run)

    def defects(self) -> Iterator[Defect]:
        """Read the log, and yield what is wrong with it; `state` is then the newest that a reader can have.

        Raises:
            AccessDenied, StoreUnavailable: the store can't be read.
        """
        wrong = self._fold()
        yield from wrong
        later = [*self._later()]
        self._broken = bool(wrong or later)
        if self._broken:
            yield from later
            self._read_as_readers_do()
        elif self.state.seq < 0:
            yield Defect(keys.record_key(0), DefectKind.MISSING, "the run has no records", f"{RESTORE}, and all others")
        yield from self._beside()

    def renew(self) -> RunState:
        """Return the newest state, of a run that others go on with meanwhile; as it was where the log is damaged."""
        if not self._broken:
            with suppress(*_BAD):
                self.state = self._reader.refresh()
        return self.state

    def _fold(self) -> list[Defect]:
        """Fold all records that follow each other; return what is wrong with the next one."""
        wrong: PulseError | None = None
        try:
            self._reader.refresh()
        except _BAD as error:
            wrong = error
        self.state = self._reader.seen or self.state
        return [] if wrong is None else [Defect.of(keys.record_key(self.state.seq + 1), wrong)]

    def _later(self) -> Iterator[Defect]:
        """Yield what is wrong beyond the last record that was folded: gaps, and records that are no records."""
        numbers = self._numbers_after(self.state.seq)
        before: tuple[Record, bytes] | None = None
        expected = self.state.seq + 1
        with parallel_map(THREADS, "pulse-audit") as map_:
            while batch := [*islice(numbers, _BATCH)]:
                for seq, found in zip(batch, map_(self._record, batch), strict=True):
                    while expected < seq:
                        there = self._is_there(expected)
                        if not there:
                            break
                        if isinstance(there, Defect) and expected != self.state.seq + 1:
                            yield there
                        expected, before = expected + 1, None
                    record = None if isinstance(found, Defect) else found
                    if expected < seq:
                        yield _gap(expected, seq, None if record is None else record[0])
                    elif before is not None and record is not None:
                        yield from _chained(before, record[0])
                    if isinstance(found, Defect) and seq != self.state.seq + 1:  # that one was told already
                        yield found
                    before, expected = record, seq + 1

    def _numbers_after(self, seq: int) -> Iterator[int]:
        for key in self._store.list(keys.LOG, keys.record_key(seq) if seq >= 0 else None):
            number = keys.record_seq(key)
            if number is not None:
                yield number

    def _is_there(self, seq: int) -> bool | Defect:
        """Tell whether a record is there that was not listed: written since, or no file, which is a defect."""
        key = keys.record_key(seq)
        try:
            return self._store.exists(key)
        except CorruptObject as error:
            return Defect.of(key, error)

    def _record(self, seq: int) -> _Found:
        try:
            found = self._reader.read(seq)
        except _BAD as error:
            return Defect.of(keys.record_key(seq), error)
        return found if found is not None else Defect.of(keys.record_key(seq), NotFound())

    def _read_as_readers_do(self) -> None:
        """Take the state that readers have, who may get past what is wrong by a snapshot."""
        reader = LogReader(self._store, self._run, self._guard(), ThreadPoolExecutor)
        with suppress(PulseError):
            reader.refresh()
        if reader.seen is not None and reader.seen.seq > self.state.seq:
            self.state = reader.seen

    def _beside(self) -> Iterator[Defect]:
        """Yield what is wrong with the snapshots and the hint: damage, and later records than there are.

        Where later records are there, behind a gap, that was told.
        """
        if self._broken and beyond(self._store, self.state.seq).record is not None:
            return
        for key in self._store.list(keys.SNAPSHOTS):
            seq = keys.snapshot_seq(key)
            if seq is not None and seq > self.state.seq and seq > self.renew().seq:
                yield self._early_end(key, seq)
        yield from snapshot_defects(self._store, self._run, self.state.seq)
        with suppress(NotFound):
            try:
                head = checked(lambda: read_document(self._store, keys.HEAD), _head)
            except _BAD as error:
                yield Defect.of(keys.HEAD, error, "delete it: it only saves readers time, and the next writer makes it")
                return
            if head.seq > self.state.seq and head.seq > self.renew().seq:
                yield self._early_end(keys.HEAD, head.seq)

    def _early_end(self, key: str, seq: int) -> Defect:
        first = keys.record_key(self.state.seq + 1)
        return Defect(
            key,
            DefectKind.MISSING,
            f"it tells of record {seq}, and the log ends at record {self.state.seq}",
            f"restore {first} and those after it from the bucket's versioning or a backup; if this is a copy of an "
            "older state, delete what tells of them: it only saves readers time",
        )


def _gap(first: int, following: int, record: Record | None) -> Defect:
    last = following - 1
    names = keys.record_key(first) if first == last else f"{keys.record_key(first)} to {last:012d}.json"
    which = f"record {first} is" if first == last else f"records {first} to {last} are"
    right = "" if record is None else f". The right record {last} has the BLAKE3 {record.previous}"
    return Defect(
        keys.record_key(first),
        DefectKind.MISSING,
        f"{which} missing, and record {following} is there: readers take the log to end here",
        f"before anybody writes, restore {names} from the bucket's versioning or a backup{right}",
    )


def _chained(before: tuple[Record, bytes], record: Record) -> Iterator[Defect]:
    if record.previous != sealed_hash(before[1]):
        yield Defect(
            keys.record_key(record.seq),
            DefectKind.DAMAGED,
            f"it follows a record with BLAKE3 {record.previous}, and record {before[0].seq} is another one",
            f"{RESTORE}, or record {before[0].seq}, whichever was replaced",
        )


def _head(sealed: bytes) -> Head:
    try:
        return Head.unseal(sealed)
    except SchemaError as error:
        kind = UnsupportedFormat if error.fault is Fault.UNSUPPORTED else CorruptObject
        raise kind(f"{keys.HEAD}: {error}") from error
