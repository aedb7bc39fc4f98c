"""Numba loop that walks through the cells that coded changes name, while it decodes these.

Decoding keeps the processor busy and the memory idle; a walk through the changed cells does the opposite, as each is a
line of memory of its own. So the cells of two chunks are fetched while the next two are decoded, and found in the cache
when their turn comes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pulse_kernels.cpu.loops import digest, rans
from pulse_kernels.cpu.loops.frequencies import SLOTS, SYMBOLS
from pulse_kernels.cpu.loops.spans import array_at
from pulse_kernels.format.group_bytes import CONTEXTS
from pulse_kernels.format.rans import CHUNK

Array = Any
U32 = np.uint32
U64 = np.uint64
ZERO, ONE = U64(0), U64(1)
PAIR = 2 * CHUNK
"""Changes that are decoded at a time."""
ROOM = 2 * PAIR
"""Changes that there is room for where what is found is not kept: one pair is walked through, the next is decoded."""
NO_ENDS, NO_PARAMETERS = np.empty(0, np.int64), np.empty(0, np.uint8)


def _add_up(gaps: Array, after: U64) -> U64:
    """Replace gaps by places, from ``after`` on; return what comes after the last."""
    for k in range(len(gaps)):
        after += U64(gaps[k]) + ONE
        gaps[k] = after - ONE
    return after


def _locate(places: Array, at: Array, ends: Array, span: U64, width: U64, where: Array) -> U64:
    """Write the addresses of the cells at some places, the first in ``span`` or later; return the last one's span."""
    k, n = ZERO, U64(len(places))
    while k < n:
        while U64(places[k]) >= ends[span + ONE]:
            span += ONE
        zero, end = at[span] - ends[span] * width, ends[span + ONE]
        while k < n and U64(places[k]) < end:
            where[k] = zero + U64(places[k]) * width
            k += ONE
    return span


def _move(where: Array, like: Array, steps: Array, top: Any, ones: Any, write: bool, old: Array, new: Array) -> None:
    """Move the cells at some addresses; the loops are apart, as loads and stores that are mixed take much longer."""
    for k in range(U64(len(where))):
        old[k] = array_at(like, where[k], ONE)[ZERO]
    for k in range(U64(len(where))):
        a = U64(old[k])
        place = (a ^ (U64(ones) if a & U64(top) else U64(top))) + U64(steps[k])
        new[k] = place ^ (U64(top) if place & U64(top) else U64(ones))
    if write:
        for k in range(U64(len(where))):
            array_at(like, where[k], ONE)[ZERO] = new[k]


def walk_coded(
    words: Array,
    sizes: Array,
    places: Array,
    slots: Array,
    bits: int,
    changed: int,
    at: Array,
    ends: Array,
    like: Array,
    write: bool,
    top: int,
    ones: int,
    start: int,
    limbs: int,
    seeds: Array,
    table_0: Array,
    table_1: Array,
    lanes: Array,
    steps: Array,
    coded: Array,
    where: Array,
    index: Array,
    old: Array,
    new: Array,
) -> int:
    """Find the changes of ``gap`` and, with ``write``, make them; return OK, or what is wrong once some are made.

    The first arrays are those of ``rans.decode``, its tables of gaps and then of values in one, ``lanes`` those of
    ``digest_sparse``. ``steps``, two rows, ``coded`` and ``where`` are room for a pair of chunks. The last are the
    changed cells, and what they were and are: of all changes, or room for ROOM, in which those of two pairs take turns.
    """
    k = begin = after = span = before = ZERO
    chunk = turn = 0
    room, width = U64(len(index)), U64(bits // 8)
    value_places, value_slots = places[CONTEXTS * SYMBOLS :], slots[CONTEXTS * SLOTS :]
    while True:
        first = (k - before) % room
        found, was, now = index[first : first + before], old[first : first + before], new[first : first + before]
        left = U64(changed) - k
        n = min(left, U64(CHUNK))
        pair = left >= U64(PAIR)
        size = n + n if pair else n
        gaps = index[k % room : k % room + size]
        if size != ZERO:
            middle = begin + U64(sizes[chunk])
            end = middle + U64(sizes[chunk + 1]) if pair else middle
            _, bad, ended = rans.take_pair(
                *(words, begin, middle, end, n, ZERO, size - n, ZERO, NO_ENDS, NO_PARAMETERS, places, slots),
                *(value_places, value_slots, bits, gaps, steps[turn], coded, like, where[:before]),
            )
            if not ended:
                return rans.BAD_END
            if bad | rans.read_out(coded[:size], bits, gaps, steps[turn]):
                return rans.BAD_CHANGE
            after = _add_up(gaps, after)
            if after > ends[U64(len(at))]:
                return rans.TOO_FAR
            begin = end
        _move(where[:before], like, steps[1 - turn], top, ones, write, was, now)
        digest.digest_changes(found, was, now, start, limbs, seeds, table_0, table_1, lanes)
        if size == ZERO:
            return rans.OK
        span = _locate(gaps, at, ends, span, width, where)
        before = size
        k += size
        chunk += 2 if pair else 1
        turn = 1 - turn
