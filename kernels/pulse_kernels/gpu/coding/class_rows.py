"""Classes of a tile's cells as bit planes: for each row of 64 cells, five times two words, a bit of each cell's class.

One thread has a row, from its loads to its words. So an operation on a word counts, compares or selects 32 cells; cell
by cell it takes as many. The bits of the exponents are turned by exchanges of ever smaller blocks (Warren, Hacker's
Delight, 2nd ed., section 7-3), and made class numbers plane by plane.
"""

from __future__ import annotations

from typing import Any

from pulse_kernels.gpu.cells import bits_set
from pulse_kernels.gpu.language import jit, tl

ROW = 64
"""Cells of a row: two words. Shorter rows make a tile's table of counts dear, longer ones take more registers."""


@jit
def exchange(a: tl.tensor, b: tl.tensor, DISTANCE: tl.constexpr, MASK: tl.constexpr) -> Any:
    """Return two words after their blocks of bits that MASK and DISTANCE tell have changed places."""
    moved = ((a >> DISTANCE) ^ b) & MASK
    return a ^ (moved << DISTANCE), b ^ moved


@jit
def halves(words: tl.tensor, ROWS: tl.constexpr, MANY: tl.constexpr) -> Any:
    """Return the even and the odd of MANY words of each row."""
    return tl.split(tl.reshape(words, (2, ROWS, MANY // 2, 2)))


@jit
def last_halves(words: tl.tensor, ROWS: tl.constexpr) -> Any:
    """Return the first and the second of two words of each row."""
    return tl.split(tl.reshape(words, (2, ROWS, 2)))


@jit
def exponent_words(
    start: tl.tensor,
    cells: tl.tensor,
    shift: tl.tensor,
    mask: tl.tensor,
    ROWS: tl.constexpr,
    CELL: tl.constexpr,
    WHOLE: tl.constexpr,
) -> Any:
    """Return the exponents of a tile's rows, uint32 [2, ROWS, 8]: byte i of word j of a half is of its cell 8 i + j.

    Not WHOLE: there may be fewer cells, anywhere; what lies past them is 0.
    """
    pointer = start.to(tl.pointer_type(CELL))
    if WHOLE:
        pointer = tl.multiple_of(pointer, 16)
    half, row = tl.arange(0, 2)[:, None, None], tl.arange(0, ROWS)[None, :, None]
    offset = row * 64 + half * 32 + tl.arange(0, 8)[None, None, :]
    words = tl.zeros((2, ROWS, 8), tl.uint32)
    for eighth in tl.static_range(4):
        if WHOLE:
            found = tl.load(pointer + offset + 8 * eighth)
        else:
            found = tl.load(pointer + offset + 8 * eighth, mask=offset + 8 * eighth < cells, other=0)
        words |= ((found >> shift) & mask).to(tl.uint32) << (8 * eighth)
    return words


@jit
def exponent_planes(
    start: tl.tensor,
    cells: tl.tensor,
    shift: tl.tensor,
    mask: tl.tensor,
    ROWS: tl.constexpr,
    CELL: tl.constexpr,
) -> Any:
    """Return the exponents of a tile's rows by bit, the lowest first: eight of uint32 [2, ROWS], a bit a cell."""
    # A whole, aligned tile is read 16 bytes at a time; a mask or an unknown alignment would make that cell by cell.
    if (cells == ROWS * 64) & (start % 16 == 0):
        words = exponent_words(start, cells, shift, mask, ROWS, CELL, True)
    else:
        words = exponent_words(start, cells, shift, mask, ROWS, CELL, False)
    # The three bits of j, of a word, and those of a place in a byte change their meaning.
    even, odd = halves(words, ROWS, 8)
    even, odd = exchange(even, odd, 1, 0x55555555)
    e04, e26 = halves(even, ROWS, 4)
    e15, e37 = halves(odd, ROWS, 4)
    e04, e26 = exchange(e04, e26, 2, 0x33333333)
    e15, e37 = exchange(e15, e37, 2, 0x33333333)
    e0, e4 = last_halves(e04, ROWS)
    e1, e5 = last_halves(e15, ROWS)
    e2, e6 = last_halves(e26, ROWS)
    e3, e7 = last_halves(e37, ROWS)
    e0, e4 = exchange(e0, e4, 4, 0x0F0F0F0F)
    e1, e5 = exchange(e1, e5, 4, 0x0F0F0F0F)
    e2, e6 = exchange(e2, e6, 4, 0x0F0F0F0F)
    e3, e7 = exchange(e3, e7, 4, 0x0F0F0F0F)
    return e0, e1, e2, e3, e4, e5, e6, e7


@jit
def spread(number: tl.tensor, BIT: tl.constexpr) -> Any:
    """Return a word of 32 copies of one bit of int32 numbers."""
    return (-((number >> BIT) & 1)).to(tl.uint32, bitcast=True)


@jit
def borrow(a: tl.tensor, b: tl.tensor, carried: tl.tensor) -> Any:
    """Return what a plane less another, less what was carried, borrows from the next."""
    return (~a & (b | carried)) | (b & carried)


@jit
def less(a: tl.tensor, b: tl.tensor, carried: tl.tensor) -> Any:
    """Return a plane of a difference, and what it borrows."""
    return a ^ b ^ carried, borrow(a, b, carried)


@jit
def within(plane: tl.tensor, most: tl.tensor, over: tl.tensor, under: tl.tensor) -> Any:
    """Return a plane of what is at least 0 and at most ``most``."""
    return ((plane & ~over) | (most & over)) & ~under


@jit
def class_planes(
    start: tl.tensor,
    cells: tl.tensor,
    own: tl.tensor,
    ROWS: tl.constexpr,
    CELL: tl.constexpr,
) -> Any:
    """Return the classes of a tile's rows by bit, and which cells there are: (five planes, known), uint32 [2, ROWS].

    Args:
        start: the tile's address.
        cells: how many it has.
        own: its group's row of ``Classing.table``.
        ROWS: rows of ROW cells.
        CELL: their type.
    """
    shift, mask, first, last = tl.load(own), tl.load(own + 1), tl.load(own + 2), tl.load(own + 3)
    e0, e1, e2, e3, e4, e5, e6, e7 = exponent_planes(start, cells, shift, mask, ROWS, CELL)
    # The exponent less the first class, but at least 0 and at most the last: subtractions, plane by plane.
    e0, under = less(e0, spread(first, 0), tl.zeros((2, ROWS), tl.uint32))
    e1, under = less(e1, spread(first, 1), under)
    e2, under = less(e2, spread(first, 2), under)
    e3, under = less(e3, spread(first, 3), under)
    e4, under = less(e4, spread(first, 4), under)
    e5, under = less(e5, spread(first, 5), under)
    e6, under = less(e6, spread(first, 6), under)
    e7, under = less(e7, spread(first, 7), under)
    most = last - first
    over = borrow(spread(most, 0), e0, tl.zeros((2, ROWS), tl.uint32))
    over = borrow(spread(most, 1), e1, over)
    over = borrow(spread(most, 2), e2, over)
    over = borrow(spread(most, 3), e3, over)
    over = borrow(spread(most, 4), e4, over) | e5 | e6 | e7
    p0, p1 = within(e0, spread(most, 0), over, under), within(e1, spread(most, 1), over, under)
    p2, p3 = within(e2, spread(most, 2), over, under), within(e3, spread(most, 3), over, under)
    left = cells - tl.arange(0, ROWS)[None, :] * 64 - tl.arange(0, 2)[:, None] * 32
    known = tl.where(left < 32, below(tl.maximum(left, 0)), 0xFFFFFFFF)
    return p0, p1, p2, p3, within(e4, spread(most, 4), over, under), known


@jit
def below(bit: tl.tensor) -> Any:
    """Return words whose bits below number ``bit`` mod 32 are set."""
    return (tl.full(bit.shape, 1, tl.uint32) << (bit & 31).to(tl.uint32)) - 1


@jit
def class_table(
    p0: tl.tensor,
    p1: tl.tensor,
    p2: tl.tensor,
    p3: tl.tensor,
    p4: tl.tensor,
    known: tl.tensor,
) -> Any:
    """Count the classes in each row: uint32 [16, ROWS], class c in the lower half of word c, c + 16 in the upper."""
    kind = tl.arange(0, 16)[:, None, None]
    some = known[None, :, :] & ~(p0[None, :, :] ^ spread(kind, 0)) & ~(p1[None, :, :] ^ spread(kind, 1))
    some = some & ~(p2[None, :, :] ^ spread(kind, 2)) & ~(p3[None, :, :] ^ spread(kind, 3))
    # Both, and 2**16 - 1 times the upper: a shift would hide from the compiler that bits are counted.
    return tl.sum(bits_set(some) + bits_set(some & p4[None, :, :]) * 0xFFFF, 1)


@jit
def count_in(words: tl.tensor, kind: tl.tensor) -> Any:
    """Return a class's count in the word that has it, int32."""
    return ((words >> (16 * (kind >> 4)).to(tl.uint32)) & 0xFFFF).to(tl.int32)


@jit
def planes_at(plane: tl.tensor, row: tl.tensor) -> Any:
    """Return a plane's words of other rows, uint32 [2, n]."""
    # In one dimension it goes through shared memory; in two Triton makes it shuffles, many times as many.
    ROWS: tl.constexpr = plane.shape[1]
    at = tl.arange(0, 2)[:, None] * ROWS + row[None, :]
    found = tl.gather(tl.reshape(plane, (2 * ROWS,)), tl.reshape(at, (2 * row.shape[0],)), 0)
    return tl.reshape(found, (2, row.shape[0]))


@jit
def of_class(kind: tl.tensor, p0: tl.tensor, p1: tl.tensor, p2: tl.tensor, p3: tl.tensor, p4: tl.tensor) -> Any:
    """Return which cells of rows are of their class, uint32 [2, n]; what lies past a tile's end counts as class 0."""
    differs = (p0 ^ spread(kind, 0)[None, :]) | (p1 ^ spread(kind, 1)[None, :]) | (p2 ^ spread(kind, 2)[None, :])
    return ~(differs | (p3 ^ spread(kind, 3)[None, :]) | (p4 ^ spread(kind, 4)[None, :]))


@jit
def half_of(words: tl.tensor, half: tl.tensor) -> Any:
    """Return one of the two words of each row."""
    return tl.sum(tl.where(tl.arange(0, 2)[:, None] == half[None, :], words, 0), 0)


@jit
def bit_of(words: tl.tensor, half: tl.tensor, bit: tl.tensor) -> Any:
    """Return one bit of each row, int32."""
    return ((half_of(words, half) >> bit.to(tl.uint32)) & 1).to(tl.int32)


@jit
def before_bit(half: tl.tensor, bit: tl.tensor) -> Any:
    """Return rows, uint32 [2, n], whose bits before one are set."""
    this = tl.arange(0, 2)[:, None]
    return tl.where(this < half[None, :], 0xFFFFFFFF, tl.where(this == half[None, :], below(bit)[None, :], 0))


@jit
def bit_at(words: tl.tensor, rank: tl.tensor) -> Any:
    """Return the place, int32, of set bit number ``rank`` (int32, from 0 on) of rows, uint32 [2, n].

    At most 63, whatever the rank.
    """
    first = half_of(bits_set(words), tl.zeros_like(rank)).to(tl.int32)
    second = rank >= first
    rank -= tl.where(second, first, 0)
    word, place = half_of(words, second.to(tl.int32)), tl.zeros_like(rank)
    for half in tl.static_range(5):
        low = bits_set((word >> place.to(tl.uint32)) & ((1 << (16 >> half)) - 1)).to(tl.int32)
        past = rank >= low
        rank -= tl.where(past, low, 0)
        place += tl.where(past, 16 >> half, 0)
    return place + tl.where(second, 32, 0)
