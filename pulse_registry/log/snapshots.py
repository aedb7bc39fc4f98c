"""Snapshots that a reader opens a run's log at: found by the head hint or a listing, and checked.

A snapshot counts only if the record that it names is there with the same hash. The head hint only says which one to
try first.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from pulse_registry.errors import CorruptObject, NotFound, UnsupportedFormat, Untrusted
from pulse_registry.format import keys
from pulse_registry.log.documents import read_document
from pulse_registry.log.gap import MOST_LISTED
from pulse_registry.log.guard import Guard
from pulse_registry.log.records import Records
from pulse_registry.log.segmented import state_of
from pulse_registry.log.segments import Segment, fetch
from pulse_registry.log.state import RunState
from pulse_registry.log.superseded import TRIES
from pulse_registry.log.unsealing import record_with_hash, unsealed_head, unsealed_record, unsealed_snapshot
from pulse_registry.store.verified_read import checked
from pulse_schemas import SchemaError, SegmentedSnapshot, Snapshot

if TYPE_CHECKING:
    from pulse_registry.store import Store

_logger = logging.getLogger(__name__)


class Snapshots:
    """The stored snapshots of one run, and the hint of the newest. Not thread-safe: a reader has a lock.

    Attributes:
        signed: the newest record that a snapshot which the guard believes tells of; -1 for none.
        told: the newest record that a hint, or a snapshot that nobody judged, tells of, and which one it was.
        segments: those of the snapshot that `newest` found.
    """

    def __init__(
        self,
        store: Store,
        run: str,
        guard: Guard | None,
        records: Records,
        threads: Callable[[int, str], Executor] | None = None,
    ) -> None:
        """Prepare to read; no I/O yet. The store is scoped to the run's prefix.

        ``threads`` makes an executor, of so many threads and their name's beginning, to fetch segments side by side.
        """
        self.signed = -1
        self.told: tuple[int, str] | None = None
        self.segments: tuple[Segment, ...] = ()
        self._threads = threads
        self._store = store
        self._run = run
        self._guard = guard
        self._records = records

    def newest(self, seen: int | None) -> RunState | None:
        """Return the state that the newest snapshot to be relied upon holds; None where none is found.

        Args:
            seen: the newest record that the guard has seen before, which the log must still have.

        Raises:
            AccessDenied, StoreUnavailable: the store can't be read.
        """
        states = (self._open(key, seen) for key in islice(self._keys(), TRIES))
        return next((state for state in states if state is not None), None)

    def later(self, candidates: Iterable[str]) -> int | None:
        """Return the record that the first of some snapshots to be relied upon folded last; None where none is.

        Raises:
            AccessDenied, StoreUnavailable: the store can't be read.
        """
        for key in islice(candidates, TRIES):
            try:
                return self._read(key).seq
            except (NotFound, CorruptObject, Untrusted, UnsupportedFormat):
                continue
        return None

    def _keys(self) -> Iterator[str]:
        """Yield the snapshots to try: the one that the hint names, then all, newest first."""
        hinted = None
        try:
            head = checked(partial(read_document, self._store, keys.HEAD), unsealed_head)
        except NotFound:
            pass
        except (CorruptObject, UnsupportedFormat) as error:
            _logger.warning("run %s: ignoring the head hint: %s", self._run, error)
        else:
            self.told = (head.seq, f"the hint {keys.HEAD}")
            if head.snapshot is None:
                return
            if head.snapshot < 10**12:
                hinted = keys.snapshot_key(head.snapshot)
                yield hinted
        listed = islice(self._store.list(keys.SNAPSHOTS), MOST_LISTED)
        found = (key for key in listed if key != hinted and keys.snapshot_seq(key) is not None)
        yield from heapq.nlargest(TRIES, found)

    def _open(self, key: str, seen: int | None) -> RunState | None:
        """Return the state that a snapshot holds, or None, with a warning, where it can't be relied upon."""
        try:
            snapshot = self._read(key)
            if self._guard is not None:
                self.signed = max(self.signed, snapshot.seq)
            elif self.told is None or self.told[0] < snapshot.seq:
                self.told = (snapshot.seq, key)

            record_key = keys.record_key(snapshot.seq)
            check_last = partial(record_with_hash, snapshot.seq, snapshot.last)
            sealed = checked(partial(read_document, self._store, record_key), check_last)
            state, segments = self._state(snapshot)
            if self._guard is not None:
                record, _ = unsealed_record(record_key, sealed)
                self._records.believe(self._guard.check, record, sealed)
                if seen is not None and seen < snapshot.seq:
                    self._records.check_seen(self._guard, seen, snapshot.seq, snapshot.last)
                self._guard.folded(record, sealed)
            self.segments = segments
            return state
        except (NotFound, SchemaError, CorruptObject, Untrusted, UnsupportedFormat) as error:
            _logger.warning("run %s: ignoring the snapshot %s, trying an older one: %s", self._run, key, error)
            return None

    def _state(self, snapshot: Snapshot | SegmentedSnapshot) -> tuple[RunState, tuple[Segment, ...]]:
        if isinstance(snapshot, Snapshot):
            return RunState.from_snapshot(snapshot), ()
        contents = fetch(self._store, self._run, snapshot.segments, self._threads)
        segments = (
            Segment(ref, {name: table.ids for name, table in content.items()})
            for ref, content in zip(snapshot.segments, contents, strict=True)
        )
        return state_of(snapshot, contents), tuple(segments)

    def _read(self, key: str) -> Snapshot | SegmentedSnapshot:
        snapshot, document = checked(partial(read_document, self._store, key), unsealed_snapshot)
        if self._guard is not None:
            self._guard.check_snapshot(document)
        if snapshot.run != self._run or not snapshot.seq < 10**12 or keys.snapshot_key(snapshot.seq) != key:
            raise CorruptObject(f"it is snapshot {snapshot.seq} of run {snapshot.run!r}")
        return snapshot
