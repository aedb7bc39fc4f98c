"""The objects that a record names: patches, keyframes, and their files."""

from __future__ import annotations

from collections.abc import Iterator

from pulse_schemas import AttachRecord, CommitRecord, KeyframeRef, ObjectRef, PatchRef


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
