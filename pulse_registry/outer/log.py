"""The outer log in a store: read record by record, and appended to by create-if-absent.

It lies below ``outer/`` of its run, under the names of a run's log; workers never read it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from functools import partial
from typing import Any, Final

from pulse_registry.errors import (
    AlreadyExists,
    Conflict,
    CorruptObject,
    Distrust,
    InvalidArgument,
    NotFound,
    StoreUnavailable,
    UnsupportedFormat,
    Untrusted,
)
from pulse_registry.format import keys
from pulse_registry.log.clock import Clock, NewId, random_id, timestamp, utc_now
from pulse_registry.log.documents import LOG, read_document
from pulse_registry.log.fold import sealed_hash
from pulse_registry.log.gap import beyond, missing
from pulse_registry.log.guard import Guard
from pulse_registry.log.home import Residence
from pulse_registry.log.read_ahead import follow
from pulse_registry.outer.snapshots import OuterSnapshots
from pulse_registry.outer.state import OuterState
from pulse_registry.store import PrefixStore, Store
from pulse_registry.store.verified_read import checked
from pulse_schemas import Fault, HomeEntry, SchemaError, Signer, open_sealed
from pulse_schemas.outer import MoveRoundsRecord, OuterRecord, unseal_outer_record

FOLDER: Final = keys.OUTER.rstrip("/")
Make = Callable[[OuterState, dict[str, Any]], OuterRecord | None]
"""Makes the record that is to follow a state, from it and the fields that all records have; None: none is wanted."""


class OuterLog:
    """The outer log of one run, as one member sees it. Not thread-safe.

    Attributes:
        state: the fold of all that was read.
        signed: whether record 0 is: then no other is appended without a signature.
        new_id: gives write ids.
    """

    def __init__(
        self,
        store: Store,
        run: str,
        signer: Signer | None = None,
        guard: Guard | None = None,
        threads: Callable[[int, str], Executor] | None = None,
        *,
        whole: bool = False,
        clock: Clock = utc_now,
        new_id: NewId = random_id,
    ) -> None:
        """Prepare; no I/O yet.

        Args:
            store: scoped to the run.
            run: its name.
            signer: signs what is appended.
            guard: judges records; None believes what the rules of the log allow.
            threads: makes an executor, of so many threads and their name's beginning, to open long logs with; None
                reads one record after the other.
            whole: fold every record, from the first one on, and keep all rounds that were not retired.
            clock: the time of day, which records carry; nothing is decided by it.
            new_id: gives write ids.
        """
        self.state, self.signed, self.new_id = OuterState(run, whole=whole), False, new_id
        self._store, self._signer, self._guard = PrefixStore(store, FOLDER), signer, guard
        self._clock, self._residence = clock, Residence(store, run)
        self._threads, self._opening, self._looked = threads, True, False
        self._snapshots = OuterSnapshots(self._store, run, signer, guard)
        self._held = 0  # bytes of records folded since what the state says was last measured
        self._unknown: dict[str, tuple[int, bytes]] = {}  # appends without an answer, by write id

    def refresh(self) -> OuterState:
        """Read what is new: a GET a record, and one that finds none.

        The first call opens the log: at its newest snapshot, unless it is to be folded whole, and then by many records
        at a time where there are many.

        Raises:
            CorruptObject, UnsupportedFormat: a record is damaged, breaks a rule, or is of another release.
            Untrusted: the guard does not believe a record, or misses one; nothing of it was folded.
            StoreUnavailable: what was read before is kept; call again.
        """
        for _ in self.follow():
            pass
        return self.state

    def follow(self) -> Iterator[tuple[OuterRecord, str | None]]:
        """Read what is new, as ``refresh`` does, and yield each record, with why it counts for nothing, or None."""
        seen = None if self._guard is None else self._guard.begin(self._first if self._opening else None)
        if self._opening and self.state.seq < 0 and not self.state.whole:
            self._open(seen)
        for record, sealed in follow(self.read, self.state.seq + 1, self._threads if self._opening else None):
            yield record, self.fold(record, sealed)
        self._opening = False
        if self._guard is not None:
            self._settle(self._guard, seen)

    def fold_whole(self) -> OuterState:
        """Read the log anew, from its first record on, and keep all rounds that were not retired.

        Raises:
            CorruptObject, UnsupportedFormat, Untrusted, StoreUnavailable: as ``refresh``.
        """
        self.state, self._opening = OuterState(self.state.run, whole=True), True
        return self.refresh()

    def wait(self, poll_s: float, timeout_s: float, sleep: Callable[[float], object]) -> None:
        """Wait until a record follows, at most ``timeout_s``: a service answers at once, a bucket is not asked.

        Args:
            poll_s: pause of whom no service tells.
            timeout_s: how long to wait at most.
            sleep: what pauses.

        Raises:
            AccessDenied, StoreUnavailable: the service can't tell.
        """
        gateway = self._store.gateway()
        if gateway is not None:
            try:
                gateway.wait_for_record(self.state.run, self.state.seq + 1, timeout_s, keys.OUTER)
            except NotFound:
                pass  # a service that knows of no outer rounds
            else:
                return
        sleep(min(poll_s, timeout_s))

    def append(self, make: Make, write_id: str | None = None) -> OuterRecord | None:
        """Append a record behind whatever others append meanwhile.

        Args:
            make: is called with each newer state, until its record is in the log; it is not called again once it was.
            write_id: of the record. After StoreUnavailable call again with the same one: what landed is found, and is
                never appended twice.

        Returns:
            The record; whether it counts, its fold has said (``OuterState``). None: ``make`` wanted none.

        Raises:
            Fenced, Mirrored: the run has moved elsewhere, or this is a copy of it; nothing was written.
            StoreUnavailable: the record may be in the log, or land yet.
            CorruptObject, UnsupportedFormat, Untrusted: as ``refresh``; or the record would not be believed, and was
                not written.
        """
        return self._append(make, write_id)

    def move(self, home: HomeEntry, *, lost: bool = False) -> None:
        """End the rounds here, as a `move` record of the run's log has ended the run; nothing where they never began.

        Idempotent.

        Args:
            home: what the run's log says.
            lost: append it wherever the rounds go on.

        Raises:
            Fenced: they have moved elsewhere.
            CorruptObject, UnsupportedFormat, Untrusted, StoreUnavailable: as ``append``.
        """

        def wanted(state: OuterState, common: dict[str, Any]) -> MoveRoundsRecord | None:
            if state.start is None or (state.home is not None and state.home.move == home.move):
                return None
            return MoveRoundsRecord(**common, to=home.to)

        self._append(wanted, home.move, anywhere=lost)

    def _append(self, make: Make, write_id: str | None, *, anywhere: bool = False) -> OuterRecord | None:
        write_id = write_id or self.new_id()
        while True:
            if (landed := self._landed(write_id)) is not None:
                return landed
            state = self.check_end()
            common = {
                "run": state.run,
                "seq": state.seq + 1,
                "write_id": write_id,
                "previous": state.last,
                "created_at": timestamp(self._clock()),
            }
            record = make(state, common)
            if record is None:
                return None
            if not anywhere:
                self._residence.check(state)
            sealed = record.seal(self._signer)
            self._check_signed(record, sealed)
            self._unknown[write_id] = record.seq, sealed
            try:
                self._store.put(keys.record_key(record.seq), sealed, if_absent=True)
            except AlreadyExists:
                continue  # others' record, or this one, whose answer was lost on its way
            except (Conflict, InvalidArgument):  # a service refuses it, and has written nothing
                del self._unknown[write_id]
                raise
            del self._unknown[write_id]
            self.fold(record, sealed)
            if self._store.gateway() is None:
                self._snapshots.appended(self.state)
            return record

    def read(self, seq: int) -> tuple[OuterRecord, bytes] | None:
        """Fetch a record and its sealed bytes, without folding it; None if it is not there.

        Raises:
            CorruptObject, UnsupportedFormat, StoreUnavailable: as ``refresh``.
        """
        key = keys.record_key(seq)
        try:
            return checked(partial(read_document, self._store, key), partial(_unsealed, key))
        except NotFound:
            return None

    def fold(self, record: OuterRecord, sealed: bytes) -> str | None:
        """Fold the record that follows, if the guard believes it; return why it counts for nothing, or None.

        Raises:
            CorruptObject, Untrusted: as ``refresh``.
        """
        guard, state = self._guard, self.state
        self._check_room(len(sealed))
        if guard is not None:
            if record.previous != state.last and state.seq >= 0 and (before := self.read(state.seq)) is not None:
                guard.check(*before)  # is another record there now than was folded?
            guard.check(record, sealed)
        void = state.advance(record, sealed_hash(sealed))
        if record.seq == 0:
            self.signed = open_sealed(sealed).signature is not None
        if guard is not None:
            guard.folded(record, sealed)
        return void

    def check_end(self) -> OuterState:
        """Read what is new; before the first record that is appended, look past the end, too: one LIST.

        A record that is missing looks like the end, and what is written there keeps it from ever being restored.

        Raises:
            CorruptObject: a record is missing; or as ``refresh``.
            AccessDenied: the store can't be listed.
        """
        state = self.refresh()
        while not self._looked:
            later = None if self._store.gateway() is not None else beyond(self._store, state.seq).record
            if later is not None:
                state = self.refresh()  # it may be the next one, which others have written since
                if state.seq < later:
                    raise missing(state.run, state.seq, later - 1, f"outer record {later} is there")
            self._looked = later is None
        return state

    def _check_room(self, nbytes: int) -> None:
        """Raise CorruptObject where the state would outgrow its readers: a log that is made up may have no end."""
        self._held += nbytes
        if self._held <= LOG:
            return
        self._held = self.state.measure() + nbytes  # much of it is behind two checkpoints, or was retired
        if self._held > LOG:
            raise CorruptObject(
                f"run {self.state.run!r}: up to record {self.state.seq + 1} its outer log says {self._held:,} bytes of "
                f"what is not forgotten, and readers take {LOG:,}: retire and delete some (pulse gc), if there are "
                "checkpoints, or this is no log of ours"
            )

    def _open(self, seen: int | None) -> None:
        """Begin at the newest snapshot that can be relied upon, if there is one."""
        first = self.read(0)
        found = None if first is None else self._snapshots.newest()
        if found is None or first is None:
            return
        if self._guard is not None and seen is not None and seen < found.seq:
            self._check_seen(self._guard, seen, found)
        self.state, self.signed = found, open_sealed(first[1]).signature is not None

    def _landed(self, write_id: str) -> OuterRecord | None:
        """Return the record of an append without an answer, if the log has it; else it is tried again.

        At its number there is either nothing, and the same bytes are put there again, or a record that came to stay.
        """
        if write_id not in self._unknown:
            return None
        seq, sealed = self._unknown[write_id]
        found = self.read(seq)
        if found is None:
            try:
                self._store.put(keys.record_key(seq), sealed, if_absent=True)
            except AlreadyExists:
                found = self.read(seq)
                if found is None:
                    raise StoreUnavailable(
                        f"{self._store.url}: record {seq} is said to exist and not to; call again"
                    ) from None
            else:
                found = unseal_outer_record(sealed), sealed
        del self._unknown[write_id]
        if self.state.seq < seq:
            self.refresh()
        return found[0] if found[0].write_id == write_id else None

    def _check_signed(self, record: OuterRecord, sealed: bytes) -> None:
        """Raise Untrusted where readers would not believe a record that is to be appended."""
        if self._guard is not None:
            self._guard.check_signature(record, sealed)
        elif self.signed and self._signer is None:
            raise Untrusted(
                f"the outer rounds of run {self.state.run!r} are signed, and this member signs nothing: readers that "
                "pin keys would refuse them from here on. Give it its key (signing_key, PULSE_SIGNING_KEY)",
                Distrust.UNSIGNED,
            )

    def _settle(self, guard: Guard, seen: int | None) -> None:
        newest = self.state.seq
        if seen is not None and newest < seen:
            self._check_seen(guard, seen, self.state)
            raise missing(self.state.run, newest, newest + 1, f"record {seen}, which was seen before, is there")
        guard.settle()

    def _first(self) -> str | None:
        """Return the hash of record 0; None where it is not there, or is not to be read."""
        try:
            found = self.read(0)
        except (CorruptObject, UnsupportedFormat):
            return None
        return None if found is None else sealed_hash(found[1])

    def _check_seen(self, guard: Guard, seen: int, newest: OuterState) -> None:
        """Raise Untrusted unless the log still has record ``seen``, which was seen before, as the guard knows it."""
        found = self.read(seen)
        if found is None:
            guard.gone(seen, newest.seq, newest.last)
        else:
            guard.check(*found)


def _unsealed(key: str, sealed: bytes) -> tuple[OuterRecord, bytes]:
    try:
        return unseal_outer_record(sealed), sealed
    except SchemaError as error:
        kind = UnsupportedFormat if error.fault is Fault.UNSUPPORTED else CorruptObject
        raise kind(f"{FOLDER}/{key}: {error}") from error
