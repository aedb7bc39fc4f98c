"""The rules of the log: what must hold for a record to follow a state, each a predicate that returns what is wrong.

The reader refuses a record that breaks a rule; the writer asks the same rules before it writes one.
"""

from __future__ import annotations

from pulse_registry.format.keys import is_object_key
from pulse_registry.log.named_objects import key_violation, keyframes_of, objects_of, patches_of
from pulse_registry.log.state import RunState
from pulse_schemas import (
    AttachRecord,
    CommitRecord,
    DeleteRecord,
    EpochRecord,
    KeyframeRef,
    MoveRecord,
    PatchRef,
    Record,
    RetireRecord,
    TagRecord,
    base_of,
)


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
                or objects_violation(state, record)
            )
        case AttachRecord():
            return attach_violation(state, record) or objects_violation(state, record)
        case RetireRecord():
            return retire_violation(state, record)
        case DeleteRecord():
            return delete_violation(state, record)
        case TagRecord():
            return tag_violation(state, record)
        case MoveRecord():
            return move_violation(state)


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
    """Epoch and move records strictly raise the epoch; other records carry one that has begun."""
    if isinstance(record, EpochRecord | MoveRecord):
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
    """Objects are attached to versions that are there and not retired; a patch joins two versions of one layout."""
    for patch in record.patches:
        wrong = _missing(state, patch.base) or _missing(state, patch.target)
        if wrong is not None:
            return f"it attaches a patch {patch.base} -> {patch.target}, but {wrong}"
        if state.versions[patch.base].layout != state.versions[patch.target].layout:
            return f"it attaches a patch {patch.base} -> {patch.target} between two layouts"
    for keyframe in record.keyframes:
        wrong = _missing(state, keyframe.version)
        if wrong is not None:
            return f"it attaches a keyframe of version {keyframe.version}, but {wrong}"
    return None


def _missing(state: RunState, version: int) -> str | None:
    if version >= len(state.versions):
        return f"version {version} does not exist"
    return f"version {version} was retired" if state.is_retired(version) else None


def retire_violation(state: RunState, record: RetireRecord) -> str | None:
    """The newest version stays, and so do those with a tag. To retire a version twice changes nothing.

    Keys may be any objects': those that no record names can then be named no more.
    """
    newest = len(state.versions) - 1
    for version in record.versions:
        if version > newest:
            return f"it retires version {version}, which does not exist"
        if version == newest:
            return f"it retires version {version}, which is the newest"
        if state.has_tag(version):
            return f"it retires version {version}, which has a tag"
    for key in record.keys:
        if not is_object_key(key) and base_of(key) is None:
            return f"it retires {key!r}, which is outside the folder of objects"
    return None


def delete_violation(state: RunState, record: DeleteRecord) -> str | None:
    """What is deleted was retired before."""
    if record.until > state.seq:
        return f"it tells of what record {record.until} retired, but record {state.seq} is the newest"
    return None


def tag_violation(state: RunState, record: TagRecord) -> str | None:
    """A tag stands for a version that is there and not retired."""
    wrong = None if record.version is None else _missing(state, record.version)
    return None if wrong is None else f"it gives the name {record.name!r} to a version, but {wrong}"


def move_violation(state: RunState) -> str | None:
    """A run that moves has begun: else nobody could tell it from one that begins elsewhere."""
    return "it moves a run that has no record" if state.seq < 0 else None


def objects_violation(state: RunState, record: CommitRecord | AttachRecord) -> str | None:
    """Named objects have keys of their versions, and each is named once, for ever; so is each shared base."""
    named: tuple[PatchRef | KeyframeRef, ...] = (*patches_of(record), *keyframes_of(record))
    wrong = next(filter(None, map(key_violation, named)), None)
    if wrong is not None:
        return wrong
    bases = [keyframe.base for keyframe in keyframes_of(record) if keyframe.base is not None]
    again = next((base for base in bases if base in state.bases or bases.count(base) > 1), None)
    if again is not None:
        return f"it names the shared base {again}, which the run has named already"
    seen = set()
    for item in objects_of(record):
        if item.key in seen or state.is_live(item.key) or state.is_retired_key(item.key):
            return f"it names object {item.key}, which is named already"
        seen.add(item.key)
    return None


def retired_object(state: RunState, record: Record) -> str | None:
    """Return the key of an object that was retired, where that alone keeps a record from naming it; else None."""
    if not isinstance(record, CommitRecord | AttachRecord):
        return None
    if violation(state, record) != objects_violation(state, record):
        return None
    return next((item.key for item in objects_of(record) if state.is_retired_key(item.key)), None)
