"""Reader of a coded shard: the offsets of its pieces, the size of the plain shard, and the decoding of each piece.

All sizes are known, and checked against the layout, before a byte of the shard is fetched or memory taken for it.
"""

from __future__ import annotations

from collections.abc import Sequence

from blake3 import blake3

from pulse_kernels import CodecError
from pulse_kernels.protocol import ExponentLoops
from pulse_registry.errors import CorruptObject
from pulse_registry.format.exponent_coding import Part, coded_header, parts_of
from pulse_registry.format.keyframe import Shard, shard_of
from pulse_registry.format.pieces import Coding, Pieces
from pulse_registry.store import ByteRange
from pulse_registry.weights.cell_space import Geometry
from pulse_schemas import KeyframeRef, ObjectRef


class CodedShard:
    """One shard of a coded keyframe.

    Attributes:
        ref: of the stored object.
        shard: the plain shard.
        parts: its pieces.
        nbytes: its size.
        hashes: BLAKE3 of the stored pieces.
    """

    def __init__(
        self,
        ref: ObjectRef,
        shard: Shard,
        parts: Sequence[Part],
        sizes: Sequence[int],
        hashes: Sequence[str],
        loops: ExponentLoops,
    ) -> None:
        """Take what the index says; raises CorruptObject where it does not fit the layout, the record or itself."""
        self.ref, self.shard, self.parts, self.hashes = ref, shard, parts, hashes
        self.nbytes = shard.nbytes
        self._loops, self._header = loops, coded_header(sum(sizes))
        if len(hashes) != len(parts) or len(sizes) != len(parts):
            raise CorruptObject(f"{ref.key}: {len(sizes)} sizes and {len(hashes)} hashes for {len(parts)} pieces")
        for number, (size, part) in enumerate(zip(sizes, parts, strict=True)):
            if not part.nbytes - (part.last - part.first) <= size <= part.most:
                raise CorruptObject(f"{ref.key}: {size} bytes can't be its piece {number}, of {part.nbytes}")
        if len(self._header) + sum(sizes) != ref.size:
            raise CorruptObject(f"{ref.key}: {ref.size} bytes were committed, which its pieces do not add up to")
        self._cuts = [0, len(self._header)]
        for size in sizes:
            self._cuts.append(self._cuts[-1] + size)
        del self._cuts[1]  # the header goes with the first piece

    def plain(self, number: int) -> ByteRange:
        """Return where a piece lies in the plain shard."""
        return self.parts[number].start, self.parts[number].stop

    def stored(self, number: int) -> ByteRange:
        """Return where a piece lies in the object; the first one begins with the header."""
        return self._cuts[number], self._cuts[number + 1]

    def check(self, number: int, data: memoryview) -> memoryview:
        """Return a fetched piece; raises CorruptObject unless it is the one that was committed."""
        if blake3(data).hexdigest() != self.hashes[number] or (number == 0 and not self._headed(data)):
            raise CorruptObject(f"{self.ref.key}: the BLAKE3 of piece {number} differs from the one committed")
        return data

    def decode(self, number: int, data: memoryview, plain: memoryview) -> None:
        """Write a checked piece's plain bytes.

        Raises:
            CorruptObject: what was committed breaks the format.
        """
        try:
            self.parts[number].decode(self._loops, data[len(self._header) if number == 0 else 0 :], plain)
        except CodecError as error:
            raise CorruptObject(f"{self.ref.key}: piece {number}: {error}") from error

    def holds(self, number: int, plain: memoryview) -> bool:
        """Tell whether plain bytes are those of a piece: coded again, they have its hash."""
        part = self.parts[number]
        hasher = blake3(self._header if number == 0 else b"")
        for buffer in part.encode(self._loops, plain, part.fit(self._loops, plain)):
            hasher.update(buffer)
        return hasher.hexdigest() == self.hashes[number]

    def _headed(self, data: memoryview) -> bool:
        return data[: len(self._header)] == self._header


def coded_shards(
    geometry: Geometry, ref: KeyframeRef, pieces: Pieces, coding: Coding, loops: ExponentLoops
) -> list[CodedShard]:
    """Return the shards of a coded keyframe, from its index.

    Raises:
        CorruptObject: it does not fit the layout or the record.
    """
    shards: list[CodedShard] = []
    first = 0
    for stored in ref.shards:
        name = stored.key.rpartition("/")[2]
        coded = coding.shards.get(name)
        last = first + (coded.tensors if coded is not None else 0)
        if coded is None or not first < last <= len(geometry.sizes):
            raise CorruptObject(f"{ref.index.key}: it does not say which tensors of the layout {name} holds")
        plain = shard_of(geometry, name, first, last)
        parts = parts_of(geometry, first, last, len(plain.header), pieces.size)
        shards.append(CodedShard(stored, plain, parts, coded.sizes, pieces.blake3.get(name, ()), loops))
        first = last
    if first != len(geometry.sizes):
        raise CorruptObject(f"{ref.index.key}: the keyframe holds {first} of {len(geometry.sizes)} tensors")
    return shards
