"""What must hold for a record to follow a state: each rule one predicate that returns what is wrong, or None.

The reader refuses a record that breaks a rule; the writer asks the same rules before it writes one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pulse_registry.log.keys import is_object_key
from pulse_schemas import (
    AttachRecord,
    CommitRecord,
    EpochRecord,
    KeyframeRef,
    ObjectRef,
    PatchRef,
    Record,
    RetireRecord,
)

if TYPE_CHECKING:
    from pulse_registry.log.state import RunState


def is_void(state: RunState, record: Record) -> bool:
    """Tell whether a newer writer has fenced the writer of this commit, so that it counts for nothing.

    Only commits can be void: an attach or a retire names nothing but what exists, whoever wrote it.
    """
    return isinstance(record, CommitRecord) and record.epoch < state.epoch


def violation(state: RunState, record: Record) -> str | None:
    """Return in words the first rule that ``record`` breaks as the successor of ``state``, or None."""
    wrong = chain_violation(state, record) or epoch_violation(state, record)
    if wrong or is_void(state, record):
        return wrong
    match record:
        case EpochRecord():
            return None
        case CommitRecord():
            return (
                version_violation(state, record)
                or layout_change_violation(state, record)
                or objects_violation(state, objects_of(record))
            )
        case AttachRecord():
            return attach_violation(state, record) or objects_violation(state, objects_of(record))
        case RetireRecord():
            return retire_violation(state, record)


def chain_violation(state: RunState, record: Record) -> str | None:
    """A record is of the state's run, follows the last record, and names that record's hash."""
    if record.run != state.run:
        return f"it belongs to run {record.run!r}, not to {state.run!r}"
    if record.seq != state.seq + 1:
        return f"it says it is record {record.seq}, where record {state.seq + 1} belongs"
    if record.previous != state.last:
        return f"it follows a record with hash {record.previous}, but record {state.seq} has {state.last}"
    return None


def epoch_violation(state: RunState, record: Record) -> str | None:
    """Epoch records strictly raise the epoch; other records carry one that has begun."""
    if isinstance(record, EpochRecord):
        if record.epoch <= state.epoch:
            return f"it begins epoch {record.epoch}, but epoch {state.epoch} has begun before"
        return None
    if record.epoch > state.epoch:
        return f"it is of epoch {record.epoch}, which no epoch record has begun (newest: {state.epoch})"
    if record.epoch == 0:
        return "it is of epoch 0: its writer never began a term"
    return None


def version_violation(state: RunState, record: CommitRecord) -> str | None:
    """Versions are committed one by one, without gaps."""
    if record.version != len(state.versions):
        return f"it commits version {record.version}, where version {len(state.versions)} is next"
    return None


def layout_change_violation(state: RunState, record: CommitRecord) -> str | None:
    """A version with another layout than its parent's is held whole by a keyframe; no patch leads to it."""
    if state.latest is None or state.latest.layout == record.layout:
        return None
    if record.keyframe is None or record.patch is not None:
        return f"version {record.version} has another layout than its parent and needs a keyframe and no patch"
    return None


def attach_violation(state: RunState, record: AttachRecord) -> str | None:
    """Objects are attached to versions that exist; a patch joins two versions of one layout."""
    known = len(state.versions)
    for patch in record.patches:
        if patch.target >= known:
            return f"it attaches a patch into version {patch.target}, which does not exist"
        if state.versions[patch.base].layout != state.versions[patch.target].layout:
            return f"it attaches a patch {patch.base} -> {patch.target} between two layouts"
    for keyframe in record.keyframes:
        if keyframe.version >= known:
            return f"it attaches a keyframe of version {keyframe.version}, which does not exist"
    return None


def retire_violation(state: RunState, record: RetireRecord) -> str | None:
    """Only what exists can be retired; to retire it twice changes nothing."""
    for version in record.versions:
        if version >= len(state.versions):
            return f"it retires version {version}, which does not exist"
    for key in record.keys:
        if not state.is_live(key) and key not in state.retired_keys:
            return f"it retires {key}, which no record names"
    return None


def objects_violation(state: RunState, objects: Iterator[ObjectRef]) -> str | None:
    """Named objects lie in the folder of objects, and each key is named for the first time."""
    seen = set()
    for item in objects:
        if not is_object_key(item.key):
            return f"it names {item.key!r} as an object, which is outside the folder of objects"
        if item.key in seen or state.is_live(item.key) or item.key in state.retired_keys:
            return f"it names object {item.key}, which is named already"
        seen.add(item.key)
    return None


def objects_of(record: CommitRecord | AttachRecord) -> Iterator[ObjectRef]:
    """Yield every object that a record names."""
    for patch in patches_of(record):
        yield patch.object
    for keyframe in keyframes_of(record):
        yield keyframe.index
        yield from keyframe.shards


def patches_of(record: CommitRecord | AttachRecord) -> tuple[PatchRef, ...]:
    """Return the patches that a record names."""
    if isinstance(record, AttachRecord):
        return record.patches
    return () if record.patch is None else (record.patch,)


def keyframes_of(record: CommitRecord | AttachRecord) -> tuple[KeyframeRef, ...]:
    """Return the keyframes that a record names."""
    if isinstance(record, AttachRecord):
        return record.keyframes
    return () if record.keyframe is None else (record.keyframe,)
