"""Reads a run's log: opens it at the newest snapshot, then asks for one record after the other.

Order of trust: records are the truth; a snapshot counts only if the record that it names is there with the
same hash; the head hint only says which snapshot to try first.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pulse_registry.checked import checked
from pulse_registry.errors import CorruptObject, NotFound, UnsupportedFormat
from pulse_registry.log import keys
from pulse_registry.log.state import RunState, sealed_hash
from pulse_schemas import Fault, Head, Record, SchemaError, Snapshot, unseal_record

if TYPE_CHECKING:
    from pulse_registry.store import Store

_logger = logging.getLogger(__name__)


class LogReader:
    """Follows one run's log; safe to share between threads.

    The states that it hands out never change: to follow the run, ask again.
    """

    def __init__(self, store: Store, run: str) -> None:
        """Prepare to read; no I/O yet.

        Args:
            store: the store, scoped to the run's prefix.
            run: the run's name, which every record must carry.
        """
        self._store = store
        self._run = run
        self._lock = threading.Lock()
        self._state: RunState | None = None
        self._snapshot_seq = -1

    @property
    def run(self) -> str:
        """Name of the run."""
        return self._run

    @property
    def state(self) -> RunState:
        """The state as last seen: no I/O, but for the first time (then as ``refresh``)."""
        return self._state or self.refresh()

    @property
    def snapshot_seq(self) -> int:
        """Seq of the snapshot that this reader opened the run from, -1 if from record 0."""
        return self._snapshot_seq

    def refresh(self) -> RunState:
        """Read what is new and return the state; of a run that does not exist, the empty state.

        The first call opens the run: a GET each for the hint, its snapshot and the snapshot's last record,
        then the tail. Every call costs a GET a new record and one that finds none. Keys are listed only if
        there is no usable hint on opening. Records that were read before an error are kept.

        Raises:
            CorruptObject: a record is damaged or breaks a rule of the log; the message names it.
            UnsupportedFormat: a record was written by a newer release.
            StoreUnavailable: the store failed; call again.
        """
        with self._lock:
            if self._state is None:
                self._state = self._open()
            self._tail()
            return self._state

    def accept(self, sealed: bytes) -> RunState:
        """Fold a record that the caller has just written or read, and return the state.

        A record that is folded already changes nothing; one further on than the next makes the reader fetch
        those before it.

        Raises:
            CorruptObject, UnsupportedFormat, StoreUnavailable: as ``refresh``.
        """
        record = _unseal("a record just written", sealed)
        with self._lock:
            if self._state is None:
                self._state = self._open()
            if record.seq > self._state.seq + 1:
                self._tail()
            if record.seq == self._state.seq + 1:
                state = self._state.copy()
                state.advance(record, sealed_hash(sealed))
                self._state = state
            return self._state

    def read(self, seq: int) -> tuple[Record, bytes] | None:
        """Fetch record ``seq`` and its sealed bytes, without folding it; None if it is not there.

        Raises:
            CorruptObject, UnsupportedFormat, StoreUnavailable: as ``refresh``.
        """
        key = keys.record_key(seq)
        try:
            return checked(lambda: self._store.get(key), lambda sealed: (_unseal(key, sealed), sealed))
        except NotFound:
            return None

    def _tail(self) -> None:
        old = self._state or RunState(self._run)
        found = self.read(old.seq + 1)
        if found is None:
            return
        state = old.copy()
        try:
            while found is not None:
                record, sealed = found
                state.advance(record, sealed_hash(sealed))
                found = self.read(state.seq + 1)
        finally:
            self._state = state

    def _open(self) -> RunState:
        for key in self._snapshot_keys():
            state = self._from_snapshot(key)
            if state is not None:
                self._snapshot_seq = state.seq
                return state
        return RunState(self._run)

    def _snapshot_keys(self) -> Iterator[str]:
        """Yield the snapshots to try: the one that the hint names, then all, newest first."""
        hinted = None
        try:
            head = checked(lambda: self._store.get(keys.HEAD), _unseal_head)
        except NotFound:
            pass
        except (CorruptObject, UnsupportedFormat) as error:
            _logger.warning("run %s: the head hint is of no use: %s", self._run, error)
        else:
            if head.snapshot is None:
                return
            if head.snapshot < 10**12:
                hinted = keys.snapshot_key(head.snapshot)
                yield hinted
        found = [key for key in self._store.list(keys.SNAPSHOTS) if keys.snapshot_seq(key) is not None]
        yield from sorted((key for key in found if key != hinted), reverse=True)

    def _from_snapshot(self, key: str) -> RunState | None:
        """Return the state that a snapshot holds, or None, with a warning, where it can't be relied upon."""
        try:
            snapshot = checked(lambda: self._store.get(key), _unseal_snapshot)
            if snapshot.run != self._run or keys.snapshot_key(snapshot.seq) != key:
                raise CorruptObject(f"it is snapshot {snapshot.seq} of run {snapshot.run!r}")

            def check_last(sealed: bytes) -> None:
                if sealed_hash(sealed) != snapshot.last:
                    raise CorruptObject(f"record {snapshot.seq} is another one than it folds")

            checked(lambda: self._store.get(keys.record_key(snapshot.seq)), check_last)
            return RunState.from_snapshot(snapshot)
        except (NotFound, SchemaError, CorruptObject, UnsupportedFormat) as error:
            _logger.warning("run %s: %s is of no use, trying an older one: %s", self._run, key, error)
            return None


def _unseal(key: str, sealed: bytes) -> Record:
    with _typed(key):
        return unseal_record(sealed)


def _unseal_head(sealed: bytes) -> Head:
    with _typed(keys.HEAD):
        return Head.unseal(sealed)


def _unseal_snapshot(sealed: bytes) -> Snapshot:
    with _typed("the snapshot"):
        return Snapshot.unseal(sealed)


@contextmanager
def _typed(name: str) -> Iterator[None]:
    try:
        yield
    except SchemaError as error:
        kind = UnsupportedFormat if error.fault is Fault.UNSUPPORTED else CorruptObject
        raise kind(f"{name}: {error}") from error
