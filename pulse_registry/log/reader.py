"""Reads a run's log: opens it at the newest snapshot, then asks for one record after the other.

Order of trust: records are the truth; a snapshot counts only if the record that it names is there with the
same hash; the head hint only says which snapshot to try first. A guard may ask for more: signatures, and that the log
goes on from what was seen before.
"""

from __future__ import annotations

import heapq
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from functools import partial
from itertools import count, islice
from typing import TYPE_CHECKING, Final

from pulse_registry.errors import CorruptObject, Distrust, NotFound, PulseError, UnsupportedFormat, Untrusted
from pulse_registry.events import Event, EventKind, Events
from pulse_registry.format import keys
from pulse_registry.log.documents import LOG, most_bytes
from pulse_registry.log.fold import advance, sealed_hash
from pulse_registry.log.gap import MOST_LISTED, beyond, missing
from pulse_registry.log.guard import Guard
from pulse_registry.log.state import RunState
from pulse_registry.log.unsealing import (
    record_with_hash,
    unsealed_countersignature,
    unsealed_head,
    unsealed_record,
    unsealed_snapshot,
)
from pulse_registry.process.parallel import ParallelMap
from pulse_registry.store.verified_read import checked
from pulse_schemas import Record, SchemaError, Snapshot, open_sealed

if TYPE_CHECKING:
    from pulse_registry.store import Store

_logger = logging.getLogger(__name__)
_ONE_BY_ONE: Final = 16
"""So many records are read one after the other when a log is opened: most tails are short, or long."""
_AHEAD: Final = 16

_OF_SIGNATURES: Final = (Distrust.UNSIGNED, Distrust.WRONG_KEY, Distrust.BAD_SIGNATURE)
_TRIES: Final = 8
"""Snapshots that are looked at: thousands that are damaged, or that nobody signed, would be fetched in vain."""


