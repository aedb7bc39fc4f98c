"""Numba loop that walks through the cells that coded changes name, while it decodes these.

A few changes at a time go through all steps, and stay in the cache from the one to the next.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pulse_kernels.cpu.loops import digest, lanes, rans
from pulse_kernels.cpu.loops.digest import AT_ONCE
from pulse_kernels.cpu.loops.spans import array_at, array_on_stack, borrowed
from pulse_kernels.format.rans import CHUNK

Array = Any
U32 = np.uint32
U64 = np.uint64
ZERO, ONE = U64(0), U64(1)


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
    no_ends: Array,
    rows: Array,
    gap_places: Array,
    gap_slots: Array,
    value_places: Array,
    value_slots: Array,
    entries: Array,
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
    sums: Array,
    steps: Array,
    symbols: Array,
    index: Array,
    old: Array,
    new: Array,
) -> int:
    """Find the changes of ``gap`` and, with ``write``, make them; return OK, or what is wrong once some are made.

    The first arrays are those of ``lanes.decode``, ``start`` to ``sums`` those of ``digest_sparse``; ``steps`` and
    ``symbols`` are room for BATCH changes. The last are the changed cells, and what they were and are: of all changes,
    or room for BATCH.
    """
    coded = borrowed((words, sizes, no_ends, rows, (gap_places, gap_slots, value_places, value_slots)))
    entries, h = borrowed(entries), borrowed((start, limbs, seeds, table_0, table_1, sums))
    at, ends, like = borrowed((at, ends, like))
    steps, symbols, index, old, new = borrowed((steps, symbols, index, old, new))
    where = array_on_stack(at, AT_ONCE)
    if len(sizes) >= lanes.LEAST:
        lanes.spread_tables(coded, entries)
    k = begin = after = span = chunk = ZERO
    while k < U64(changed):
        here = k if len(index) == changed else ZERO
        size = min(U64(changed) - k, U64(lanes.BATCH))
        out = index[here : here + size], steps, symbols
        count, begin, _, bad, ended = lanes.take_next(coded, entries, bits, chunk, begin, ZERO, ZERO, out)
        if not ended:
            return rans.BAD_END
        size = min(size, count * U64(CHUNK))
        for first in range(ZERO, size, U64(AT_ONCE)):
            end = min(first + U64(AT_ONCE), size)
            some, a, b = steps[first:end], here + first, here + end
            places, was, now, there = index[a:b], old[a:b], new[a:b], where[: end - first]
            if bad | rans.read_out(symbols[first:end], bits, places, some):
                return rans.BAD_CHANGE
            after = _add_up(places, after)
            if after > ends[U64(len(at))]:
                return rans.TOO_FAR
            span = _locate(places, at, ends, span, U64(bits // 8), there)
            _move(there, like, some, top, ones, write, was, now)
            digest.digest_changes(places, was, now, h)
        chunk += count
        k += size
    return rans.OK
