"""Log writer: appends records to a run's log, each created if absent at the next number, in one loop.

What it keeps true, whatever the store does: a record is appended once or not at all; a commit never follows a
newer epoch; no record that the reader would refuse is ever written.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pydantic import ValidationError

from pulse_registry.errors import Conflict, CorruptObject, Fenced, InvalidArgument
from pulse_registry.log.appender import Appender
from pulse_registry.log.clock import Clock, NewId, timestamp
from pulse_registry.log.home import Residence, moved_to
from pulse_registry.log.reader import LogReader
from pulse_registry.log.rules import retired_object, violation
from pulse_registry.log.snapshotter import SNAPSHOT_EVERY, Snapshotter
from pulse_registry.log.state import RunState
from pulse_registry.log.writer_key import WriterKey
from pulse_schemas import (
    AttachRecord,
    CommitRecord,
    DeleteRecord,
    EpochRecord,
    KeyframeRef,
    MoveRecord,
    PatchRef,
    Record,
    RetireRecord,
    Signer,
    TagRecord,
)

if TYPE_CHECKING:
    from pulse_registry.store import Store

LAST_EPOCH: Final = 2**63 - 1

MakeRecord = Callable[[RunState, dict[str, Any]], Record]
"""Makes the record to append: of the state that it follows, and the fields that all records share.

