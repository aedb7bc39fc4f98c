"""The loops that split BF16 cells into planes, marks and escapes, and join them (see ``exponents``).

Lanes are what the processor's vectors run along, so each helper does one thing to a row, touches few arrays, and shifts
by constants: of nothing else does a compiler make vectors of 16-bit lanes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pulse_kernels.cpu.loops.simd import lowest, ones
from pulse_kernels.format.exponents import MAX_PLANES, ROWS, SAMPLES, TILE_CELLS

Array = Any
U8 = np.uint8
U16 = np.uint16
U64 = np.uint64
ONE, ALL = U16(1), U16(0xFFFF)
SIGN, MANTISSA, BYTE = U16(0x80), U16(0x7F), U16(0xFF)
TILE_LANES = TILE_CELLS // ROWS
AT_ONCE = 6
HIGHEST = U64(1 << 63)
PER_WORD = 4
"""Lanes of 16 bits in a word of 64, in which escapes are looked for."""


def _mark(row: Array, marks: Array) -> None:
    for lane in range(len(row)):
        marks[lane] = U8(U16(row[lane] & MANTISSA) | U16(U16(row[lane] >> U16(8)) & SIGN))


def _encode(row: Array, base: U16, top: U16, codes: Array) -> None:
    for lane in range(len(row)):
        codes[lane] = min(U16(U16(U16(row[lane] >> U16(7)) - base) & BYTE), top)


def _push(codes: Array, plane: Array) -> None:
    """Move the lowest bit of each code into its plane."""
    for lane in range(len(codes)):
        code = codes[lane]
        plane[lane] = U16(plane[lane] << ONE) | U16(code & ONE)
        codes[lane] = code >> ONE


def _pull(plane: Array, codes: Array) -> None:
    """Move the lowest bit of a plane into each code: the inverse of ``_push``, planes in falling order."""
    for lane in range(len(codes)):
        bits = plane[lane]
        codes[lane] = U16(codes[lane] << ONE) | U16(bits & ONE)
        plane[lane] = bits >> ONE


def _join(codes: Array, base: U16, marks: Array, row: Array) -> None:
    for lane in range(len(row)):
        mark = U16(marks[lane])
        exponent = U16(U16(codes[lane] + base) & BYTE)
        row[lane] = U16(U16(mark & SIGN) << U16(8)) | U16(mark & MANTISSA) | U16(exponent << U16(7))


def _push_three(row: Array, base: U16, first: Array, second: Array, third: Array) -> None:
    """Do what ``_encode`` and three times ``_push`` do, in one pass: nearly every tile has three planes."""
    for lane in range(len(row)):
        code = min(U16(U16(U16(row[lane] >> U16(7)) - base) & BYTE), U16(7))
        first[lane] = U16(first[lane] << ONE) | U16(code & ONE)
        second[lane] = U16(second[lane] << ONE) | U16(U16(code >> ONE) & ONE)
        third[lane] = U16(third[lane] << ONE) | U16(code >> U16(2))


def _pull_three(first: Array, second: Array, third: Array, base: U16, marks: Array, row: Array) -> None:
    """Do what three times ``_pull`` and ``_join`` do, in one pass."""
    for lane in range(len(row)):
        low, middle, high, mark = first[lane], second[lane], third[lane], U16(marks[lane])
        code = U16(low & ONE) | U16(U16(middle & ONE) << ONE) | U16(U16(high & ONE) << U16(2))
        first[lane], second[lane], third[lane] = low >> ONE, middle >> ONE, high >> ONE
        exponent = U16(U16(code + base) & BYTE)
        row[lane] = U16(U16(mark & SIGN) << U16(8)) | U16(mark & MANTISSA) | U16(exponent << U16(7))


def _meet(plane: Array, mask: Array) -> None:
    for lane in range(len(mask)):
        mask[lane] &= plane[lane]


def _outside(plane: Array, mask: Array) -> U16:
    """Return all bits of a plane that a mask does not have, in one word."""
    found = U16(0)
    for lane in range(len(mask)):
        found |= U16(plane[lane] & ~mask[lane])
    return found


def _count(row: Array, base: U16, top: U16, counts: Array) -> None:
    for lane in range(len(row)):
        counts[lane] += U16(U16(U16(U16(row[lane] >> U16(7)) - base) & BYTE) >= top)


def _places(mask: Array, lanes: int, size: int) -> None:
    """Set the bits of rows that have a cell; the rest of the mask, which is looked at too, is zero."""
    mask[:] = U16(0)
    if size == lanes * ROWS:
        mask[:lanes] = ALL
        return
    for lane in range(lanes):
        mask[lane] = U16((1 << ((size - lane + lanes - 1) // lanes)) - 1)


def _find(words: Array, lanes: int, places: Array) -> int:
    """Write the places of the cells that a mask's bits stand for, by lane and then by row; return their number.

    Some places are written for every word, whether it has so many or not: a branch for each bit would be guessed wrong
    once a word.
    """
    found = 0
    for number in range(len(words)):
        word = words[number]
        count = int(ones(word))
        for n in range(AT_ONCE):
            places[found + n] = _place(word, number, lanes)
            word &= word - U64(1)
        for n in range(AT_ONCE, count):
            places[found + n] = _place(word, number, lanes)
            word &= word - U64(1)
        found += count
    return found


def _place(word: U64, number: int, lanes: int) -> U64:
    bit: U64 = lowest(word | HIGHEST)
    return (bit & U64(15)) * U64(lanes) + U64(PER_WORD * number) + (bit >> U64(4))


def _window(tile: Array, counts: Array) -> tuple[int, int]:
    """Return (planes, base), as the reference's ``window`` does of the same sample."""
    counts[:] = 0
    step = max(1, len(tile) // SAMPLES)
    total = 0
    for at in range(0, len(tile), step):
        counts[(tile[at] >> U16(7)) & BYTE] += 1
        total += 1
    best, planes, base = 8 * total, 0, 0
    for k in range(1, MAX_PLANES + 1):
        width = (1 << k) - 1
        inside = 0
        for e in range(width):
            inside += counts[e]
        most, first = inside, 0
        for e in range(width, 256):
            inside += counts[e] - counts[e - width]
            if inside > most:
                most, first = inside, e - width + 1
        cost = k * total + 8 * (total - most)
        if cost < best:
            best, planes, base = cost, k, first
    return planes, base


def exponents_fit(cells: Array, planes: Array, bases: Array, escapes: Array) -> None:
    """Choose each tile's window, and count its escapes."""
    counts = np.empty(256, np.int64)
    lanes = np.empty(TILE_LANES, np.uint16)
    for number in range(len(planes)):
        tile = cells[number * TILE_CELLS : (number + 1) * TILE_CELLS]
        k, base = _window(tile, counts)
        lanes[:] = U16(0)
        for at in range(0, len(tile), TILE_LANES):
            _count(tile[at : at + TILE_LANES], U16(base), U16((1 << k) - 1), lanes)
        planes[number], bases[number], escapes[number] = k, base, lanes.sum()


def exponents_split(cells: Array, heads: Array, counts: Array, planes: Array, marks: Array, escapes: Array) -> bool:
    """Write planes, marks and escapes; False where a tile has another number of these than ``counts`` says."""
    codes = np.empty(TILE_LANES, np.uint16)
    mask = np.empty(TILE_LANES, np.uint16)
    words = mask.view(np.uint64)
    places = np.empty(TILE_CELLS + AT_ONCE, np.uint32)
    done = used = 0
    for number in range(len(counts)):
        at = number * TILE_CELLS
        tile, k, base = cells[at : at + TILE_CELLS], heads[8 * number], U16(heads[8 * number + 1])
        lanes = (len(tile) + ROWS - 1) // ROWS
        mine = planes[done : done + k * lanes]
        mine[:] = U16(0)
        _places(mask, lanes, len(tile))
        for row in range(ROWS - 1, -1, -1):
            cut = tile[row * lanes : (row + 1) * lanes]
            if k == 3 and len(cut) == lanes:
                _push_three(cut, base, mine[:lanes], mine[lanes : 2 * lanes], mine[2 * lanes :])
                continue
            codes[len(cut) : lanes] = U16(0)
            _encode(cut, base, U16((1 << k) - 1), codes)
            for j in range(k):
                _push(codes[:lanes], mine[j * lanes : (j + 1) * lanes])
        _mark(tile, marks[at : at + TILE_CELLS])
        for j in range(k):
            _meet(mine[j * lanes : (j + 1) * lanes], mask[:lanes])
        found = _find(words[: (lanes + PER_WORD - 1) // PER_WORD], lanes, places)
        if found != counts[number]:
            return False
        for n in range(found):
            escapes[used + n] = (tile[places[n]] >> U16(7)) & BYTE
        used += found
        done += k * lanes
    return True


def exponents_join(heads: Array, counts: Array, planes: Array, marks: Array, escapes: Array, cells: Array) -> bool:
    """Write cells; False where a tile has another number of escapes, or a code after its last cell."""
    codes = np.empty(TILE_LANES, np.uint16)
    mask = np.empty(TILE_LANES, np.uint16)
    work = np.empty(MAX_PLANES * TILE_LANES, np.uint16)
    words = mask.view(np.uint64)
    places = np.empty(TILE_CELLS + AT_ONCE, np.uint32)
    done = used = 0
    for number in range(len(counts)):
        at = number * TILE_CELLS
        tile, k, base = cells[at : at + TILE_CELLS], heads[8 * number], U16(heads[8 * number + 1])
        lanes = (len(tile) + ROWS - 1) // ROWS
        _places(mask, lanes, len(tile))
        if len(tile) < TILE_CELLS:
            for j in range(k):
                if _outside(planes[done + j * lanes : done + (j + 1) * lanes], mask[:lanes]):
                    return False
        for j in range(k):
            _meet(planes[done + j * lanes : done + (j + 1) * lanes], mask[:lanes])
        work[: k * lanes] = planes[done : done + k * lanes]
        for row in range(ROWS):
            cut = tile[row * lanes : (row + 1) * lanes]
            after = marks[at + row * lanes : at + TILE_CELLS]
            if k == 3:
                _pull_three(work[:lanes], work[lanes : 2 * lanes], work[2 * lanes : 3 * lanes], base, after, cut)
                continue
            codes[:lanes] = U16(0)
            for j in range(k - 1, -1, -1):
                _pull(work[j * lanes : (j + 1) * lanes], codes[:lanes])
            _join(codes, base, after, cut)
        found = _find(words[: (lanes + PER_WORD - 1) // PER_WORD], lanes, places)
        if found != counts[number]:
            return False
        for n in range(found):
            place = places[n]
            tile[place] = U16(tile[place] & U16(0x807F)) | U16(U16(escapes[used + n]) << U16(7))
        used += found
        done += k * lanes
    return True
