"""Parts of kernels: reading a tile's cells, rounding to BF16, and the order of a dtype's bit patterns."""

from __future__ import annotations

from typing import Any

from pulse_kernels.gpu.language import jit, tl

UNSIGNED = {1: tl.uint8, 2: tl.uint16, 4: tl.uint32, 8: tl.uint64}
"""What kernels compute on, by bytes a cell."""


@jit
def bits_set(words: tl.tensor) -> Any:
    """Return how many bits of uint32 words are set, uint32. Compilers know this form, and take one instruction."""
    pairs = words - ((words >> 1) & 0x55555555)
    fours = (pairs & 0x33333333) + ((pairs >> 2) & 0x33333333)
    return (((fours + (fours >> 4)) & 0x0F0F0F0F) * 0x01010101) >> 24


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
def load_word(
    address: tl.tensor,
    count: tl.tensor,
    word: tl.tensor,
    CELL: tl.constexpr,
    PER_WORD: tl.constexpr,
    ROUNDED: tl.constexpr,
) -> Any:
    """Return words of a tile, by number, as ``load_words`` or ``load_rounded`` has them, slot by slot."""
    pointer = address.to(tl.pointer_type(tl.uint32 if ROUNDED else CELL))
    found = tl.zeros(word.shape, tl.uint64)
    for slot in tl.static_range(PER_WORD):
        offset = word * PER_WORD + slot
        cells = tl.load(pointer + offset, mask=offset < count, other=0)
        if ROUNDED:
            cells = round_bf16(cells)
        found |= cells.to(tl.uint64) << (slot * (64 // PER_WORD))
    return found


@jit
def load_rounded_word(address: tl.tensor, word: tl.tensor) -> Any:
    """Return words of four cells, by number, of a whole tile of float32 memory at a multiple of 16 bytes."""
    slot = tl.arange(0, 4)[None, :]
    wide = tl.load(tl.multiple_of(address.to(tl.pointer_type(tl.uint32)), 16) + word[:, None] * 4 + slot)
    return tl.sum(round_bf16(wide).to(tl.uint64) << (slot * 16).to(tl.uint64), 1)


@jit
def load_pair(address: tl.tensor, row: tl.tensor, PAIR: tl.constexpr) -> Any:
    """Return words 2 * PAIR and 2 * PAIR + 1 of rows of eight, which lie at a multiple of 16 bytes."""
    pointer = tl.multiple_of(address.to(tl.pointer_type(tl.uint64)), 16)
    return tl.split(tl.load(pointer + row[:, None] * 8 + 2 * PAIR + tl.arange(0, 2)[None, :]))


@jit
def load_rows(
    address: tl.tensor,
    count: tl.tensor,
    ROWS: tl.constexpr,
    CELL: tl.constexpr,
    PER_WORD: tl.constexpr,
    ROUNDED: tl.constexpr,
) -> Any:
    """Return a tile as eight words of ROWS rows, each one's words end to end; as ``load_words`` or ``load_rounded``."""
    row = tl.arange(0, ROWS)
    if (count == ROWS * 8 * PER_WORD) & (address % 16 == 0):
        if ROUNDED:
            w0, w1 = load_rounded_word(address, row * 8), load_rounded_word(address, row * 8 + 1)
            w2, w3 = load_rounded_word(address, row * 8 + 2), load_rounded_word(address, row * 8 + 3)
            w4, w5 = load_rounded_word(address, row * 8 + 4), load_rounded_word(address, row * 8 + 5)
            w6, w7 = load_rounded_word(address, row * 8 + 6), load_rounded_word(address, row * 8 + 7)
        else:
            w0, w1 = load_pair(address, row, 0)
            w2, w3 = load_pair(address, row, 1)
            w4, w5 = load_pair(address, row, 2)
            w6, w7 = load_pair(address, row, 3)
    else:
        w0 = load_word(address, count, row * 8, CELL, PER_WORD, ROUNDED)
        w1 = load_word(address, count, row * 8 + 1, CELL, PER_WORD, ROUNDED)
        w2 = load_word(address, count, row * 8 + 2, CELL, PER_WORD, ROUNDED)
        w3 = load_word(address, count, row * 8 + 3, CELL, PER_WORD, ROUNDED)
        w4 = load_word(address, count, row * 8 + 4, CELL, PER_WORD, ROUNDED)
        w5 = load_word(address, count, row * 8 + 5, CELL, PER_WORD, ROUNDED)
        w6 = load_word(address, count, row * 8 + 6, CELL, PER_WORD, ROUNDED)
        w7 = load_word(address, count, row * 8 + 7, CELL, PER_WORD, ROUNDED)
    return w0, w1, w2, w3, w4, w5, w6, w7


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
