"""Snapshots of segments for tests: a state written down at once, by nobody's policy, and read again."""

from __future__ import annotations

from pulse_registry.format import keys
from pulse_registry.log import RunState
from pulse_registry.log.segmented import snapshot_of, state_of
from pulse_registry.log.segments import cut, encoded, fetch, live_ids
from pulse_registry.store import Store
from pulse_schemas import PatchRef, SegmentedSnapshot, Signer


def put_snapshot(store: Store, state: RunState, signer: Signer | None = None, *, at: int | None = None) -> str:
    """Put a state as a snapshot of new segments, under its own number or another; return its key."""
    found = [encoded(state.seq, content) for content in cut(state.tables, live_ids(state.tables))]
    for segment, data in found:
        store.put(segment.key, data)
    key = keys.snapshot_key(state.seq if at is None else at)
    store.put(key, snapshot_of(state, [segment for segment, _ in found]).seal(signer))
    return key


def read_snapshot(store: Store, key: str) -> tuple[SegmentedSnapshot, RunState]:
    """Return a snapshot, and the state that it says."""
    snapshot = SegmentedSnapshot.unseal(store.get(key, max_bytes=1 << 30))
    return snapshot, state_of(snapshot, fetch(store, snapshot.run, snapshot.segments, None))


def with_patches(state: RunState, change: dict[str, object]) -> RunState:
    """Return the state with other fields in the objects of all its patches."""
    snapshot = state.to_snapshot()
    patches: tuple[PatchRef, ...] = tuple(
        patch.model_copy(update={"object": patch.object.model_copy(update=change)}) for patch in snapshot.patches
    )
    return RunState.from_snapshot(snapshot.model_copy(update={"patches": patches}))
