"""Results of calls: versions, pushes, pulls. Plain values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from pulse_registry.log import RunState
from pulse_registry.timeline import Phase
from pulse_schemas import VersionEntry

Kind = Literal["patch", "keyframe"]
VersionName = int | str
"""A number, ``latest``, or a tag."""


@dataclass(frozen=True, slots=True)
class Version:
    """One committed version.

    Attributes:
        version: 0, 1, 2, ...
        step: the trainer's own label.
        kind: ``patch`` where it was committed as a patch from the version before, else ``keyframe``.
        changed, cells: cells that differ from the version before, of all.
        nbytes: size of that patch, or of the keyframe.
        digest: state digest, 32 hex digits.
        created_at: UTC, ISO 8601 in milliseconds.
        layout: id of its layout.
        metadata: what the trainer said of it.
        files: id of the set of small files that go with it, which ``Registry.files`` returns; None: there are none.
    """

    version: int
    step: int
    kind: Kind
    changed: int
    cells: int
    nbytes: int
    digest: str
    created_at: str
    layout: str
    metadata: Mapping[str, Any] = field(default_factory=dict)
    files: str | None = None


@dataclass(frozen=True, slots=True)
class PushResult:
    """Result of a push. ``nbytes`` were stored for it, of ``full_nbytes`` that all cells take.

    ``timeline``: the phases ``wait`` (for earlier pushes, where too many were on their way), ``diff`` (which the caller
    waits for as well), ``code``, ``hash``, ``upload`` and ``commit``.
    ``phases``: seconds from each one's start to its end; they overlap, so that they don't add up to the whole.
    ``coalesced``: a later push took its place before it was stored; all else is then told of that one's version.
    """

    version: int
    step: int
    kind: Kind
    changed: int
    cells: int
    nbytes: int
    full_nbytes: int
    digest: str
    phases: Mapping[str, float]
    timeline: tuple[Phase, ...] = ()
    coalesced: bool = False


@dataclass(frozen=True, slots=True)
class PullResult:
    """Result of a pull: ``nbytes`` in ``objects`` objects were fetched, and ``changed`` of the weights' cells changed.

    ``cells``: all of the version; who pulls slices of it holds some of them.

    ``avoided``: keys of the objects that are gone or damaged, so that another route was taken.
    ``checked``: ``state``: all cells of the version were compared with its state digest; ``slices``: what is stored of
    the slices that were pulled, by its BLAKE3.
    ``timeline``: the phases ``route``, ``fetch``, ``decode``, ``verify`` and ``apply``, in seconds from the call of
    ``pull`` or ``stage``; only ``apply`` changes weights. ``phases``: seconds from each one's start to its end; they
    overlap, so that they don't add up to the whole.
    """

    version: int
    step: int
    digest: str
    nbytes: int
    objects: int
    changed: int
    phases: Mapping[str, float]
    timeline: tuple[Phase, ...] = ()
    avoided: tuple[str, ...] = ()
    checked: Literal["state", "slices"] = "state"
    cells: int = 0


ResultListener: TypeAlias = Callable[[PushResult | PullResult], None]
"""Is told of each version that was pushed, and of each pull that changed something."""


def describe(state: RunState, entry: VersionEntry) -> Version:
    """Return a version as callers see it."""
    patch = next((p for p in state.patches_into(entry.version) if p.base == entry.version - 1), None)
    keyframe = state.keyframe(entry.version)
    ref = patch or keyframe
    return Version(
        version=entry.version,
        step=entry.step,
        kind="keyframe" if patch is None else "patch",
        changed=entry.changed,
        cells=entry.cells,
        nbytes=ref.size if ref is not None else 0,
        digest=entry.digest,
        created_at=entry.created_at,
        layout=entry.layout,
        metadata=entry.metadata,
        files=entry.files,
    )
