"""The log's records: a tagged union on ``kind``. Everything true about a run is the fold of its records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from pulse_schemas.base import (
    Count,
    Digest,
    Fault,
    Hash,
    JsonObject,
    Key,
    Many,
    Place,
    RunName,
    Schema,
    SchemaError,
    Step,
    TagName,
    Timestamp,
    WriteId,
    load_json,
    sealed_body,
)
from pulse_schemas.objects import BASES, KeyframeRef, PatchRef

RecordFormat = Literal["pulse-record/1", "pulse-record/2", "pulse-record/3", "pulse-record/4"]


def record_format(patches: Iterable[PatchRef], files: str | None = None, keys: Iterable[str] = ()) -> RecordFormat:
    """Return the one format of a record.

    The fourth if one of ``keys``, those of keyframes' files, is a shared base's; the third if it names files; the
    second if one of its patches is in parts.
    """
    if any(key.startswith(BASES) for key in keys):
        return "pulse-record/4"
    if files is not None:
        return "pulse-record/3"
    return "pulse-record/2" if any(patch.parts is not None for patch in patches) else "pulse-record/1"


def _keys_of(keyframes: Iterable[KeyframeRef]) -> Iterator[str]:
    for keyframe in keyframes:
        yield keyframe.index.key
        yield from (shard.key for shard in keyframe.shards)


def _check_format(found: RecordFormat, right: RecordFormat) -> None:
    if found != right:
        raise ValueError(f"a record of these objects is of format {right!r}")


class _Common(Schema):
    """Fields of every record.

    ``previous`` is the BLAKE3 of the sealed bytes of record ``seq - 1``; none for seq 0.
    """

    run: RunName
    seq: Count
    epoch: Count
    write_id: WriteId
    previous: Hash | None
    created_at: Timestamp

    @model_validator(mode="after")
    def _chained(self) -> Self:
        if (self.previous is None) != (self.seq == 0):
            raise ValueError("exactly record 0 has no previous record")
        return self


class _First(_Common):
    """What the first format has always had, and later ones have not changed."""

    format: Literal["pulse-record/1"] = "pulse-record/1"


class EpochRecord(_First):
    """A writer begins its term ``epoch``; writers of lower epochs are fenced from here on."""

    kind: Literal["epoch"] = "epoch"
    writer: Annotated[str, Field(max_length=256, description="who: host, process")]


class CommitRecord(_Common):
    """Version ``version`` exists: reached by ``patch`` from its parent, held by ``keyframe``, or both.

    ``files``: id of the `FileSet` that goes with it and with later versions; without one, the parent's does.
    """

    kind: Literal["commit"] = "commit"
    version: Count
    step: Step
    parent: Count | None
    layout: Hash
    patch: PatchRef | None
    keyframe: KeyframeRef | None
    digest: Digest
    changed: Count
    cells: Count
    metadata: JsonObject = Field(default_factory=dict)
    files: Hash | None = None
    format: RecordFormat = Field(
        default_factory=lambda data: record_format(
            filter(None, [data.get("patch")]), data.get("files"), _keys_of(filter(None, [data.get("keyframe")]))
        )
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.parent != (self.version - 1 if self.version else None):
            raise ValueError("parent is not the version before")
        if self.patch is None and self.keyframe is None:
            raise ValueError("a version needs a patch or a keyframe")
        if self.patch is not None and (self.patch.base, self.patch.target) != (self.parent, self.version):
            raise ValueError("the patch does not lead from the parent to the version")
        if self.keyframe is not None and self.keyframe.version != self.version:
            raise ValueError("the keyframe is of another version")
        if self.changed > self.cells:
            raise ValueError("more changed cells than cells")
        keys = () if self.keyframe is None else _keys_of((self.keyframe,))
        _check_format(self.format, record_format(() if self.patch is None else (self.patch,), self.files, keys))
        return self

    @model_serializer(mode="wrap")
    def _as_before(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # A commit that names no files is written as it was before there were any.
        fields: dict[str, Any] = serialize(self)
        if self.files is None:
            fields.pop("files", None)
        return fields


class AttachRecord(_Common):
    """Objects made later for versions that exist: merged patches, keyframes."""

    kind: Literal["attach"] = "attach"
    patches: Many[PatchRef] = ()
    keyframes: Many[KeyframeRef] = ()
    format: RecordFormat = Field(
        default_factory=lambda data: record_format(data.get("patches", ()), keys=_keys_of(data.get("keyframes", ())))
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        _check_format(self.format, record_format(self.patches, keys=_keys_of(self.keyframes)))
        return self


def _retire_format(keys: Iterable[str]) -> Literal["pulse-record/1", "pulse-record/4"]:
    return "pulse-record/4" if any(key.startswith(BASES) for key in keys) else "pulse-record/1"


class RetireRecord(_Common):
    """Versions and objects (by key) that readers must no longer use; objects that no record names can be named no more.

    That is what makes it safe to delete what a crashed writer left: should it wake, its record is refused.
    """

    kind: Literal["retire"] = "retire"
    versions: Many[Count] = ()
    keys: Many[Key] = ()
    format: Literal["pulse-record/1", "pulse-record/4"] = Field(
        default_factory=lambda data: _retire_format(data.get("keys", ()))
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        _check_format(self.format, _retire_format(self.keys))
        return self


class DeleteRecord(_First):
    """What the records up to ``until`` retired has been deleted from the store: nobody needs to remember it."""

    kind: Literal["delete"] = "delete"
    until: Count


class TagRecord(_First):
    """The name ``name`` stands for ``version`` from here on; for none, if that is null. A tagged version is kept."""

    kind: Literal["tag"] = "tag"
    name: TagName
    version: Count | None


class MoveRecord(_Common):
    """The run goes on elsewhere, at ``to``: at the one root whose `Home` names this record's ``write_id``.

    It ends every term, so its epoch is one that no writer has. Writers at any other root are fenced, for ever.
    """

    kind: Literal["move"] = "move"
    to: Place
    format: Literal["pulse-record/4"] = "pulse-record/4"


Record = EpochRecord | CommitRecord | AttachRecord | RetireRecord | DeleteRecord | TagRecord | MoveRecord
RECORD_KINDS: Mapping[str, type[Record]] = {kind.model_fields["kind"].default: kind for kind in get_args(Record)}
"""The class of each kind of record, in the order of the union."""
_MOST_LISTS, _MOST_VALUES = 150_000, 500_000
"""Of a record. A keyframe has an object for each of at most 36,000 shards, metadata 32,000 lists at most."""


def check_parts(content: bytes) -> None:
    """Check, before a record is parsed, that it has no more parts than one can have: memory goes by them.

    What is in its texts is no part of it.

    Raises:
        SchemaError: it has more than 150,000 lists and objects, or 500,000 values.
    """
    if _fits(content):
        return
    plain = content.replace(b"\\\\", b"").replace(b'\\"', b"")
    if plain.count(b'"') > 2 * _MOST_VALUES or not _fits(b"".join(plain.split(b'"')[::2])):
        raise SchemaError(f"it has more than {_MOST_LISTS:,} lists and objects, or {_MOST_VALUES:,} values")


def _fits(content: bytes) -> bool:
    return content.count(b"[") + content.count(b"{") <= _MOST_LISTS and content.count(b",") < _MOST_VALUES


def unseal_record(data: bytes) -> Record:
    """Read one sealed record of any kind.

    Raises:
        SchemaError: damaged, of too many parts, or (``fault=UNSUPPORTED``) of a format or kind that this release does
            not know.
    """
    content = sealed_body(data)
    check_parts(content)
    body = load_json(content)
    kind = body.get("kind") if isinstance(body, dict) else None
    if not isinstance(kind, str) or kind not in RECORD_KINDS:
        fault = Fault.UNSUPPORTED if kind and isinstance(kind, str) else Fault.CORRUPT
        raise SchemaError(f"record kind {kind!r:.100} is not known here", fault)
    return RECORD_KINDS[kind].parse(content)
