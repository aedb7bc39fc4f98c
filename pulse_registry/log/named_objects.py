"""The objects that a record names: patches, keyframes, and their files."""

from __future__ import annotations

from collections.abc import Iterator

from pulse_registry.format.keys import is_head_key, is_object_key, named_key, versions_of
from pulse_schemas import AttachRecord, CommitRecord, KeyframeRef, ObjectRef, PatchRef, base_of


def objects_of(record: CommitRecord | AttachRecord) -> Iterator[ObjectRef]:
    """Yield every object that a record names."""
    for patch in patches_of(record):
        yield patch.object
    for keyframe in keyframes_of(record):
        yield from files_of(keyframe)


def files_of(keyframe: KeyframeRef) -> tuple[ObjectRef, ...]:
    """Return the files of a keyframe."""
    return (keyframe.index, *keyframe.shards)


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


def key_violation(named: PatchRef | KeyframeRef) -> str | None:
    """Return in words why a key is none that an object of these versions can have, or None.

    Named objects lie in the folder of objects, under the versions that they are of; or all files of a keyframe are
    those of one shared base. Where the parts of a patch lie follows from the key of its head.
    """
    if isinstance(named, KeyframeRef):
        bases = {base_of(item.key) for item in files_of(named)}
        if bases != {None}:
            return None if len(bases) == 1 else "it names a keyframe whose files are not those of one shared base"
        return next(filter(None, (_misplaced(item.key, (named.version,)) for item in files_of(named))), None)
    key = named.object.key
    if named.parts is not None and not is_head_key(key):
        return f"it names a patch in parts by {key!r}, which is no key of a patch's head"
    return _misplaced(key, (named.base, named.target))


def _misplaced(key: str, versions: tuple[int, ...]) -> str | None:
    if not is_object_key(key):
        return f"it names {key!r} as an object, which is outside the folder of objects"
    if versions_of(key) != versions:
        return f"it names {key!r}, which is no key of an object of version {versions[-1]}"
    if named_key(key) != key:
        return f"it names {key!r}, a part of a patch, which its head names"
    return None
