"""Bodies of API answers from a run's state. Pure."""

from __future__ import annotations

from pulse_registry.log import RunState
from pulse_registry.results import describe
from pulse_schemas import VersionEntry
from pulse_schemas.api import RunBody, RunSummary, VersionBody


def version_body(state: RunState, entry: VersionEntry) -> VersionBody:
    """Return what is told of a version."""
    told = describe(state, entry)
    # The parts were checked when the record was read: to check them again would cost the most of an answer.
    return VersionBody.model_construct(
        version=told.version,
        step=told.step,
        kind=told.kind,
        changed=told.changed,
        cells=told.cells,
        nbytes=told.nbytes,
        digest=told.digest,
        created_at=told.created_at,
        layout=told.layout,
        seq=entry.seq,
        metadata=dict(told.metadata),
        files=told.files,
    )


def run_body(state: RunState, full_nbytes: int | None, summary: RunSummary) -> RunBody:
    """Return a run as a list shows it."""
    return RunBody.model_construct(
        run=state.run,
        seq=state.seq,
        epoch=state.epoch,
        versions=len(state.versions),
        latest=None if state.latest is None else version_body(state, state.latest),
        full_nbytes=full_nbytes,
        summary=summary,
    )


def unread_body(run: str) -> RunBody:
    """Return a run whose log can't be read as a list shows it."""
    return RunBody(run=run, seq=-1, epoch=0, versions=0, latest=None, full_nbytes=None)
