"""Keeps a run's snapshots and its hint: what makes opening the run fast. Nothing depends on them for truth."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Final

from pulse_registry.errors import InvalidArgument, PulseError, Untrusted
from pulse_registry.format import keys
from pulse_registry.log.reader import LogReader
from pulse_registry.log.snapshot_writer import SnapshotWriter
from pulse_registry.log.state import RunState
from pulse_registry.store.wrappers.retry import retrying_at_most
from pulse_schemas import EpochRecord, Head, Record, Signer

if TYPE_CHECKING:
    from pulse_registry.store import Store

_logger = logging.getLogger(__name__)
_TIDY_S: Final = 2.0
"""No writer waits longer for a store that is away, for what only saves readers time."""

SNAPSHOT_EVERY = 64
"""Records from one snapshot to the next, and more where the snapshot itself is long."""
_SHARE: Final = 2
"""A snapshot has at most so many times the bytes of the records since the last one: many tags cost no square."""


class Snapshotter:
    """Writes the snapshots and the hint that are due after each record; safe to share between threads."""

    def __init__(
        self,
        store: Store,
        reader: LogReader,
        *,
        snapshot_every: int = SNAPSHOT_EVERY,
        signer: Signer | None = None,
    ) -> None:
        """Prepare to keep; no I/O yet.

        Args:
            store: the store, scoped to the run's prefix.
            reader: reads the same run; its state must hold a record before `appended` is told of it.
            snapshot_every: records from one snapshot to the next.
            signer: signs the snapshots: readers who ask for signatures open the run at no other.

        Raises:
            InvalidArgument: ``snapshot_every`` is less than 1.
        """
        if snapshot_every < 1:
            raise InvalidArgument(f"snapshot_every is {snapshot_every}; it counts records, from 1 on")
        self._store = store
        self._reader = reader
        self._every = snapshot_every
        self._signer = signer
        self._writer = SnapshotWriter(store, reader.run, signer, self._believed)
        self._lock = threading.Lock()
        self._newest = self._made = -1
        self._folded = 0  # what the reader had folded when the last snapshot was due
        self._snapshot_due = False
        self._hint_due = False

    def appended(self, record: Record) -> None:
        """Write what is due now that ``record`` is in the log.

        A failure is logged, costs later readers time and nothing else, and is made up for after the next record.
        """
        with self._lock:
            self._newest = max(self._newest, self._reader.snapshot_seq)
            self._made = max(self._made, self._newest)
            self._snapshot_due |= record.seq % self._every == self._every - 1
            # Where others write as well, the turn may never be this one's, and readers may believe nobody else.
            self._snapshot_due |= self._signer is not None and record.seq - self._made >= self._every
            if isinstance(record, EpochRecord):
                # Snapshots that an earlier writer owed, and a hint, so that readers of a young run need no LIST.
                self._snapshot_due |= record.seq - self._newest >= self._every
                self._hint_due = True
            with retrying_at_most(_TIDY_S):
                self._tidy()

    def _tidy(self) -> None:
        state = self._reader.state
        try:
            if self._snapshot_due and self._is_worth_it():
                self._write(state)
            if self._hint_due:
                head = Head(seq=state.seq, snapshot=self._newest if self._newest >= 0 else None)
                self._store.put(keys.HEAD, head.seal())
                self._hint_due = False
        except PulseError as error:
            _logger.warning("run %s: no snapshot or hint written at %d: %s", state.run, state.seq, error)

    def _is_worth_it(self) -> bool:
        return _SHARE * (self._reader.folded - self._folded) >= self._writer.nbytes

    def _write(self, state: RunState) -> None:
        folded = self._reader.folded
        self._writer.begin(self._reader.snapshot_seq, self._reader.segments)
        if self._writer.write(state):
            self._newest, self._hint_due = state.seq, True
        self._made, self._snapshot_due, self._folded = state.seq, False, folded

    def _believed(self, sealed: bytes) -> bool:
        """Tell whether readers with this one's pins would open the run at a snapshot: another would be in the way."""
        if self._reader.guard is None:
            return True
        try:
            self._reader.guard.check_snapshot(sealed)
        except Untrusted:
            return False
        return True
