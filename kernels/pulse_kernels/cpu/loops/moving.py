"""Numba loop that moves the cells of a group by coded changes while it decodes them.

Decoding keeps the processor busy and the memory idle; a walk through the changed cells does the opposite, as each is a
line of memory of its own. So the cells of two chunks are fetched while the next two are decoded, and found in the cache
when their turn comes. Nothing of what is decoded is written out.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pulse_kernels.cpu.loops import digest, rans
from pulse_kernels.format.rans import CHUNK

Array = Any
U32 = np.uint32
U64 = np.uint64
ZERO, ONE = U64(0), U64(1)
NO_ENDS = np.empty(0, np.int64)


def _add_up(gaps: Array, after: U64) -> U64:
    """Replace gaps by places, from ``after`` on; return what comes after the last."""
    for k in range(len(gaps)):
        after += U64(gaps[k]) + ONE
        gaps[k] = after - ONE
    return after


def _move(cells: Array, places: Array, steps: Array, top: Any, ones: Any, old: Array, new: Array) -> None:
    """Move the cells at some places; the loops are apart, as loads and stores that are mixed take much longer."""
    for k in range(U64(len(places))):
        old[k] = cells[places[k]]
    for k in range(U64(len(places))):
        a = U64(old[k])
        place = (a ^ (U64(ones) if a & U64(top) else U64(top))) + U64(steps[k])
        new[k] = place ^ (U64(top) if place & U64(top) else U64(ones))
    for k in range(U64(len(places))):
        cells[places[k]] = new[k]


def move_coded(
    words: Array,
    sizes: Array,
    parameters: Array,
    gap_places: Array,
    gap_slots: Array,
    value_places: Array,
    value_slots: Array,
    bits: int,
    changed: int,
    cells: Array,
    top: int,
    ones: int,
    start: int,
    limbs: int,
    seeds: Array,
    table_0: Array,
    table_1: Array,
    lanes: Array,
    places: Array,
    steps: Array,
    coded: Array,
    values: Array,
) -> int:
    """Move the cells by the changes of ``gap``; return OK or what is wrong, after which some are moved.

    The first arrays are those of ``rans.decode``, ``lanes`` those of ``digest_sparse``. The last are room for two
    chunks: rows of places and of steps, of which one is read while the other is filled; what is read; old and new
    cells.
    """
    k = begin = after = before = ZERO
    chunk = turn = 0
    while chunk < len(sizes):
        n = min(U64(changed) - k, U64(CHUNK))
        pair = U64(changed) - k >= U64(2 * CHUNK)
        size = n + n if pair else n
        middle = begin + U64(sizes[chunk])
        end = middle + U64(sizes[chunk + 1]) if pair else middle
        _, bad, ended = rans.take_pair(
            *(words, begin, middle, end, n, ZERO, size - n, ZERO, NO_ENDS, parameters, gap_places, gap_slots),
            *(value_places, value_slots, bits, places[turn], steps[turn], coded, cells, places[1 - turn, :before]),
        )
        if not ended:
            return rans.BAD_END
        _move(cells, places[1 - turn, :before], steps[1 - turn], top, ones, values[0], values[1])
        found = (places[1 - turn, :before], values[0], values[1])
        digest.digest_changes(*found, start, limbs, seeds, table_0, table_1, lanes)
        if bad | rans.read_out(coded[:size], bits, places[turn], steps[turn]):
            return rans.BAD_CHANGE
        after = _add_up(places[turn, :size], after)
        if after > U64(len(cells)):
            return rans.TOO_FAR
        begin, before = end, size
        k += size
        chunk += 2 if pair else 1
        turn = 1 - turn
    found = (places[1 - turn, :before], values[0], values[1])
    _move(cells, found[0], steps[1 - turn], top, ones, values[0], values[1])
    digest.digest_changes(*found, start, limbs, seeds, table_0, table_1, lanes)
    return rans.OK
