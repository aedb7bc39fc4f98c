"""The codec of the PULSE paper (arXiv 2602.03839), as it is described there, in plain NumPy and zstandard.

Changed cells in COO form: each tensor's indices as differences, in the narrowest unsigned integers that hold them, and
the new values as they are; zstd level 1. Of the readings that the description leaves open this is the smallest on
recorded steps: differences of the flat index (rows and columns apart: 5 % more) and one frame for all tensors' indices,
one for all values (a frame a tensor: 5 % more).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import zstandard

from benchmarks.peers.peer import ByTensor
from benchmarks.states import Cells

LEVEL = 1
_HEAD = struct.Struct("<IB")
"""A tensor's changed cells, and the bytes of one difference."""
Integers = npt.NDArray[Any]


class PaperCodec(ByTensor):
    """COO differences, absolute values, zstd-1. Its times are those of this rendering."""

    name = "PULSE paper"

    def encode(self, old: Sequence[Cells], new: Sequence[Cells]) -> list[bytes]:
        """Return two frames: indices and values."""

        def one(number: int) -> tuple[bytes, bytes]:
            index = np.flatnonzero(old[number] != new[number])
            steps = _narrow(np.diff(index, prepend=0))
            return _HEAD.pack(len(index), steps.itemsize) + steps.tobytes(), new[number][index].tobytes()

        parts = self._each(one, [len(cells) for cells in old])
        return list(self._pool.map(_compressed, (b"".join(kind) for kind in zip(*parts, strict=True))))

    def decode(self, frames: Sequence[bytes], cells: Sequence[Cells]) -> None:
        """Store the values."""
        indices, values = self._pool.map(_decompressed, frames)
        found = list(_split(indices, values, [cell.dtype for cell in cells]))

        def one(number: int) -> None:
            steps, new = found[number]
            cells[number][np.cumsum(steps, dtype=np.int64)] = new

        self._each(one, [len(cell) for cell in cells])


def _split(indices: bytes, values: bytes, dtypes: Sequence[np.dtype[Any]]) -> Iterator[tuple[Integers, Cells]]:
    at = value_at = 0
    for dtype in dtypes:
        changed, width = _HEAD.unpack_from(indices, at)
        at += _HEAD.size
        yield np.frombuffer(indices, f"<u{width}", changed, at), np.frombuffer(values, dtype, changed, value_at)
        at += width * changed
        value_at += dtype.itemsize * changed


def _narrow(values: Integers) -> Integers:
    top = int(values.max()) if len(values) else 0
    return values.astype(next(f"<u{width}" for width in (1, 2, 4, 8) if top < 1 << (8 * width)))


def _compressed(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=LEVEL).compress(data)


def _decompressed(frame: bytes) -> bytes:
    return zstandard.ZstdDecompressor().decompress(frame)
