"""Append guard of outer rounds: checks a record that a member made, then creates it at its number.

A member that holds no key of the bucket sends its records here, sealed as they are to be stored. Unlike the log itself,
it takes no record that would count for nothing, and no contribution that is not there or says otherwise.
"""

from __future__ import annotations

import threading
from functools import partial

from pulse_registry.errors import (
    AlreadyExists,
    Conflict,
    CorruptObject,
    Fenced,
    InvalidArgument,
    NotFound,
    UnsupportedFormat,
    Untrusted,
)
from pulse_registry.format import keys
from pulse_registry.format.contribution import told_head
from pulse_registry.format.outer_checkpoint import told_groups
from pulse_registry.format.patch_head import MOST_HEADER
from pulse_registry.log.append_guard import MOST_HEAD_BYTES
from pulse_registry.log.documents import SMALL
from pulse_registry.log.guard import Guard
from pulse_registry.log.home import Residence
from pulse_registry.log.mirror_mark import check_mirror
from pulse_registry.log.record_put import put_record
from pulse_registry.outer.contributions import is_head_of
from pulse_registry.outer.log import FOLDER, OuterLog
from pulse_registry.outer.snapshots import OuterSnapshots
from pulse_registry.outer.state import OuterState
from pulse_registry.process.parallel import Map
from pulse_registry.store import PrefixStore, Store
from pulse_registry.store.verified_read import checked
from pulse_schemas import ObjectRef, SchemaError, Signer, open_sealed
from pulse_schemas.outer import (
    CheckpointRecord,
    ContributeRecord,
    LeaveRecord,
    MergedRecord,
    OuterRecord,
    unseal_outer_record,
)

_OfObject = ContributeRecord | CheckpointRecord | MergedRecord


