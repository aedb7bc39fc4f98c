"""Parts of kernels: reading a tile's cells, rounding to BF16, and the order of a dtype's bit patterns."""

from __future__ import annotations

from typing import Any

from pulse_kernels.gpu.language import jit, tl

UNSIGNED = {1: tl.uint8, 2: tl.uint16, 4: tl.uint32, 8: tl.uint64}
"""What kernels compute on, by bytes a cell."""


@jit
def load_tile(address: tl.tensor, count: tl.tensor, TILE: tl.constexpr, CELL: tl.constexpr) -> Any:
    """Return the TILE cells at ``address``, a tile of ``count`` of them; zeros follow."""
    offset = tl.arange(0, TILE)
    # A whole, aligned tile is read 16 bytes at a time; a mask or an unknown alignment would make that cell by cell.
    if (count == TILE) & (address % 16 == 0):
        pointer = tl.multiple_of(address.to(tl.pointer_type(CELL)), 16)
        cells = tl.load(pointer + offset)
    else:
        cells = tl.load(address.to(tl.pointer_type(CELL)) + offset, mask=offset < count, other=0)
    return cells


@jit
def round_bf16(bits: tl.tensor) -> Any:
    """Round float32 patterns (uint32) to BF16 (uint16): to nearest, ties to even; a NaN stays one and becomes quiet."""
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    is_nan = (bits & 0x7FFFFFFF) > 0x7F800000
    return tl.where(is_nan, (bits >> 16) | 0x40, rounded).to(tl.uint16)


@jit
def load_words(
    address: tl.tensor,
    count: tl.tensor,
    TILE: tl.constexpr,
    CELL: tl.constexpr,
    PER_WORD: tl.constexpr,
) -> Any:
    """Return a tile as uint64 words of PER_WORD cells, the first lowest; zeros follow its ``count`` cells."""
    word = tl.arange(0, TILE // PER_WORD)
    if (count == TILE) & (address % 8 == 0):
        found = tl.load(address.to(tl.pointer_type(tl.uint64)) + word)
    else:
        # Slot by slot, all in one dimension: the words then have one layout, and need no way through shared memory.
        found = tl.zeros([TILE // PER_WORD], tl.uint64)
        for slot in tl.static_range(PER_WORD):
            offset = word * PER_WORD + slot
            cells = tl.load(address.to(tl.pointer_type(CELL)) + offset, mask=offset < count, other=0)
            found |= cells.to(tl.uint64) << (slot * (64 // PER_WORD))
    return found


@jit
def load_rounded(address: tl.tensor, count: tl.tensor, TILE: tl.constexpr) -> Any:
    """Return a tile of float32 memory as words of four BF16 cells; otherwise as ``load_words``."""
    found = tl.zeros([TILE // 4], tl.uint64)
    for slot in tl.static_range(4):
        offset = tl.arange(0, TILE // 4) * 4 + slot
        wide = tl.load(address.to(tl.pointer_type(tl.uint32)) + offset, mask=offset < count, other=0)
        found |= round_bf16(wide).to(tl.uint64) << (slot * 16)
    return found


@jit
def order(cells: tl.tensor, is_float: tl.tensor) -> Any:
    """Return unsigned patterns' places in the order of their dtype: a bijection."""
    BITS: tl.constexpr = cells.dtype.primitive_bitwidth
    sign = (cells >> (BITS - 1)) != 0
    top = tl.full(cells.shape, 1 << (BITS - 1), cells.dtype)
    return tl.where(is_float != 0, tl.where(sign, ~cells, cells | top), cells)


@jit
def unorder(place: tl.tensor, is_float: tl.tensor) -> Any:
    """Invert ``order``."""
    BITS: tl.constexpr = place.dtype.primitive_bitwidth
    sign = (place >> (BITS - 1)) != 0
    top = tl.full(place.shape, 1 << (BITS - 1), place.dtype)
    return tl.where(is_float != 0, tl.where(sign, place ^ top, ~place), place)