Called again after every lost race. The shared fields hold the epoch of the state; the rest is up to it.
"""


@dataclass(frozen=True, slots=True)
class CommitDraft:
    """A version to commit, whose objects are stored already. To retry, commit the *same* draft again.

    Attributes:
        write_id: 32 hex digits, new for every draft: what makes a retry safe. Its objects' keys carry it too.
        files: id of the file set that goes with the version; None: the one of the version before, if that has one.
    """

    version: int
    step: int
    layout: str
    digest: str
    changed: int
    cells: int
    write_id: str
    patch: PatchRef | None = None
    keyframe: KeyframeRef | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    files: str | None = None


class LogWriter:
    """Appends to one run's log; safe to share between threads.

    ``begin`` starts a term, which ``commit`` needs; ``attach`` and ``retire`` need none.
    """

    def __init__(
        self,
        store: Store,
        run: str,
        reader: LogReader,
        clock: Clock,
        new_id: NewId,
        writer_name: str,
        *,
        snapshot_every: int | None = SNAPSHOT_EVERY,
        signer: Signer | None = None,
    ) -> None:
        """Prepare to write; no I/O yet.

        Args:
            store: the store, scoped to the run's prefix.
            run: the run's name.
            reader: reads the same run; it is kept up to date with what is appended.
            clock: gives the time of ``created_at``.
            new_id: gives new write ids.
            writer_name: who writes (host, process), for the epoch record; at most 256 characters.
            snapshot_every: records from one snapshot to the next; None where somebody else keeps snapshots and hint.
            signer: signs records and snapshots.

        Raises:
            InvalidArgument: ``snapshot_every`` is less than 1.
        """
        self._run = run
        self._reader = reader
        self._clock = clock
        self._new_id = new_id
        self._name = writer_name
        self._signer = signer
        self._key = WriterKey(store, reader, signer)
        self._residence = Residence(store, run)
        self._appender = Appender(store, reader, signer, self._key)
        self._snapshotter: Snapshotter | None = None
        if snapshot_every is not None:
            self._snapshotter = Snapshotter(store, reader, snapshot_every=snapshot_every, signer=signer)
        self._lock = threading.RLock()
        self._term_id = new_id()
        self._epoch: int | None = None

    @property
    def epoch(self) -> int | None:
        """This writer's term, None before ``begin``."""
        return self._epoch

    @property
    def reader(self) -> LogReader:
        """What reads the same run."""
        return self._reader

    @property
    def fenced(self) -> bool:
        """Whether a newer term is known to have begun; once true, true for ever."""
        return self._epoch is not None and self._reader.state.epoch > self._epoch

    def check(self, kind: str) -> None:
        """Raise where the run has moved, or what this writer signs would not be believed; for who works before writing.

        ``append`` checks each record as well. Where nobody said which keys the run's readers pin (no guard), a run that
        is signed, which its record 0 tells, takes no record of another key than that one's.

        Args:
            kind: of the records that it is to write.

        Raises:
            Fenced, Mirrored: the run has moved elsewhere, or this is a copy of it.
            Untrusted: it has no key, or one that does not fit; the message says which one does.
            CorruptObject, UnsupportedFormat, StoreUnavailable: the log can't be read.
        """
        self._residence.check(self._reader.state)
        self._key.check(kind)

    def begin(self) -> int:
        """Begin a term: from here on, commits of older terms are void. Return its epoch.

        Idempotent: a term that has begun is not begun again.

        Raises:
            Fenced: this writer's term has ended, the run has moved elsewhere, or the last epoch that there can be has
                begun.
            CorruptObject, UnsupportedFormat: the log can't be read.
            StoreUnavailable: the store failed; call again.
        """
        with self._lock:
            state = self._reader.refresh()
            if self._epoch is not None:
                self._refuse_if_fenced(state)
                return self._epoch
            record = self.append(self._make_epoch, self._term_id)
            self._epoch = record.epoch
            return record.epoch

    def commit(self, draft: CommitDraft) -> CommitRecord:
        """Commit a version; when this returns, readers see it, and it stays.

        To commit the same draft again returns its record if it has landed, and tries again if not: the
        version is committed once. Retry that way after StoreUnavailable, since the put may still land. A
        *different* draft in its place loses nothing either: only one of the two can have the version, and
        if that is the first, this raises Conflict, and ``landed`` returns its record.

        Raises:
            Fenced: a newer term began, or the run has moved elsewhere; this writer can't commit any more.
            Conflict: the version is committed already, or one before it is missing.
            InvalidArgument: no term was begun, or the draft breaks a rule of the log.
            CorruptObject, UnsupportedFormat: the log can't be read.
            StoreUnavailable: the store failed, and it is not known whether the record will land.
        """
        if self._epoch is None:
            raise InvalidArgument("commit needs a term: call begin() first")

        def make(state: RunState, shared: dict[str, Any]) -> CommitRecord:
            self._refuse_if_fenced(state)
            if draft.version != len(state.versions):
                raise Conflict(self._why_taken(state, draft.version))
            return CommitRecord(
                **(shared | {"epoch": self._epoch}),
                version=draft.version,
                step=draft.step,
                parent=draft.version - 1 if draft.version else None,
                layout=draft.layout,
                patch=draft.patch,
                keyframe=draft.keyframe,
                digest=draft.digest,
                changed=draft.changed,
                cells=draft.cells,
                metadata=draft.metadata,
                files=draft.files,
            )

        state = self._reader.state
        record = None if state.find(draft.version) is None else self._committed(state, draft.version)
        if record is None or record.write_id != draft.write_id:
            record = self.append(make, draft.write_id)
        if not isinstance(record, CommitRecord):
            raise InvalidArgument(f"write id {draft.write_id} is that of another record, {record.seq}")
        return record

    def attach(
        self,
        patches: Sequence[PatchRef] = (),
        keyframes: Sequence[KeyframeRef] = (),
        *,
        write_id: str | None = None,
    ) -> Record:
        """Add objects, stored already, to versions that exist. Needs no term.

        Pass a ``write_id`` to be able to retry after StoreUnavailable: the same id attaches once.

        Raises:
            InvalidArgument: a version does not exist or was retired, or an object is named already or joins two
                layouts.
            Conflict: an object was retired, since nothing named it for too long: store it under a new key.
            CorruptObject, UnsupportedFormat, StoreUnavailable: as ``commit``.
        """

        def make(state: RunState, shared: dict[str, Any]) -> AttachRecord:
            return AttachRecord(**shared, patches=tuple(patches), keyframes=tuple(keyframes))

        return self.append(make, write_id or self._new_id())

    def retire(self, versions: Sequence[int] = (), keys: Sequence[str] = (), *, write_id: str | None = None) -> Record:
        """Tell readers to use some versions and objects no longer. Needs no term.

        To retire twice is harmless. A keyframe goes as a whole: to retire one of its files retires all.

        Raises:
            InvalidArgument: a version does not exist, is the newest or has a tag; or a key is not of an object.
            CorruptObject, UnsupportedFormat, StoreUnavailable: as ``commit``.
        """

        def make(state: RunState, shared: dict[str, Any]) -> RetireRecord:
            return RetireRecord(**shared, versions=tuple(versions), keys=tuple(keys))

        return self.append(make, write_id or self._new_id())

    def tag(self, name: str, version: int | None, *, write_id: str | None = None) -> int | None:
        """Give a version a name, which keeps it from being retired; None takes the name away. Needs no term.

        Returns:
            The version that the name stood for before that record; None if it stood for none.

        Raises:
            InvalidArgument: the name is not valid, or the version does not exist or was retired.
            CorruptObject, UnsupportedFormat, StoreUnavailable: as ``commit``.
        """

        before: int | None = None

        def make(state: RunState, shared: dict[str, Any]) -> TagRecord:
            nonlocal before
            before = state.tags.get(name)
            return TagRecord(**shared, name=name, version=version)

        self.append(make, write_id or self._new_id())
        return before

    def deleted(self, until: int, *, write_id: str | None = None) -> Record:
        """Record that all objects which the records up to ``until`` retired are deleted. Needs no term.

        Raises:
            InvalidArgument: there is no record ``until``.
            CorruptObject, UnsupportedFormat, StoreUnavailable: as ``commit``.
        """

        def make(state: RunState, shared: dict[str, Any]) -> DeleteRecord:
            return DeleteRecord(**shared, until=until)

        return self.append(make, write_id or self._new_id())

    def move(self, to: str, write_id: str, *, lost: bool = False) -> Record:
        """End the run here, for all writers and for ever: it goes on at the root that proves that id. Needs no term.

        After StoreUnavailable call again with the same id: it moves once.

        Args:
            to: URL of that root, for people to read.
            write_id: new for every move, and the one that the new home's proof names (`log.home.prove`).
            lost: append it wherever the run lives, because that root is lost: nothing keeps it from going on there.

        Raises:
            Fenced: the run has moved elsewhere.
            InvalidArgument: ``to`` is no such text, or the run has no record.
            CorruptObject, UnsupportedFormat, StoreUnavailable: as ``commit``.
        """

        def make(state: RunState, shared: dict[str, Any]) -> MoveRecord:
            return MoveRecord(**(shared | {"epoch": self._next_epoch(state)}), to=to)

        return self._append(make, write_id, anywhere=lost)

    def landed(self, write_id: str) -> Record | None:
        """Return the record of a put whose answer never came, if the log holds it now.

        None while it has not landed; it can't land any more once another record has its place.

        Raises:
            CorruptObject, UnsupportedFormat, StoreUnavailable: as ``commit``.
        """
        with self._lock:
            return self._appender.landed(write_id)

    def sealed(self, record: Record) -> bytes:
        """Return a record that this writer appended as the log holds it, for other readers to ``accept``. No I/O.

        The same key signs the same bytes alike.
        """
        return record.seal(self._signer)

    def append(self, make_record: MakeRecord, write_id: str) -> Record:
        """Append one record at the next free number, and return it as the log holds it.

        The loop: make a record that follows the newest state known, create it if absent. If that number is
        taken by another record, fold that and make the record anew; if by this very write, whose answer was
        lost, it is done. Before its first record a writer looks past the end of the log, so that it fills no gap.

        Raises:
            Fenced, Mirrored: the run has moved elsewhere, or this is a copy of it; nothing was written.
            InvalidArgument: the record breaks a rule of the log; nothing was written.
            Conflict: an object that it names was retired before it; nothing was written.
            Untrusted: readers would not believe it: it is not signed, or by a key that may not; nothing was written.
            CorruptObject, UnsupportedFormat: the log can't be read, or a record of it is missing; nothing was written.
            StoreUnavailable: the store failed. If the put's fate is unknown, it may still land, at that one
                number alone: to append with the same ``write_id`` again finds it there or takes the number.
        """
        return self._append(make_record, write_id)

    def _append(self, make_record: MakeRecord, write_id: str, *, anywhere: bool = False) -> Record:
        with self._lock:
            record = self._appender.landed(write_id)
            while record is None:
                state = self._reader.state
                if not anywhere:
                    self._residence.check(state)
                record = self._appender.create(self._checked(make_record, state, write_id))
            self._appender.forget(write_id)
            if self._snapshotter is not None:
                self._snapshotter.appended(record)
            return record

    def _checked(self, make_record: MakeRecord, state: RunState, write_id: str) -> Record:
        shared = {
            "run": self._run,
            "seq": state.seq + 1,
            "epoch": state.epoch,
            "write_id": write_id,
            "previous": state.last,
            "created_at": timestamp(self._clock()),
        }
        try:
            record = make_record(state, shared)
        except ValidationError as error:
            raise InvalidArgument(f"run {self._run!r}: no such record can be written: {error}") from error
        wrong = violation(state, record)
        lost = None if wrong is None else retired_object(state, record)
        if lost is not None:
            raise Conflict(
                f"run {self._run!r}: {lost} was retired: it was not named for so long that it was taken for a crashed "
                "writer's; store it again under a new key, as the next push does"
            )
        if wrong is not None:
            raise InvalidArgument(f"run {self._run!r}: record {record.seq} is not valid: {wrong}")
        return record

    def _make_epoch(self, state: RunState, shared: dict[str, Any]) -> EpochRecord:
        return EpochRecord(**(shared | {"epoch": self._next_epoch(state)}), writer=self._name)

    def _next_epoch(self, state: RunState) -> int:
        if state.epoch >= LAST_EPOCH:
            raise Fenced(
                f"run {self._run!r}: epoch {state.epoch} has begun, and there is none after it: no writer can begin a "
                "term any more; go on in another run"
            )
        return state.epoch + 1

    def _refuse_if_fenced(self, state: RunState) -> None:
        self._residence.check(state)
        if self._epoch is not None and state.epoch > self._epoch:
            if state.home is not None and state.home.seq == state.seq:  # behind a service, whose root is not asked
                raise Fenced(f"{moved_to(self._run, state.home)}, and ended the terms of all writers. Open it there")
            raise Fenced(
                f"run {self._run!r}: a newer writer began epoch {state.epoch}; this one, of epoch "
                f"{self._epoch}, must stop"
            )

    def _why_taken(self, state: RunState, version: int) -> str:
        newest = len(state.versions) - 1
        if version > newest:
            return f"run {self._run!r}: version {version} can't be committed: the newest is {newest}"
        if state.find(version) is None:
            return f"run {self._run!r}: version {version} was committed and deleted long ago; the newest is {newest}"
        record = self._committed(state, version)
        mine = ", an earlier try of this writer" if self._appender.is_unknown(record.write_id) else ""
        return (
            f"run {self._run!r}: version {version} is committed already, by write {record.write_id} of epoch "
            f"{record.epoch}{mine}; the newest is {newest}"
        )

    def _committed(self, state: RunState, version: int) -> Record:
        seq = state.versions[version].seq
        found = self._reader.read(seq)
        if found is None:
            raise CorruptObject(f"run {self._run!r}: record {seq}, which committed version {version}, is gone")
        return found[0]