class LogReader:
    """Follows one run's log; safe to share between threads.

    The states that it hands out never change: to follow the run, ask again.
    """

    def __init__(
        self,
        store: Store,
        run: str,
        guard: Guard | None = None,
        threads: Callable[[int, str], Executor] | None = None,
        *,
        events: Events | None = None,
        whole: bool = False,
    ) -> None:
        """Prepare to read; no I/O yet.

        Args:
            store: the store, scoped to the run's prefix.
            run: the run's name, which every record must carry.
            guard: judges records and snapshots; None believes what the rules of the log allow.
            threads: makes an executor, of so many threads and their name's beginning, to open long logs with; None
                reads one record after the other.
            events: hear of a log that seems to end too early.
            whole: fold every record, from the first one on, and open at no snapshot.
        """
        self._store = store
        self._run = run
        self._guard = guard
        self._lock = threading.Lock()
        self._state: RunState | None = None
        self._settled = guard is None  # whether the guard has believed a state
        self._snapshot_seq = -1
        self._held = 0  # bytes of records folded since what the state says was last measured
        self._first: tuple[str | None] | None = None  # which key signed record 0, once that was read
        self._threads = threads
        self._opening = True
        self._events, self._whole = events or Events(), whole
        self._signed = -1  # the newest record that a signed snapshot tells of
        self._told: tuple[int, str] | None = None  # the newest one that anything else tells of, until it was looked for

    @property
    def run(self) -> str:
        """Name of the run."""
        return self._run

    @property
    def state(self) -> RunState:
        """The state as last seen: no I/O, but for the first time (then as ``refresh``)."""
        return self._state if self._state is not None and self._settled else self.refresh()

    @property
    def seen(self) -> RunState | None:
        """The state as last seen, if the log was read; no I/O."""
        return self._state

    @property
    def guard(self) -> Guard | None:
        """What judges the records, if anything does."""
        return self._guard

    @property
    def snapshot_seq(self) -> int:
        """Seq of the snapshot that this reader opened the run from, -1 if from record 0."""
        return self._snapshot_seq

    def refresh(self) -> RunState:
        """Read what is new and return the state; of a run that does not exist, the empty state.

        The first call opens the run: a GET each for the hint, its snapshot and the snapshot's last record,
        then the tail. Every call costs a GET a new record and one that finds none; on opening a long tail is read
        ahead, by up to 15 more that find none. Keys are listed only if there is no usable hint on opening. Records that
        were read before an error are kept.

        Raises:
            CorruptObject: a record is damaged or breaks a rule of the log; the message names it.
            Untrusted: the guard does not believe a record, or misses one.
            UnsupportedFormat: a record was written by a newer release.
            StoreUnavailable: the store failed; call again.
        """
        with self._lock:
            seen = self._begin()
            self._tail()
            state = self._settle(seen)
            told, self._told = self._told, None
        if told is not None and told[0] > state.seq:
            self._tell_early_end(state.seq, *told)
        return state

    def check_end(self) -> RunState:
        """Look past the end of the log, and return the state: nothing follows its last record. For whoever is to write.

        A record that is missing looks like the end, and what is written there keeps it from ever being restored. Costs
        one LIST; behind a service nothing, since the service looks itself.

        Raises:
            CorruptObject: a record is missing: later ones are there, or a snapshot that folds them; or as ``refresh``.
            Untrusted, UnsupportedFormat, StoreUnavailable: as ``refresh``.
            AccessDenied: the store can't be listed.
        """
        with self._lock:
            seen = self._begin()
            while self._store.gateway() is None:
                found = beyond(self._store, self._seq)
                later, witness = found.record, f"record {found.record} is there"
                if later is None:
                    told = (self._told_by(key) for key in found.snapshots[:_TRIES])
                    later = next((seq for seq in told if seq is not None), None)
                    witness = f"a snapshot in {keys.SNAPSHOTS} tells of record {later}"
                if later is None:
                    break
                self._tail()  # it may be the next record, which others have written since
                if self._seq < later:
                    raise missing(self._run, self._seq, later if found.record is None else later - 1, witness)
            return self._settle(seen)

    def accept(self, sealed: bytes) -> RunState:
        """Fold a record that the caller has just written or read, and return the state.

        A record that is folded already changes nothing; one further on than the next makes the reader fetch
        those before it.

        Raises:
            CorruptObject, Untrusted, UnsupportedFormat, StoreUnavailable: as ``refresh``.
        """
        record, _ = unsealed_record("a record just written", sealed)
        with self._lock:
            seen, state = self._begin(), self._state or RunState(self._run)
            if record.seq > state.seq + 1:
                self._tail()
                state = self._state or state
            if record.seq == state.seq + 1:
                state = state.copy()
                self._fold(state, record, sealed)
                self._state = state
            if seen is not None and state.seq < seen:
                self._tail()  # others have gone on
            return self._settle(seen)

    def read(self, seq: int) -> tuple[Record, bytes] | None:
        """Fetch record ``seq`` and its sealed bytes, without folding it; None if it is not there.

        Raises:
            CorruptObject, UnsupportedFormat, StoreUnavailable: as ``refresh``.
        """
        key = keys.record_key(seq)
        try:
            return checked(self._read_of(key), partial(unsealed_record, key))
        except NotFound:
            return None

    def check_signature(self, record: Record, sealed: bytes) -> None:
        """Raise Untrusted where the guard believes neither a record's signature nor a countersignature of it.

        Raises:
            StoreUnavailable: the countersignature can't be read.
        """
        if self._guard is not None:
            self._believe(self._guard.check_signature, record, sealed)

    def run_key(self) -> str | None:
        """Return the public key that signed record 0, and so the run; None where nobody did, or there is no record.

        Costs a GET, once, where the run was opened at a snapshot.

        Raises:
            CorruptObject: record 0 is gone.
            CorruptObject, Untrusted, UnsupportedFormat, StoreUnavailable: as ``refresh``.
        """
        if self._first is None and self.state.seq >= 0:
            found = self.read(0)
            if found is None:
                raise CorruptObject(
                    f"run {self._run!r}: {keys.record_key(0)} is gone, which says who signs the run: restore it"
                )
            self._first = (_key_of(found[1]),)
        return None if self._first is None else self._first[0]

    @property
    def _seq(self) -> int:
        return -1 if self._state is None else self._state.seq

    def _begin(self) -> int | None:
        """Open the run if it is not; return the number of the newest record that the guard has seen before."""
        seen = None if self._guard is None else self._guard.begin()
        if self._state is None:
            self._state = self._open(seen)
        return seen

    def _settle(self, seen: int | None) -> RunState:
        state = self._state or RunState(self._run)
        if self._guard is not None:
            if state.seq < self._signed:
                witness = f"a snapshot that a trusted key signed tells of record {self._signed}"
                raise missing(self._run, state.seq, state.seq + 1, witness)
            if seen is not None and state.seq < seen:
                self._check_seen(self._guard, seen, state.seq)
                raise missing(self._run, state.seq, state.seq + 1, f"record {seen}, which was seen before, is there")
            self._guard.settle()
            self._settled = True
        return state

    def _believe(self, check: Callable[[Record, bytes, bytes | None], None], record: Record, sealed: bytes) -> None:
        """Check a record, and where its own signature will not do, its countersignature: a GET that good ones save."""
        try:
            check(record, sealed, None)
        except Untrusted as error:
            found = self._countersignature(record.seq) if error.reason in _OF_SIGNATURES else None
            if found is None:
                raise
            check(record, sealed, found)

    def _countersignature(self, seq: int) -> bytes | None:
        key = keys.countersignature_key(seq)
        try:
            return checked(self._read_of(key), partial(unsealed_countersignature, key))
        except NotFound:
            return None
        except (CorruptObject, UnsupportedFormat) as error:
            _logger.warning("run %s: %s is of no use: %s", self._run, key, error)
            return None

    def _fold(self, state: RunState, record: Record, sealed: bytes) -> None:
        """Fold a record into a state, in place, if the guard believes it."""
        self._check_room(state, len(sealed))
        if self._guard is not None:
            if record.previous != state.last and state.seq >= 0:
                before = self.read(state.seq)  # is another record there now than was folded?
                if before is not None:
                    self._believe(self._guard.check, *before)
            self._believe(self._guard.check, record, sealed)
        advance(state, record, sealed_hash(sealed))
        if record.seq == 0:
            self._first = (_key_of(sealed),)
        if self._guard is not None:
            self._guard.folded(record, sealed)

    def _check_room(self, state: RunState, nbytes: int) -> None:
        """Raise CorruptObject where a state would outgrow its readers: a log that is made up may have no end."""
        self._held += nbytes
        if self._held <= LOG:
            return
        self._held = state.measure() + nbytes  # much of what was folded is forgotten, in a run that is collected
        if self._held > LOG:
            raise CorruptObject(
                f"run {self._run!r}: up to record {state.seq + 1} its log says {self._held:,} bytes of what is not "
                f"forgotten, and readers take {LOG:,}: retire and delete some (pulse gc), or this is no log of ours"
            )

    def _tail(self) -> None:
        state: RunState | None = None
        first = self._seq + 1
        try:
            for record, sealed in self._records(first):
                if state is None:
                    state = RunState(self._run) if self._state is None else self._state.copy()
                self._fold(state, record, sealed)
        finally:
            self._state = state or self._state
        self._opening = False

    def _records(self, first: int) -> Iterator[tuple[Record, bytes]]:
        """Yield the records from one on, in order, until one is not there; an error is raised in its place."""
        threads = self._threads if self._opening else None
        for seq in count(first):
            if threads is not None and seq == first + _ONE_BY_ONE:
                yield from self._read_ahead(seq, threads)
                return
            found = self.read(seq)
            if found is None:
                return
            yield found

    def _read_ahead(self, first: int, threads: Callable[[int, str], Executor]) -> Iterator[tuple[Record, bytes]]:
        with threads(_AHEAD, "pulse-log") as pool:
            for start in count(first, _AHEAD):
                for found in ParallelMap(pool)(self._attempt, range(start, start + _AHEAD)):
                    if found is None:
                        return
                    if isinstance(found, PulseError):
                        raise found
                    yield found

    def _attempt(self, seq: int) -> tuple[Record, bytes] | PulseError | None:
        try:
            return self.read(seq)
        except PulseError as error:
            return error

    def _open(self, seen: int | None) -> RunState:
        if self._whole:
            return RunState(self._run)
        for key in islice(self._snapshot_keys(), _TRIES):
            state = self._from_snapshot(key, seen)
            if state is not None:
                self._snapshot_seq = state.seq
                return state
        return RunState(self._run)

    def _snapshot_keys(self) -> Iterator[str]:
        """Yield the snapshots to try: the one that the hint names, then all, newest first."""
        hinted = None
        try:
            head = checked(self._read_of(keys.HEAD), unsealed_head)
        except NotFound:
            pass
        except (CorruptObject, UnsupportedFormat) as error:
            _logger.warning("run %s: the head hint is of no use: %s", self._run, error)
        else:
            self._told = (head.seq, f"the hint {keys.HEAD}")
            if head.snapshot is None:
                return
            if head.snapshot < 10**12:
                hinted = keys.snapshot_key(head.snapshot)
                yield hinted
        listed = islice(self._store.list(keys.SNAPSHOTS), MOST_LISTED)
        found = (key for key in listed if key != hinted and keys.snapshot_seq(key) is not None)
        yield from heapq.nlargest(_TRIES, found)

    def _from_snapshot(self, key: str, seen: int | None) -> RunState | None:
        """Return the state that a snapshot holds, or None, with a warning, where it can't be relied upon."""
        try:
            snapshot = self._read_snapshot(key)
            if self._guard is not None:
                self._signed = max(self._signed, snapshot.seq)
            elif self._told is None or self._told[0] < snapshot.seq:
                self._told = (snapshot.seq, key)

            check_last = partial(record_with_hash, snapshot.seq, snapshot.last)
            sealed = checked(self._read_of(keys.record_key(snapshot.seq)), check_last)
            state = RunState.from_snapshot(snapshot)
            if self._guard is not None:
                record, _ = unsealed_record(keys.record_key(snapshot.seq), sealed)
                self._believe(self._guard.check, record, sealed)
                if seen is not None and seen < snapshot.seq:
                    self._check_seen(self._guard, seen, snapshot.seq)
                self._guard.folded(record, sealed)
            return state
        except (NotFound, SchemaError, CorruptObject, Untrusted, UnsupportedFormat) as error:
            _logger.warning("run %s: %s is of no use, trying an older one: %s", self._run, key, error)
            return None

    def _read_of(self, key: str) -> Callable[[], bytes]:
        """Return what reads a document of the run: no more of it than such a one can be long."""
        return partial(self._store.get, key, max_bytes=most_bytes(key))

    def _read_snapshot(self, key: str) -> Snapshot:
        snapshot, document = checked(self._read_of(key), unsealed_snapshot)
        if self._guard is not None:
            self._guard.check_snapshot(document)
        if snapshot.run != self._run or not snapshot.seq < 10**12 or keys.snapshot_key(snapshot.seq) != key:
            raise CorruptObject(f"it is snapshot {snapshot.seq} of run {snapshot.run!r}")
        return snapshot

    def _told_by(self, key: str) -> int | None:
        """Return the newest record that a snapshot tells of, None where it can't be relied upon."""
        try:
            return self._read_snapshot(key).seq
        except (NotFound, CorruptObject, Untrusted, UnsupportedFormat):
            return None

    def _tell_early_end(self, seq: int, told: int, witness: str) -> None:
        message = (
            f"the log ends at record {seq}, and {witness} tells of record {told}: record {seq + 1} is missing, or the "
            f"log was taken back. What came after it is not seen; pulse doctor --run {self._run} says what is missing"
        )
        self._events.tell(Event(EventKind.RECORD_MISSING, self._run, message, keys.record_key(seq + 1)))

    def _check_seen(self, guard: Guard, seen: int, newest: int) -> None:
        """Raise Untrusted unless the log still has the record that was seen before, which a snapshot leads past."""
        found = self.read(seen)
        if found is None:
            guard.gone(seen, newest)
        else:
            self._believe(guard.check, *found)


def _key_of(sealed: bytes) -> str | None:
    signature = open_sealed(sealed).signature
    return None if signature is None else signature.public
