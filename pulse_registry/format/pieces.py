"""Pieces: ranges of a keyframe's shards, each with a BLAKE3, so that each is fetched, checked and kept alone.

They are in the keyframe's index, in ``metadata.pulse.pieces``. The record holds the index' BLAKE3, and so covers every
byte of the shards through it.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Final, Literal

from blake3 import blake3
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pulse_registry.errors import CorruptObject, UnsupportedFormat
from pulse_schemas import KeyframeRef, Schema, faults
from pulse_schemas.base import Count, Hash, Many

PIECE_BYTES = 8 << 20
"""What is written: long enough that a request costs little beside it, short enough that a lost one does too."""
MIN_PIECE_BYTES, MAX_PIECE_BYTES = 4 << 10, 16 << 20
"""What is read: the first bounds the index' size and the number of requests, the second the memory in flight."""

MOST_INDEX_BYTES: Final = 256 << 20
"""Of a keyframe's index: that of 2 TB takes 25 MB."""


class Pieces(Schema):
    """``size``: bytes of a piece, but for the last of a shard; ``blake3``: of each shard's pieces, by file name."""

    size: Annotated[int, Field(ge=MIN_PIECE_BYTES, le=MAX_PIECE_BYTES)]
    blake3: dict[str, Many[Hash]]


CODING_FORMAT: Final = "pulse-exponents/1"


class ShardCoding(Schema):
    """``tensors``: how many of the layout's next ones the shard holds; ``sizes``: bytes of each of its coded pieces."""

    tensors: Count
    sizes: Many[Count]


class Coding(Schema):
    """How the pieces of a keyframe are coded: what they are, by file name. A keyframe without one is not coded."""

    format: Literal["pulse-exponents/1"] = CODING_FORMAT
    shards: dict[str, ShardCoding]


class PieceHasher:
    """Hashes a file that comes in chunks of any size: as a whole, and piece by piece."""

    def __init__(self, piece_bytes: int) -> None:
        self._piece_bytes = piece_bytes
        self._whole, self._piece, self._left = blake3(), blake3(), piece_bytes
        self._done: list[str] = []

    def update(self, chunk: memoryview) -> None:
        """Take the next bytes."""
        self._whole.update(chunk)
        at = 0
        while at < len(chunk):
            part = chunk[at : at + self._left]
            self._piece.update(part)
            at, self._left = at + len(part), self._left - len(part)
            if not self._left:
                self._done.append(self._piece.hexdigest())
                self._piece, self._left = blake3(), self._piece_bytes

    def whole(self) -> str:
        """Return the hash of all bytes so far."""
        return self._whole.hexdigest()

    def pieces(self) -> tuple[str, ...]:
        """Return the hashes of all pieces, the last of which may be shorter."""
        open_ = self._left < self._piece_bytes
        return (*self._done, self._piece.hexdigest()) if open_ else tuple(self._done)


class _Pulse(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")
    pieces: Pieces | None = None
    coding: dict[str, Any] | None = None


class _Metadata(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")
    pulse: _Pulse = _Pulse()


class _Index(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")
    metadata: _Metadata = _Metadata()


def read_pieces(ref: KeyframeRef, index: bytes) -> tuple[Pieces | None, Coding | None]:
    """Return the pieces of a keyframe's shards, if its index lists them, and their coding, if they are coded.

    Args:
        ref: what the record says of the keyframe.
        index: bytes of the index, checked against it.

    Raises:
        CorruptObject: it is no index, or its pieces are not those of plain shards of these sizes.
        UnsupportedFormat: they have a coding that this release does not know.
    """
    try:
        pulse = _Index.model_validate_json(index).metadata.pulse
        coding = None if pulse.coding is None else _read_coding(ref, pulse.coding)
    except ValidationError as error:
        raise CorruptObject(f"{ref.index.key}: it is no keyframe's index: {faults(error)}") from None
    pieces = pulse.pieces
    if coding is not None and (pieces is None or pieces.size % 2):
        raise CorruptObject(f"{ref.index.key}: a coded keyframe has pieces, of an even number of bytes")
    if pieces is None or coding is not None:
        return pieces, coding
    for shard in ref.shards:
        name = shard.key.rpartition("/")[2]
        listed, expected = len(pieces.blake3.get(name, ())), -(-shard.size // pieces.size)
        if listed != expected:
            raise CorruptObject(f"{ref.index.key}: it lists {listed} pieces of {name}, which has {expected}")
    return pieces, None


def _read_coding(ref: KeyframeRef, document: dict[str, Any]) -> Coding:
    name = document.get("format")
    if name != CODING_FORMAT:
        raise UnsupportedFormat(
            f"{ref.index.key}: its shards are coded as {name!r}; this release reads {CODING_FORMAT!r}: upgrade"
        )
    return Coding.model_validate_json(json.dumps(document))
