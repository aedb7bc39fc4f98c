"""References to stored objects: what a record says of a patch or a keyframe."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from pulse_schemas.base import Count, Hash, Key, Many, Schema

Coder = Literal["gap", "class"]


class ObjectRef(Schema):
    """One immutable object: ``size`` in bytes, ``blake3`` of all its bytes."""

    key: Key
    size: Count
    blake3: Hash


class PatchRef(Schema):
    """A patch object ``base -> target``.

    Its first ``head_size`` bytes hold all but the groups and hash to ``head_blake3``.
    """

    base: Count
    target: Count
    coder: Coder
    changed: Count
    object: ObjectRef
    head_size: Count
    head_blake3: Hash

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.target <= self.base:
            raise ValueError("a patch leads from an older to a newer version")
        if self.head_size > self.object.size:
            raise ValueError("head_size is over the object's size")
        return self

    @property
    def size(self) -> int:
        """Bytes to fetch."""
        return self.object.size


class KeyframeRef(Schema):
    """All cells of ``version``: the shards of a Hugging Face checkpoint and its index file."""

    version: Count
    index: ObjectRef
    shards: Annotated[Many[ObjectRef], Field(min_length=1)]

    @property
    def size(self) -> int:
        """Bytes to fetch, the index included."""
        return self.index.size + sum(shard.size for shard in self.shards)