class OuterAppendGuard:
    """Follows the log of a run's outer rounds, and appends to it for others; safe to share between threads.

    One record is admitted at a time, so that each number has one record even over a store whose conditional put lets
    several writers win, as long as all members come through this one object.

    Attributes:
        run: the run's name.
        state: as last seen; it never changes.
    """

    def __init__(
        self, store: Store, run: str, guard: Guard | None = None, signer: Signer | None = None, *, each: Map = map
    ) -> None:
        """Prepare; no I/O yet.

        Args:
            store: scoped to the run.
            run: its name.
            guard: judges records; None believes what the rules of the log allow.
            signer: signs the snapshots of the log, which members behind a service don't write.
            each: how to look at the groups of a checkpoint: `map`, or a parallel one.
        """
        self.run, self.state = run, OuterState(run)
        self._root = store
        self._store, self._guard, self._each = PrefixStore(store, FOLDER), guard, each
        self._log = OuterLog(store, run, guard=guard)
        self._residence = Residence(store, run)
        self._snapshots = OuterSnapshots(self._store, run, signer, guard)
        self._lock = threading.Lock()

    def refresh(self) -> OuterState:
        """Read what is new, and return the state; empty where there are no outer rounds.

        Raises:
            CorruptObject, UnsupportedFormat, Untrusted, StoreUnavailable: as ``OuterLog.refresh``.
        """
        with self._lock:
            try:
                self._log.refresh()
            finally:
                self._publish()
            return self.state

    def admit(self, sealed: bytes) -> OuterRecord:
        """Append a sealed record, byte for byte; return it. Idempotent: to send it again is no error.

        Raises:
            InvalidArgument: it is no sealed record of these rounds, breaks a rule, would count for nothing, names a
                contribution that is not there as it says, is not signed where record 0 is, or, where keys are pinned,
                not by one that may. Nothing was written.
            AlreadyExists: another record has its number: read that one, and go on.
            Conflict: its number is further on than the next.
            Fenced: another process has joined under the member's name, or the run has moved elsewhere.
            Mirrored: the run is a copy; its source takes records.
            CorruptObject, Untrusted, UnsupportedFormat: the log can't be read, or a record of it is missing.
            StoreUnavailable: the store failed; send the same record again. It may have landed, or land yet.
        """
        record = self._read(sealed)
        if (roots := self._store.roots()) is not None:
            roots.write_at_home(self.run)
        with self._lock:
            try:
                self._log.check_end()  # so that nobody fills a gap
                self._admit(record, sealed)
            finally:
                self._publish()
        return record

    def admit_copied(self, sealed: bytes, seq: int) -> OuterRecord:
        """Append the next record of the rounds' source to their copy here, as a mirror brings it. Idempotent.

        It must go on with the chain, keep the rules that readers hold it to, and be signed as the pins say.

        Args:
            sealed: the record.
            seq: the number that it is to have.

        Raises:
            Conflict: the run is no copy; or its number is further on than the next.
            InvalidArgument, AlreadyExists, CorruptObject, Untrusted, UnsupportedFormat, StoreUnavailable: as ``admit``.
        """
        record = self._read(sealed)
        if record.seq != seq:
            raise InvalidArgument(f"run {self.run!r}: this is outer record {record.seq}, and not {seq}")
        with self._lock:
            try:
                self._log.refresh()
                state = self._log.state
                if not self._has(state, record, sealed):
                    check_mirror(self._root, self.run)
                    self._check_goes_on(state, record, state.violation(record))
                    self._create(record, sealed)
                    self._log.fold(record, sealed)
            finally:
                self._publish()
        return record

    def _has(self, state: OuterState, record: OuterRecord, sealed: bytes) -> bool:
        """Tell whether the log has a record already.

        Raises:
            AlreadyExists: it has another one of its number.
        """
        if record.seq > state.seq:
            return False
        if self._stored(record.seq) != sealed:
            raise AlreadyExists(
                f"run {self.run!r}: another outer record is number {record.seq} already: read it and go on"
            )
        return True

    def _admit(self, record: OuterRecord, sealed: bytes) -> None:
        state = self._log.state
        if self._has(state, record, sealed):
            return
        self._residence.check(state)
        self._check_next(state, record)
        if self._log.signed and open_sealed(sealed).signature is None:
            raise self._refused(record, "it is not signed, and record 0 is: give the member its key")
        match record:
            case ContributeRecord() if record.object is not None:
                self._check_contribution(record, record.object)
            case CheckpointRecord():
                self._check_checkpoint(record, record.object)
            case MergedRecord():
                self._check_stored(record, record.object)
        self._create(record, sealed)
        self._log.fold(record, sealed)
        self._snapshots.appended(self._log.state)

    def _read(self, sealed: bytes) -> OuterRecord:
        if len(sealed) > SMALL:
            raise InvalidArgument(
                f"run {self.run!r}: an outer record has at most {SMALL:,} bytes, and this {len(sealed):,}"
            )
        try:
            record = unseal_outer_record(sealed)
        except SchemaError as error:
            raise InvalidArgument(f"run {self.run!r}: this is no sealed outer record: {error}") from error
        if record.run != self.run:
            raise InvalidArgument(f"run {self.run!r}: the outer record belongs to run {record.run!r}")
        if self._guard is not None:
            try:
                self._guard.check_signature(record, sealed)
            except Untrusted as error:
                raise InvalidArgument(str(error)) from error
        return record

    def _check_goes_on(self, state: OuterState, record: OuterRecord, wrong: str | None) -> None:
        if record.seq > state.seq + 1:
            raise Conflict(
                f"run {self.run!r}: outer record {record.seq} can't be appended: the newest is {state.seq}: read on"
            )
        if wrong is not None:
            raise self._refused(record, wrong)

    def _check_next(self, state: OuterState, record: OuterRecord) -> None:
        wrong = state.violation(record) or state.void(record)
        mine = not isinstance(record, ContributeRecord | LeaveRecord) or state.holds_term(record.member, record.term)
        if record.seq == state.seq + 1 and wrong is not None and not mine:
            raise Fenced(f"run {self.run!r}: outer record {record.seq}: {wrong}: this process must stop")
        self._check_goes_on(state, record, wrong)

    def _check_stored(self, record: _OfObject, named: ObjectRef) -> None:
        """Check that an object is there with its size, under a name that says what it is, and of which round."""
        kind = "contribution" if isinstance(record, ContributeRecord) else record.kind
        if keys.outer_object(named.key) != (kind, record.round):
            raise self._refused(record, f"{named.key} is no name of a {kind} of round {record.round}")
        if (wrong := self._missing(named.key, named.size)) is not None:
            raise self._refused(record, wrong)

    def _missing(self, key: str, wanted: int) -> str | None:
        try:
            size = self._store.size(key)
        except NotFound:
            return f"{key} is not there: store it first"
        return None if size == wanted else f"{key} has {size} bytes, and not {wanted}"

    def _check_checkpoint(self, record: CheckpointRecord, named: ObjectRef) -> None:
        """Check that a checkpoint is there: its head, and all groups that it names; they are not decoded."""
        self._check_stored(record, named)
        if named.size > MOST_HEAD_BYTES:
            raise self._refused(record, f"{named.key} has {named.size:,} bytes, and a head {MOST_HEAD_BYTES:,} at most")
        read = partial(self._store.get, named.key, max_bytes=named.size)
        try:
            entries = checked(read, partial(told_groups, record))
        except NotFound as error:
            raise self._refused(record, f"{named.key} is not there any more") from error
        except (CorruptObject, UnsupportedFormat) as error:
            raise self._refused(record, str(error)) from error
        groups = zip(entries.groups.tolist(), entries.sizes.tolist(), strict=True)
        found = self._each(lambda one: self._missing(keys.checkpoint_group_key(named.key, one[0]), one[1]), groups)
        if (wrong := next((one for one in found if one is not None), None)) is not None:
            raise self._refused(record, wrong)

    def _check_contribution(self, record: ContributeRecord, named: ObjectRef) -> None:
        """Check that a contribution is there, and says of itself what its record says; its levels are not read."""
        if keys.contribution_of(named.key) != (record.round, record.member):
            raise self._refused(
                record, f"{named.key} is no name of a contribution of {record.member!r} to round {record.round}"
            )
        self._check_stored(record, named)
        begin = (0, min(named.size, MOST_HEADER))
        read = partial(self._store.get, named.key, begin)
        try:
            head = checked(read, lambda data: told_head(named.key, data, named.size))
        except NotFound as error:
            raise self._refused(record, f"{named.key} is not there any more") from error
        except (CorruptObject, UnsupportedFormat) as error:
            raise self._refused(record, str(error)) from error
        start = self._log.state.start
        rounds = None if start is None else (start.layout, start.values)
        if not is_head_of(head, record) or (head.layout, head.values) != rounds:
            raise self._refused(record, f"{named.key} says of itself something else")

    def _create(self, record: OuterRecord, sealed: bytes) -> None:
        if not put_record(self._store, record.seq, sealed):
            self._log.refresh()
            raise AlreadyExists(f"run {self.run!r}: another outer record took number {record.seq}: read it and go on")

    def _stored(self, seq: int) -> bytes:
        return self._store.get(keys.record_key(seq), max_bytes=SMALL)

    def _refused(self, record: OuterRecord, why: str) -> InvalidArgument:
        return InvalidArgument(f"run {self.run!r}: outer record {record.seq} is not valid: {why}")

    def _publish(self) -> None:
        if self._log.state.seq > self.state.seq:
            self.state = self._log.state.copy()
