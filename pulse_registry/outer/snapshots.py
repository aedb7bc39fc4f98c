"""Snapshots of an outer log in the store: where joining begins to read. Nothing depends on them for truth.

A snapshot counts only if the record that it names is there with the same hash, as in a run's log.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import Final

from pulse_registry.errors import CorruptObject, NotFound, PulseError, UnsupportedFormat, Untrusted
from pulse_registry.format import keys
from pulse_registry.log.documents import SNAPSHOT, read_document
from pulse_registry.log.gap import MOST_LISTED
from pulse_registry.log.guard import Guard
from pulse_registry.log.unsealing import record_with_hash, unsealed_head
from pulse_registry.outer.snapshot import snapshot_of, state_of
from pulse_registry.outer.state import OuterState
from pulse_registry.store import Store
from pulse_registry.store.verified_read import checked
from pulse_registry.store.wrappers.retry import retrying_at_most
from pulse_schemas import Fault, Head, SchemaError, Signer
from pulse_schemas.outer import unseal_outer_record
from pulse_schemas.outer_snapshot import OuterSnapshot

_logger = logging.getLogger(__name__)
_EVERY: Final = 64
"""Records from one snapshot to the next; more where a snapshot says more, so that all of them together stay small."""
_TRIES: Final = 8
_TIDY_S: Final = 2.0
"""No member waits longer for a store that is away, for what only saves others time."""


class OuterSnapshots:
    """The snapshots of one outer log. Not thread-safe."""

    def __init__(self, store: Store, run: str, signer: Signer | None = None, guard: Guard | None = None) -> None:
        """Prepare; no I/O yet. ``store`` is scoped to the log's folder; the others are as the log's."""
        self._store, self._run, self._signer, self._guard = store, run, signer, guard

    def newest(self) -> OuterState | None:
        """Return the state that the newest snapshot holds; None where none can be relied upon.

        Raises:
            AccessDenied, StoreUnavailable: the store can't be read.
        """
        states = map(self._opened, islice(self._keys(), _TRIES))
        return next((state for state in states if state is not None), None)

    def appended(self, state: OuterState) -> None:
        """Write the snapshot that is due after the record that was appended last, and the hint.

        A failure is logged, and costs later readers time.
        """
        snapshot = snapshot_of(state)
        if snapshot is None or state.whole or not is_due(state):
            return
        sealed = snapshot.seal(self._signer)
        if len(sealed) > SNAPSHOT:
            _logger.warning("run %s: no outer snapshot written at %d: it is too long", state.run, state.seq)
            return
        try:
            if self._guard is not None:
                self._guard.check_snapshot(sealed)  # one that readers would not believe would be in their way
            with retrying_at_most(_TIDY_S):
                self._store.put(keys.snapshot_key(state.seq), sealed)
                self._store.put(keys.HEAD, Head(seq=state.seq, snapshot=state.seq).seal())
        except PulseError as error:
            _logger.warning("run %s: no outer snapshot or hint written at %d: %s", state.run, state.seq, error)

    def _keys(self) -> Iterator[str]:
        """Yield the snapshots to try: the one that the hint names, then all, newest first."""
        hinted = None
        try:
            head = checked(partial(read_document, self._store, keys.HEAD), unsealed_head)
        except NotFound:
            pass
        except (CorruptObject, UnsupportedFormat) as error:
            _logger.warning("run %s: ignoring the hint of the outer log: %s", self._run, error)
        else:
            if head.snapshot is not None and head.snapshot < 10**12:
                hinted = keys.snapshot_key(head.snapshot)
                yield hinted
        listed = islice(self._store.list(keys.SNAPSHOTS), MOST_LISTED)
        found = (key for key in listed if key != hinted and keys.snapshot_seq(key) is not None)
        yield from heapq.nlargest(_TRIES, found)

    def _opened(self, key: str) -> OuterState | None:
        try:
            snapshot, sealed = checked(partial(read_document, self._store, key), partial(_unsealed, key))
            if snapshot.run != self._run or keys.snapshot_key(snapshot.seq) != key:
                raise CorruptObject(f"it is snapshot {snapshot.seq} of run {snapshot.run!r}")
            record_key, check_last = (
                keys.record_key(snapshot.seq),
                partial(record_with_hash, snapshot.seq, snapshot.last),
            )
            last = checked(partial(read_document, self._store, record_key), check_last)
            state = state_of(snapshot)
            if self._guard is not None:
                record = unseal_outer_record(last)
                self._guard.check_snapshot(sealed)
                self._guard.check(record, last)
                self._guard.folded(record, last)
            return state
        except (NotFound, SchemaError, CorruptObject, Untrusted, UnsupportedFormat) as error:
            _logger.warning("run %s: ignoring the outer snapshot %s: %s", self._run, key, error)
            return None


def is_due(state: OuterState) -> bool:
    """Tell whether the newest record is one that a snapshot follows; the same for all members."""
    every, held = _EVERY, sum(len(one.contributions) for one in state.closed)
    while every < held:
        every *= 2
    return state.seq % every == every - 1


def _unsealed(key: str, sealed: bytes) -> tuple[OuterSnapshot, bytes]:
    try:
        return OuterSnapshot.unseal(sealed), sealed
    except SchemaError as error:
        kind = UnsupportedFormat if error.fault is Fault.UNSUPPORTED else CorruptObject
        raise kind(f"{key}: {error}") from error
