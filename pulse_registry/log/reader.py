"""Log reader: opens a run's log at the newest snapshot, then reads one record after the other.

Order of trust: records are the truth (`records`); a snapshot counts only if the record that it names is there with the
same hash; the head hint only says which snapshot to try first (`snapshots`). A guard may ask for more: signatures, and
that the log continues what was seen before.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import TYPE_CHECKING

from pulse_registry.errors import CorruptObject
from pulse_registry.events import Event, EventKind, Events
from pulse_registry.format import keys
from pulse_registry.log.documents import LOG
from pulse_registry.log.fold import advance, sealed_hash
from pulse_registry.log.gap import beyond, missing
from pulse_registry.log.guard import Guard
from pulse_registry.log.records import Records
from pulse_registry.log.segments import Segment
from pulse_registry.log.snapshots import Snapshots
from pulse_registry.log.state import RunState
from pulse_registry.log.unsealing import (
    unsealed_record,
)
from pulse_registry.store.elsewhere import asking_all_roots
from pulse_schemas import Record, open_sealed

if TYPE_CHECKING:
    from pulse_registry.store import Store


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
        self._folded = 0
        self._first: tuple[str | None] | None = None  # which key signed record 0, once that was read
        self._opening = True
        self._events, self._whole = events or Events(), whole
        self._records = Records(store, run, threads)
        self._snapshots = Snapshots(store, run, guard, self._records, threads)

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

    @property
    def segments(self) -> Sequence[Segment]:
        """Of the snapshot that this reader opened the run from; none if from record 0, or one without segments."""
        return self._snapshots.segments

    @property
    def folded(self) -> int:
        """Bytes of the records folded since the run was opened, snapshots not counted."""
        return self._folded

    def refresh(self, told: Callable[[Record], None] | None = None) -> RunState:
        """Read what is new and return the state; of a run that does not exist, the empty state.

        The first call opens the run: a GET each for the hint, its snapshot and the snapshot's last record,
        then the tail. Every call costs a GET a new record and one that finds none; on opening a long tail is read
        ahead, by up to 15 more that find none. Keys are listed only if there is no usable hint on opening. Records that
        were read before an error are kept.

        Args:
            told: is told of each record once it is believed, before the next one is looked for; it must not wait.

        Raises:
            CorruptObject: a record is damaged or breaks a rule of the log; the message names it.
            Untrusted: the guard does not believe a record, or misses one.
            Behind: the log is a copy that has not come as far as what the guard has seen of the run elsewhere.
            UnsupportedFormat: a record was written by a newer release.
            StoreUnavailable: the store failed; call again.
        """
        with self._lock:
            seen = self._begin()
            self._tail(told)
            state = self._settle(seen)
            later, self._snapshots.told = self._snapshots.told, None
        if later is not None and later[0] > state.seq:
            self._tell_early_end(state.seq, *later)
        return state

    def look_further(self) -> RunState:
        """Read what is new at any of the store's roots, as ``refresh`` does at the nearest one, and return the state.

        Raises:
            As ``refresh``.
        """
        with asking_all_roots():
            return self.refresh()

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
                    later = self._snapshots.later(found.snapshots)
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
        return self._records.read(seq)

    def check_signature(self, record: Record, sealed: bytes) -> None:
        """Raise Untrusted where the guard believes neither a record's signature nor a countersignature of it.

        Raises:
            StoreUnavailable: the countersignature can't be read.
        """
        if self._guard is not None:
            self._records.believe(self._guard.check_signature, record, sealed)

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
                    f"run {self._run!r}: {keys.record_key(0)} is missing, whose key signs the run: restore it"
                )
            self._first = (_key_of(found[1]),)
        return None if self._first is None else self._first[0]

    @property
    def _seq(self) -> int:
        return -1 if self._state is None else self._state.seq

    def _begin(self) -> int | None:
        """Open the run if it is not; return the number of the newest record that the guard has seen before."""
        opening = self._state is None or self._state.seq < 0
        seen = None if self._guard is None else self._guard.begin(self._records.first if opening else None)
        if self._state is None:
            found = None if self._whole else self._snapshots.newest(seen)
            self._state = RunState(self._run) if found is None else found
            self._snapshot_seq = self._state.seq
        return seen

    def _settle(self, seen: int | None) -> RunState:
        state = self._state or RunState(self._run)
        if self._guard is not None:
            if state.seq < self._snapshots.signed:
                witness = f"a snapshot that a trusted key signed tells of record {self._snapshots.signed}"
                raise missing(self._run, state.seq, state.seq + 1, witness)
            if seen is not None and state.seq < seen:
                self._guard.check_end(state.seq, state.last)
                with asking_all_roots():
                    self._tail()
                state = self._state or state
            if seen is not None and state.seq < seen:
                self._records.check_seen(self._guard, seen, state.seq, state.last)
                raise missing(self._run, state.seq, state.seq + 1, f"record {seen}, which was seen before, is there")
            self._guard.settle()
            self._settled = True
        return state

    def _fold(self, state: RunState, record: Record, sealed: bytes) -> None:
        """Fold a record into a state, in place, if the guard believes it."""
        self._check_room(state, len(sealed))
        if self._guard is not None:
            if record.previous != state.last and state.seq >= 0:
                before = self.read(state.seq)  # is another record there now than was folded?
                if before is not None:
                    self._records.believe(self._guard.check, *before)
            self._records.believe(self._guard.check, record, sealed)
        advance(state, record, sealed_hash(sealed))
        self._folded += len(sealed)
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

    def _tail(self, told: Callable[[Record], None] | None = None) -> None:
        state: RunState | None = None
        first = self._seq + 1
        try:
            for record, sealed in self._records.follow(first, ahead=self._opening):
                if state is None:
                    state = RunState(self._run) if self._state is None else self._state.copy()
                self._fold(state, record, sealed)
                if told is not None:
                    told(record)
        finally:
            self._state = state or self._state
        self._opening = False

    def _tell_early_end(self, seq: int, told: int, witness: str) -> None:
        message = (
            f"the log ends at record {seq}, and {witness} tells of record {told}: record {seq + 1} is missing, or the "
            f"log was rolled back. Later versions are not seen; pulse doctor --run {self._run} says what is missing"
        )
        self._events.tell(Event(EventKind.RECORD_MISSING, self._run, message, keys.record_key(seq + 1)))


def _key_of(sealed: bytes) -> str | None:
    signature = open_sealed(sealed).signature
    return None if signature is None else signature.public
