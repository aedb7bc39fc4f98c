"""Reader of a plain shard whose index lists its pieces: their offsets, and the check of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from blake3 import blake3

from pulse_kernels.protocol import ExponentLoops
from pulse_registry.errors import CorruptObject
from pulse_registry.format.coded_shard import CodedShard, coded_shards
from pulse_registry.format.pieces import Coding, Pieces
from pulse_registry.store import ByteRange
from pulse_registry.weights.cell_space import Geometry
from pulse_schemas import KeyframeRef, ObjectRef


class PlainShard:
    """One shard of a plain keyframe; a stored piece is the plain one.

    Attributes:
        ref: of the stored object.
        nbytes: size of the plain shard, which is the stored one's.
        hashes: BLAKE3 of the pieces.
    """

    def __init__(self, ref: ObjectRef, piece_bytes: int, hashes: Sequence[str]) -> None:
        """Take what the index says, of as many pieces as the size makes."""
        self.ref, self.nbytes, self.hashes = ref, ref.size, hashes
        self._piece_bytes = piece_bytes
        if not ref.size:
            raise CorruptObject(f"{ref.key}: a shard of 0 bytes was committed")

    def plain(self, number: int) -> ByteRange:
        """Return where a piece lies in the plain shard."""
        return number * self._piece_bytes, min((number + 1) * self._piece_bytes, self.nbytes)

    def stored(self, number: int) -> ByteRange:
        """Return where a piece lies in the object."""
        return self.plain(number)

    def check(self, number: int, data: memoryview) -> memoryview:
        """Return a fetched piece; raises CorruptObject unless it is the one that was committed."""
        if not self.holds(number, data):
            raise CorruptObject(f"{self.ref.key}: the BLAKE3 of piece {number} differs from the one committed")
        return data

    def holds(self, number: int, plain: memoryview) -> bool:
        """Tell whether bytes are those of a piece."""
        return blake3(plain).hexdigest() == self.hashes[number]


PiecedShard: TypeAlias = PlainShard | CodedShard
"""A shard whose pieces are fetched, checked and kept one by one."""


def pieced_shards(
    geometry: Geometry, ref: KeyframeRef, pieces: Pieces, coding: Coding | None, loops: ExponentLoops
) -> list[PiecedShard]:
    """Return the shards of a keyframe whose index lists pieces.

    Raises:
        CorruptObject: they do not fit the layout, where they are coded, or the record.
    """
    if coding is not None:
        return list(coded_shards(geometry, ref, pieces, coding, loops))
    return [PlainShard(shard, pieces.size, pieces.blake3[shard.key.rpartition("/")[2]]) for shard in ref.shards]
