"""References to stored objects: what a record says of a patch or a keyframe."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from pulse_schemas.base import Count, Hash, Key, Many, Schema

Coder = Literal["gap", "class"]
Values = Literal["levels", "float32"]
"""What a contribution to an outer round has of each cell that it sends."""
BASES: Final = "_bases/"
"""The root's folder of shared bases: keys that begin so are the root's, and no run's. No run's name begins so."""
BASE_ID_PATTERN: Final = r"[0-9a-f]{64}-[0-9]{4}"
"""A hash of what a base holds, and its generation: one that was closed is never opened again."""
BaseId = Annotated[str, Field(pattern=f"^{BASE_ID_PATTERN}$")]
_BASE_FILE: Final = re.compile(rf"{BASES}({BASE_ID_PATTERN})/[A-Za-z0-9][A-Za-z0-9._-]{{0,199}}\.(?:safetensors|json)")


def base_of(key: str) -> str | None:
    """Return the id of the shared base that an object's key is a file's of; None: it is no such key."""
    found = _BASE_FILE.fullmatch(key)
    return None if found is None else found[1]


class ObjectRef(Schema):
    """One immutable object: ``size`` in bytes, ``blake3`` of all its bytes."""

    key: Key
    size: Count
    blake3: Hash


class PatchRef(Schema):
    """A patch ``base -> target``: one object, or a head and parts beside it.

    The first ``head_size`` bytes of ``object`` hold all but the groups and hash to ``head_blake3``. ``parts``: bytes of
    the groups, where they lie in objects of their own; ``object`` is the head alone then.
    """

    base: Count
    target: Count
    coder: Coder
    changed: Count
    object: ObjectRef
    head_size: Count
    head_blake3: Hash
    parts: Count | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.target <= self.base:
            raise ValueError("a patch leads from an older to a newer version")
        if self.head_size > self.object.size:
            raise ValueError("head_size is over the object's size")
        if self.parts is not None and (self.object.size, self.object.blake3) != (self.head_size, self.head_blake3):
            raise ValueError("the object of a patch in parts is its head, and has its size and hash")
        return self

    @model_serializer(mode="wrap")
    def _as_before(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # A patch of one object is written as it was before there were parts.
        fields: dict[str, Any] = serialize(self)
        if self.parts is None:
            del fields["parts"]
        return fields

    @property
    def size(self) -> int:
        """Bytes to fetch."""
        return self.object.size + (self.parts or 0)

    @property
    def objects(self) -> int:
        """What a pull of it waits for, one after the other: its head, and its parts, which come side by side."""
        return 2 if self.parts else 1


class KeyframeRef(Schema):
    """All cells of ``version``: the shards of a Hugging Face checkpoint and its index file."""

    version: Count
    index: ObjectRef
    shards: Annotated[Many[ObjectRef], Field(min_length=1)]

    @property
    def size(self) -> int:
        """Bytes to fetch, the index included."""
        return self.index.size + sum(shard.size for shard in self.shards)

    @property
    def base(self) -> str | None:
        """Id of the shared base that it is; None: it is the run's own."""
        return base_of(self.index.key)
