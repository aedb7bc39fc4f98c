"""What a record, or the state of a run, needs: units that are there whole or not, and the stored objects of each.

The one place that says which objects a copy must have. Of a unit in several objects (a patch in parts, a file set, a
checkpoint) a head that is read from the source names them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TypeAlias

from pulse_registry.errors import CorruptObject
from pulse_registry.format import keys
from pulse_registry.format.outer_checkpoint import told_groups
from pulse_registry.format.patch_parts import Stored, parts_in
from pulse_registry.log import RunState
from pulse_registry.log.append_guard import MOST_HEAD_BYTES
from pulse_registry.log.documents import LAYOUT
from pulse_registry.log.files import FILE_SET_BYTES, fetch_file_set
from pulse_registry.log.guard import AnyRecord
from pulse_registry.log.named_objects import files_of, keyframes_of, patches_of
from pulse_registry.outer.state import OuterState
from pulse_registry.store import PrefixStore, Store
from pulse_registry.store.verified_read import checked
from pulse_schemas import AttachRecord, CommitRecord, KeyframeRef, ObjectRef, PatchRef
from pulse_schemas.outer import CheckpointRecord, ContributeRecord, MergedRecord


@dataclass(frozen=True, slots=True)
class Document:
    """A small object that is named by the hash of its bytes, so that no record says how many it has."""

    key: str
    blake3: str
    most: int


Item: TypeAlias = Stored | Document
"""One stored object, and what it must be, by its key below the run."""


@dataclass(frozen=True, slots=True)
class Unit:
    """Something that a record names, and that is of use only if all of its objects are there.

    Attributes:
        key: by which it is told of.
        of: what the record says of it.
        required: whether the record must not be there without it; else it comes along if the source has it.
    """

    key: str
    of: ObjectRef | PatchRef | KeyframeRef | CheckpointRecord | Document
    required: bool = True


def named(record: AnyRecord, state: RunState) -> Iterator[Unit]:
    """Yield what a record names and a later state of its run has not retired, layouts and files first.

    Layouts and files of retired versions come along where the source has them: no collector deletes them.
    """
    if not isinstance(record, CommitRecord | AttachRecord):
        return
    if isinstance(record, CommitRecord):
        entry = state.find(record.version)
        required = entry is not None and entry.seq == record.seq and not state.is_retired(record.version)
        yield _layout(record.layout, required)
        if record.files is not None:
            yield _file_set(record.files, required)
    yield from (_patch(patch) for patch in patches_of(record) if state.is_live(patch.object.key))
    yield from (_keyframe(one) for one in keyframes_of(record) if state.is_live(one.index.key))


def needed(state: RunState) -> Iterator[Unit]:
    """Yield all that the state of a run needs: what `named` says of all records that led to it, once."""
    live = [entry for entry in state.versions_since(0) if not state.is_retired(entry.version)]
    yield from map(_layout, sorted({entry.layout for entry in live}))
    yield from map(_file_set, sorted({entry.files for entry in live if entry.files is not None}))
    yield from map(_patch, state.patches)
    yield from map(_keyframe, state.keyframes)


def named_by_rounds(record: AnyRecord, state: OuterState) -> Iterator[Unit]:
    """Yield what a record of outer rounds names and a later state of them has not retired, by keys below the run."""
    if isinstance(record, CheckpointRecord | ContributeRecord | MergedRecord) and not _is_outer(record.object):
        return  # it names nothing, or what is no object: readers refuse it
    if isinstance(record, CheckpointRecord):
        if record.round >= state.retired:
            yield Unit(keys.OUTER + record.object.key, record)
        return
    of = record.object if isinstance(record, ContributeRecord | MergedRecord) and record.round > state.retired else None
    if of is not None:
        yield Unit(keys.OUTER + of.key, _below(of))


def needed_by_rounds(state: OuterState) -> Iterator[Unit]:
    """Yield all that the state of outer rounds needs, of what it keeps."""
    for closed in state.closed:
        for part in closed.contributions.values():
            yield from named_by_rounds(part, state)
    for record in chain[AnyRecord](state.contributions.values(), state.merged.values(), state.checkpoints):
        yield from named_by_rounds(record, state)


def items_of(store: Store, unit: Unit) -> Iterator[Item]:
    """Yield the objects of a unit; what names others of them comes last, as writers store it.

    Args:
        store: the source, scoped to the run, from which heads are read.
        unit: of which.

    Raises:
        CorruptObject, UnsupportedFormat, NotFound: a head is not what it must be.
        AccessDenied, StoreUnavailable: it can't be read.
    """
    match unit.of:
        case PatchRef() as patch:
            if patch.parts is not None:
                _check_head(patch.object)
                read = partial(store.get, unit.key, (0, patch.head_size))
                yield from checked(read, lambda head: [*parts_in(patch, head)])
            yield patch.object
        case KeyframeRef() as keyframe:
            *shards, index = reversed(files_of(keyframe))
            yield from (*shards, index)
        case CheckpointRecord() as record:
            _check_head(record.object)
            below = PrefixStore(store, keys.OUTER.rstrip("/"))
            read = partial(below.get, record.object.key, max_bytes=record.object.size)
            groups = checked(read, partial(told_groups, record))
            for row, (group, size) in enumerate(zip(groups.groups.tolist(), groups.sizes.tolist(), strict=True)):
                yield ObjectRef(
                    key=keys.checkpoint_group_key(unit.key, group), size=size, blake3=groups.hash(row).hex()
                )
            yield _below(record.object)
        case Document() as document if document.key.startswith(keys.FILES):
            files = fetch_file_set(store, document.blake3).files.values()
            yield from (ObjectRef(key=keys.file_key(e.blake3), size=e.size, blake3=e.blake3) for e in files)
            yield document
        case Document() | ObjectRef() as item:
            yield item


def _layout(layout_id: str, required: bool = True) -> Unit:
    key = keys.layout_key(layout_id)
    return Unit(key, Document(key, layout_id, LAYOUT), required)


def _file_set(files_id: str, required: bool = True) -> Unit:
    key = keys.file_key(files_id)
    return Unit(key, Document(key, files_id, FILE_SET_BYTES), required)


def _patch(patch: PatchRef) -> Unit:
    return Unit(patch.object.key, patch)


def _keyframe(keyframe: KeyframeRef) -> Unit:
    return Unit(keyframe.index.key, keyframe)


def _is_outer(ref: ObjectRef | None) -> bool:
    return ref is not None and keys.outer_object(ref.key) is not None


def _below(ref: ObjectRef) -> ObjectRef:
    return ref.model_copy(update={"key": keys.OUTER + ref.key})


def _check_head(ref: ObjectRef) -> None:
    if ref.size > MOST_HEAD_BYTES:
        raise CorruptObject(f"{ref.key}: a head has {MOST_HEAD_BYTES:,} bytes at most, and this {ref.size:,}")
