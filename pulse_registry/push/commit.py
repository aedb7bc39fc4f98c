"""Commit of a push: what its record says, and what its caller hears."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from pulse_registry.log import CommitDraft
from pulse_registry.results import PushResult
from pulse_registry.timeline import Timeline, extents
from pulse_registry.weights.cell_space import Geometry
from pulse_registry.weights.digest import Digest
from pulse_schemas import CommitRecord, KeyframeRef, PatchRef


class Labelled(Protocol):
    """What a trainer says of a version that is to be committed, and how its push went."""

    version: int
    step: int
    metadata: Mapping[str, Any]
    timeline: Timeline


def draft_of(
    push: Labelled,
    geometry: Geometry,
    digest: Digest,
    write_id: str,
    stored: PatchRef | KeyframeRef | None,
    files: str | None = None,
) -> CommitDraft:
    """Return what the record of a stored push says; ``files``: id of the file set that it names."""
    patch = stored if isinstance(stored, PatchRef) else None
    return CommitDraft(
        version=push.version,
        step=push.step,
        layout=geometry.id,
        digest=digest.hex(),
        changed=geometry.cells if patch is None else patch.changed,
        cells=geometry.cells,
        write_id=write_id,
        patch=patch,
        keyframe=stored if isinstance(stored, KeyframeRef) else None,
        metadata=dict(push.metadata),
        files=files,
    )


def result_of(push: Labelled, geometry: Geometry, record: CommitRecord) -> PushResult:
    """Return what the caller hears of a committed push."""
    phases, stored = push.timeline.phases(), record.patch or record.keyframe
    return PushResult(
        version=record.version,
        step=record.step,
        kind="keyframe" if record.patch is None else "patch",
        changed=record.changed,
        cells=record.cells,
        nbytes=0 if stored is None else stored.size,
        full_nbytes=geometry.nbytes,
        digest=record.digest,
        phases=extents(phases),
        timeline=phases,
    )
