"""All that a run's state says, to compare two of them; and a state as a snapshot brings it back."""

from __future__ import annotations

from typing import Any

from pulse_registry.format.segment import COLUMNS
from pulse_registry.log import RunState
from pulse_registry.log.segmented import snapshot_of, state_of
from pulse_registry.log.segments import cut, encoded, live_ids
from pulse_schemas import SegmentedSnapshot


def said(state: RunState) -> dict[str, Any]:
    """Return what a state says: the same of all folds of the same records, whatever numbers their rows have."""
    document = snapshot_of(state, ()).model_dump(mode="json", exclude={"segments", "next_ids"})
    return document | {name: [row.model_dump(mode="json") for row in getattr(state.tables, name)] for name in COLUMNS}


def restored(state: RunState) -> RunState:
    """Return the state that a snapshot of one, and its segments, say."""
    contents = list(cut(state.tables, live_ids(state.tables)))
    snapshot = snapshot_of(state, [encoded(state.seq, content)[0] for content in contents])
    return state_of(SegmentedSnapshot.unseal(snapshot.seal()), contents)
