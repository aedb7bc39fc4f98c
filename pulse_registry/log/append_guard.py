"""Append guard: checks a record that somebody else made, then creates it at its number.

A writer that holds no key of the bucket sends its records here, sealed as they are to be stored.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

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
from pulse_registry.format.patch_parts import PatchPart, Stored, parts_in
from pulse_registry.log.documents import RECORD, read_document
from pulse_registry.log.files import fetch_file_set
from pulse_registry.log.home import Residence
from pulse_registry.log.mirror_mark import check_mirror
from pulse_registry.log.named_objects import keyframes_of, objects_of, patches_of
from pulse_registry.log.reader import LogReader
from pulse_registry.log.record_put import put_record
from pulse_registry.log.rules import is_void, violation
from pulse_registry.log.snapshotter import Snapshotter
from pulse_registry.log.state import RunState
from pulse_registry.process.parallel import Map
from pulse_registry.store.verified_read import checked
from pulse_schemas import (
    AttachRecord,
    CommitRecord,
    EpochRecord,
    MoveRecord,
    ObjectRef,
    PatchRef,
    Record,
    SchemaError,
    open_sealed,
    unseal_record,
)

if TYPE_CHECKING:
    from pulse_registry.store import Store

MOST_HEAD_BYTES: Final = 32 << 20
"""Of a patch in parts, whose head is read to look for its parts: with 400,000 groups, of 3 * 10^12 cells of BF16."""
LONGEST_LEAP: Final = 2**32
"""From one epoch to the next: seconds since 1970 would do for epochs."""


class AppendGuard:
    """Appends records to one run's log for others; safe to share between threads.

    One record is admitted at a time. So even over a store whose conditional put lets several writers win, each number
    has one record, as long as all writers of the run come through this one object.
    """

    def __init__(self, store: Store, run: str, reader: LogReader, snapshotter: Snapshotter, *, each: Map = map) -> None:
        """Prepare to admit; no I/O yet.

        Args:
            store: the store, scoped to the run's prefix.
            run: the run's name.
            reader: reads the same run; it is kept up to date with what is appended.
            snapshotter: keeps the run's snapshots and its hint.
            each: how to look at the objects that a record names: `map`, or a parallel one.
        """
        self._store = store
        self._run = run
        self._reader = reader
        self._snapshotter = snapshotter
        self._each = each
        self._residence = Residence(store, run)
        self._lock = threading.Lock()
        self._looked = False

    def admit(self, sealed: bytes) -> Record:
        """Append a sealed record to the log, byte for byte; return it. Idempotent: to send it again is no error.

        Raises:
            InvalidArgument: it is no sealed record of this run, breaks a rule of the log, names an object or a
                layout that is not there as it says, is not signed on a run that is, or, where keys are pinned, not by
                one that may. Nothing was written.
            AlreadyExists: another record has its number: read that one, and go on.
            Conflict: its number is further on than the next.
            Fenced: a newer writer began its term, or the run has moved elsewhere; this one must stop.
            Mirrored: the run is a copy; its source takes records.
            CorruptObject, Untrusted, UnsupportedFormat: the log can't be read, or a record of it is missing.
            StoreUnavailable: the store failed; send the same record again. It may have landed, or land yet.
        """
        record = self._read(sealed)
        if (roots := self._store.roots()) is not None:
            roots.write_at_home(self._run)
        with self._lock:
            state = self._reader.refresh()
            if record.seq <= state.seq:
                self._check_same(record, sealed)
                return record
            if not self._looked:
                state = self._reader.check_end()  # so that nobody fills a gap
                self._looked = True
            self._residence.check(state)
            self._check_next(state, record)
            self._check_signed(record, sealed)
            self._check_named(state, record)
            self._create(record, sealed)
            self._reader.accept(sealed)
        self._snapshotter.appended(record)
        return record

    def admit_copied(self, sealed: bytes, seq: int) -> Record:
        """Append the next record of the run's source to its copy here, as a mirror brings it; return it. Idempotent.

        It must go on with the chain, keep the rules of the log, and be signed as the pins say. What it names is for the
        mirror to bring before; a fenced writer's record belongs to the chain as well; and snapshots are the source's.

        Args:
            sealed: the record.
            seq: the number that it is to have.

        Raises:
            Conflict: the run is no copy; or its number is further on than the next.
            InvalidArgument, AlreadyExists, CorruptObject, Untrusted, UnsupportedFormat, StoreUnavailable: as ``admit``.
        """
        record = self._read(sealed)
        if record.seq != seq:
            raise InvalidArgument(f"run {self._run!r}: this is record {record.seq}, and not {seq}")
        with self._lock:
            state = self._reader.refresh()
            if record.seq <= state.seq:
                self._check_same(record, sealed)
                return record
            check_mirror(self._store, self._run)
            self._check_goes_on(state, record)
            self._create(record, sealed)
            self._reader.accept(sealed)
        return record

    def _read(self, sealed: bytes) -> Record:
        if len(sealed) > RECORD:
            raise InvalidArgument(f"run {self._run!r}: a record has at most {RECORD:,} bytes, and this {len(sealed):,}")
        try:
            record = unseal_record(sealed)
        except SchemaError as error:
            raise InvalidArgument(f"run {self._run!r}: this is no sealed record: {error}") from error
        if record.run != self._run:
            raise InvalidArgument(f"run {self._run!r}: the record belongs to run {record.run!r}")
        if self._reader.guard is not None:
            try:
                self._reader.guard.check_signature(record, sealed)
            except Untrusted as error:
                raise InvalidArgument(str(error)) from error
        return record

    def _check_same(self, record: Record, sealed: bytes) -> None:
        if read_document(self._store, keys.record_key(record.seq)) != sealed:
            raise AlreadyExists(f"run {self._run!r}: another record is number {record.seq} already: read it and go on")

    def _check_goes_on(self, state: RunState, record: Record, wrong: str | None = None) -> None:
        if record.seq > state.seq + 1:
            raise Conflict(
                f"run {self._run!r}: record {record.seq} can't be appended: the newest is {state.seq}: read the log"
            )
        wrong = violation(state, record) or wrong
        if wrong is not None:
            raise InvalidArgument(f"run {self._run!r}: record {record.seq} is not valid: {wrong}")

    def _check_next(self, state: RunState, record: Record) -> None:
        self._check_goes_on(state, record, _leap(state, record))
        if is_void(state, record):
            raise Fenced(
                f"run {self._run!r}: a newer writer began epoch {state.epoch}; this one, of epoch {record.epoch}, "
                "must stop"
            )

    def _check_signed(self, record: Record, sealed: bytes) -> None:
        """Check that a run whose record 0 is signed gets no record that is not: readers that pin keys would be lost.

        Which key it is, is for those to judge who pin some.
        """
        if open_sealed(sealed).signature is None and (run_key := self._reader.run_key()) is not None:
            raise InvalidArgument(
                f"run {self._run!r}: record {record.seq} is not signed, and the run is, by {run_key}: readers that pin "
                "keys would refuse the run from it on. Give the writer the key"
            )

    def _check_named(self, state: RunState, record: Record) -> None:
        """Check that all that the record names is in the store."""
        if not isinstance(record, CommitRecord | AttachRecord):
            return
        if isinstance(record, CommitRecord) and (state.latest is None or state.latest.layout != record.layout):
            layout = keys.layout_key(record.layout)
            if not self._store.exists(layout):
                raise InvalidArgument(
                    f"run {self._run!r}: record {record.seq} names layout {layout}, which is not there: store it first"
                )
        if isinstance(record, CommitRecord) and record.files is not None:
            self._check_files(record.seq, record.files)
        for keyframe in keyframes_of(record):
            if keyframe.base is not None and not self._store.exists(keys.reference_key(keyframe.base)):
                raise InvalidArgument(
                    f"run {self._run!r}: record {record.seq} names the shared base {keyframe.base}, to which the run "
                    "does not refer: share it first"
                )
        everything: list[Iterator[Stored]] = [objects_of(record), *map(self._parts, patches_of(record))]
        for named in everything:
            wrong = next((found for found in self._each(self._missing, named) if found is not None), None)
            if wrong is not None:
                raise InvalidArgument(f"run {self._run!r}: record {record.seq} names object {wrong}")

    def _check_files(self, seq: int, files_id: str) -> None:
        """Check that a record's file set is there, and has all of its files."""
        try:
            files = fetch_file_set(self._store, files_id)
        except NotFound as error:
            key = keys.file_key(files_id)
            raise InvalidArgument(
                f"run {self._run!r}: record {seq} names files {key}, which is not there: store it first"
            ) from error
        except (CorruptObject, UnsupportedFormat) as error:
            raise InvalidArgument(f"run {self._run!r}: record {seq} names files that can't be read: {error}") from error
        named = [ObjectRef(key=keys.file_key(e.blake3), size=e.size, blake3=e.blake3) for e in files.files.values()]
        wrong = next((found for found in self._each(self._missing, named) if found is not None), None)
        if wrong is not None:
            raise InvalidArgument(f"run {self._run!r}: record {seq} names files, and of them {wrong}")

    def _parts(self, patch: PatchRef) -> Iterator[PatchPart]:
        """Yield the parts of a patch, whose head is there."""
        if patch.parts is None:
            return
        key, size = patch.object.key, patch.head_size
        if size > MOST_HEAD_BYTES:
            raise InvalidArgument(
                f"run {self._run!r}: object {key} has {size:,} bytes, and a head {MOST_HEAD_BYTES:,} at most"
            )
        try:
            yield from checked(partial(self._store.get, key, (0, size)), partial(parts_in, patch))
        except (CorruptObject, UnsupportedFormat) as error:
            raise InvalidArgument(f"run {self._run!r}: {error}") from error

    def _missing(self, named: Stored) -> str | None:
        try:
            size = self._store.size(named.key)
        except NotFound:
            return f"{named.key}, which is not there: store it first"
        return None if size == named.size else f"{named.key} with {named.size} bytes, but it has {size}"

    def _create(self, record: Record, sealed: bytes) -> None:
        if not put_record(self._store, record.seq, sealed):
            self._reader.refresh()
            raise AlreadyExists(f"run {self._run!r}: another record took number {record.seq}: read it and go on")


def _leap(state: RunState, record: Record) -> str | None:
    """Epochs rise by little, so that there is always one for the next writer. Ours rise by one."""
    if isinstance(record, EpochRecord | MoveRecord) and record.epoch > state.epoch + LONGEST_LEAP:
        return f"it begins epoch {record.epoch}, more than {LONGEST_LEAP} after the newest, {state.epoch}"
    return None
