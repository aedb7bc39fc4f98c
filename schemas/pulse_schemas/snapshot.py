"""Snapshot: the fold of a log up to one record; and the head, a hint of the newest. Opening a run stays O(new)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from pulse_schemas.base import (
    Count,
    Digest,
    Hash,
    JsonObject,
    Key,
    Many,
    RunName,
    Schema,
    Step,
    TagName,
    Timestamp,
    sealed_body,
)
from pulse_schemas.home import HomeEntry
from pulse_schemas.objects import BaseId, KeyframeRef, PatchRef


class VersionEntry(Schema):
    """One committed version, without the objects that lead to it. ``seq`` is the record that committed it.

    ``files``: id of the `FileSet` that goes with it, named by its record or by one before.
    """

    version: Count
    seq: Count
    step: Step
    layout: Hash
    digest: Digest
    changed: Count
    cells: Count
    created_at: Timestamp
    metadata: JsonObject = Field(default_factory=dict)
    files: Hash | None = None

    @model_serializer(mode="wrap")
    def _as_before(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # A version without files is written as it was before there were any.
        fields: dict[str, Any] = serialize(self)
        if self.files is None:
            fields.pop("files", None)
        return fields


class RetiredVersion(Schema):
    """A version that record ``seq`` retired, and that is not forgotten yet."""

    version: Count
    seq: Count


class RetiredKey(Schema):
    """An object that record ``seq`` retired, and whose key must not be named again."""

    key: Key
    seq: Count


SnapshotFormat = Literal["pulse-snapshot/2", "pulse-snapshot/3", "pulse-snapshot/4"]


def snapshot_format(versions: Iterable[VersionEntry], patches: Iterable[PatchRef]) -> SnapshotFormat:
    """Return the one format of a snapshot: the fourth if a version has files, the third if a patch is in parts."""
    if any(version.files is not None for version in versions):
        return "pulse-snapshot/4"
    return "pulse-snapshot/3" if any(patch.parts is not None for patch in patches) else "pulse-snapshot/2"


class Snapshot(Schema):
    """All that the records 0..seq say: objects that are live, in the order of the log, and what was retired.

    ``last`` is the BLAKE3 of the sealed bytes of record ``seq``: it ties the snapshot to its log, and the
    next record chains to it. ``count`` versions were committed; those that are not in ``versions`` are forgotten.
    """

    run: RunName
    seq: Count
    last: Hash
    epoch: Count
    count: Count
    versions: Many[VersionEntry]
    patches: Many[PatchRef]
    keyframes: Many[KeyframeRef]
    retired_versions: Many[RetiredVersion] = ()
    retired_keys: Many[RetiredKey] = ()
    tags: dict[TagName, Count] = Field(default_factory=dict)
    format: SnapshotFormat = Field(
        default_factory=lambda data: snapshot_format(data.get("versions", ()), data.get("patches", ()))
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        right = snapshot_format(self.versions, self.patches)
        if self.format != right:
            raise ValueError(f"a snapshot of these versions and patches is of format {right!r}")
        return self


Run = Annotated[tuple[Count, Annotated[int, Field(ge=1, lt=2**63)]], Field(description="the first, and how many")]


class SegmentRows(Schema):
    """Rows of one table in a segment, and which of them are dead: runs of rows, counted from the segment's first."""

    rows: Count
    dead: Many[Run] = ()


class SegmentRef(Schema):
    """A segment: ``seq`` of the snapshot that was the first to name it, its bytes, and its rows of each table."""

    seq: Count
    size: Count
    blake3: Hash
    versions: SegmentRows
    patches: SegmentRows
    keyframes: SegmentRows


class Retired(Schema):
    """What record ``seq`` retired, and is not forgotten: runs of versions, and keys, both rising."""

    seq: Count
    versions: Many[Run] = ()
    keys: Many[Key] = ()


class NextIds(Schema):
    """The id of the row that each table gets next."""

    versions: Count
    patches: Count
    keyframes: Count


SegmentedFormat = Literal["pulse-snapshot/5", "pulse-snapshot/6"]


def segmented_format(home: HomeEntry | None, shared_bases: Mapping[str, Count | None]) -> SegmentedFormat:
    """Return the one format of a snapshot of segments: the sixth if the run has moved, or has named shared bases."""
    return "pulse-snapshot/5" if home is None and not shared_bases else "pulse-snapshot/6"


class SegmentedSnapshot(Schema):
    """All that the records 0..seq say, as `Snapshot`, with versions, patches and keyframes in segments beside it.

    Rows are in the order of the segments, and of the log. ``shared_bases``: those that the run has ever named, by id,
    and the record that retired each; null: none has.
    """

    run: RunName
    seq: Count
    last: Hash
    epoch: Count
    count: Count
    segments: Many[SegmentRef]
    next_ids: NextIds
    retired: Many[Retired] = ()
    tags: dict[TagName, Count] = Field(default_factory=dict)
    home: HomeEntry | None = None
    shared_bases: dict[BaseId, Count | None] = Field(default_factory=dict)
    format: SegmentedFormat = Field(
        default_factory=lambda data: segmented_format(data.get("home"), data.get("shared_bases", {}))
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        right = segmented_format(self.home, self.shared_bases)
        if self.format != right:
            raise ValueError(f"a snapshot of this state is of format {right!r}")
        return self

    @model_serializer(mode="wrap")
    def _as_before(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # A run that has neither moved nor named shared bases is written as it was before one could.
        fields: dict[str, Any] = serialize(self)
        if self.home is None:
            fields.pop("home", None)
        if not self.shared_bases:
            fields.pop("shared_bases", None)
        return fields


_SEGMENTED: Final = re.compile(rb'\{"count":[0-9]{1,19},"epoch":[0-9]{1,19},"format":"pulse-snapshot/[56]",')
"""How the canonical form of a snapshot of segments begins."""


def unseal_snapshot(data: bytes) -> Snapshot | SegmentedSnapshot:
    """Read a sealed snapshot of any format.

    Raises:
        SchemaError: it is damaged, or (``fault=UNSUPPORTED``) of a format that this release does not know.
    """
    body = sealed_body(data)
    return (Snapshot if _SEGMENTED.match(body) is None else SegmentedSnapshot).parse(body)


class Head(Schema):
    """A hint: the newest record and snapshot when it was written. May lag or be missing; never trusted."""

    format: Literal["pulse-head/1"] = "pulse-head/1"
    seq: Count
    snapshot: Count | None
