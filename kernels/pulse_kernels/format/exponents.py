"""Lossless coding of BF16 cells, for keyframes: sign and mantissa as they are, the exponent in about three bits.

Trained weights have few exponents: some 97 % of a tile's cells lie in a window of seven. A cell's code is its place in
the window, in k bits; the few outside have the code of all ones, and their exponents follow as bytes. That is 5 % over
the entropy of whole cells, and costs no more time than their hash, which an entropy coder does not (docs/adr/0008).

Cells are cut into *tiles* of 65,536, the last one shorter. A tile of n cells has 16 rows of L = ceil(n / 16) *lanes*;
its cell number r * L + l is in row r, lane l. Coded cells, little-endian, nothing before, between or after:

    8T   a head for each of the T tiles: k (u8, 0..7), first exponent b of the window (u8), zero (u16), escapes (u32)
    ..   planes: tile by tile, k of L words (u16): bit r of word l of plane j is bit j of the code of row r, lane l
    ..   marks: a byte a cell: the sign in the top bit, the mantissa below
    ..   escapes: tile by tile, by lane and then by row: the exponent (u8) of each cell whose code is 2^k - 1

The code of exponent e is min((e - b) mod 256, 2^k - 1); that of places without a cell is 0.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pulse_kernels.cells import Cells
from pulse_kernels.errors import CodecError
from pulse_kernels.protocol import ExponentLoops, Heads, Sections

TILE_CELLS = 1 << 16
ROWS = 16
MAX_PLANES = 7
"""With eight, all cells escaping would take no more."""
HEAD = np.dtype([("planes", "u1"), ("base", "u1"), ("zero", "<u2"), ("escapes", "<u4")])
SAMPLES = 2048
"""Of a tile, so many cells at even distances decide on its window; its escapes are counted over all."""


def coded_size(heads: Heads, cells: int) -> int:
    """Return the bytes that cells take with these heads."""
    words = int((heads["planes"].astype(np.int64) * lanes_of(cells)).sum())
    return heads.nbytes + 2 * words + cells + int(heads["escapes"].sum(dtype=np.int64))


def max_coded_size(cells: int) -> int:
    """Return the bytes that coded cells never exceed, whatever their heads."""
    lanes = int(lanes_of(cells).sum())
    return HEAD.itemsize * len(tile_cells(cells)) + 2 * MAX_PLANES * lanes + 2 * cells


def encode_cells(loops: ExponentLoops, cells: Cells, heads: Heads) -> bytearray:
    """Code cells with the heads that ``fit`` gave for them; the same cells give the same bytes.

    Raises:
        ValueError: they are other cells than those.
    """
    data = bytearray(coded_size(heads, len(cells)))
    data[: heads.nbytes] = heads.tobytes()
    if not loops.split(cells, heads, _sections(memoryview(data), heads, len(cells))):
        raise ValueError("the cells changed while they were coded")
    return data


def decode_cells(loops: ExponentLoops, data: bytes | bytearray | memoryview, out: Cells) -> None:
    """Invert ``encode_cells``. Nothing is allocated that the data's own size does not bound.

    Raises:
        CodecError: these are not the coded bytes of ``len(out)`` cells; ``out`` then holds nothing in particular.
    """
    sizes = tile_cells(len(out))
    if len(data) < HEAD.itemsize * len(sizes):
        raise CodecError(f"{len(data)} bytes are too few for the heads of {len(sizes)} tiles")
    heads = np.frombuffer(data, HEAD, len(sizes))
    if (heads["planes"] > MAX_PLANES).any() or heads["zero"].any() or (heads["escapes"] > sizes).any():
        raise CodecError("a tile's head breaks the format")
    if (size := coded_size(heads, len(out))) != len(data):
        raise CodecError(f"{len(data)} bytes, where the heads say {size}")
    if not loops.join(heads, _sections(memoryview(data), heads, len(out)), out):
        raise CodecError("the codes do not fit the escapes, or go on after the last cell")


def tile_cells(cells: int) -> npt.NDArray[np.int64]:
    """Return the number of cells of each tile."""
    starts = np.arange(0, cells, TILE_CELLS, dtype=np.int64)
    return np.minimum(cells - starts, TILE_CELLS)


def lanes_of(cells: int) -> npt.NDArray[np.int64]:
    """Return the lanes of each tile."""
    return -(-tile_cells(cells) // ROWS)


def _sections(data: memoryview, heads: Heads, cells: int) -> Sections:
    words = int((heads["planes"].astype(np.int64) * lanes_of(cells)).sum())
    marks = heads.nbytes + 2 * words
    return Sections(
        np.frombuffer(data, "<u2", words, heads.nbytes),
        np.frombuffer(data, np.uint8, cells, marks),
        np.frombuffer(data, np.uint8, len(data) - marks - cells, marks + cells),
    )
