"""Numba loop that walks through the cells that coded changes name, while it decodes these.

A few changes at a time go through all steps, and stay in the cache from the one to the next.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pulse_kernels.cpu.loops import digest, lanes, rans
from pulse_kernels.cpu.loops.digest import AT_ONCE
from pulse_kernels.cpu.loops.frequencies import SLOTS, SYMBOLS
from pulse_kernels.cpu.loops.spans import array_at, array_on_stack, borrowed
from pulse_kernels.format.group_bytes import CONTEXTS
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
    places: Array,
    slots: Array,
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
    coded: Array,
    index: Array,
    old: Array,
    new: Array,
) -> int:
    """Find the changes of ``gap`` and, with ``write``, make them; return OK, or what is wrong once some are made.

    The first arrays are those of ``lanes.decode``, its tables of gaps and then of values in one, ``sums`` those of
    ``digest_sparse``; ``steps`` and ``coded`` are room for BATCH changes. The last are the changed cells, and what they
    were and are: of all changes, or room for BATCH.
    """
    words, sizes, no_ends, rows = borrowed(words), borrowed(sizes), borrowed(no_ends), borrowed(rows)
    places, slots = borrowed(places), borrowed(slots)
    entries, at, ends, like, seeds = borrowed(entries), borrowed(at), borrowed(ends), borrowed(like), borrowed(seeds)
    table_0, table_1, sums, steps = borrowed(table_0), borrowed(table_1), borrowed(sums), borrowed(steps)
    coded, index, old, new = borrowed(coded), borrowed(index), borrowed(old), borrowed(new)
    where = array_on_stack(sums, AT_ONCE)
    tables = places, slots, places[CONTEXTS * SYMBOLS :], slots[CONTEXTS * SLOTS :]
    if len(sizes) >= lanes.LEAST:
        lanes.spread_tables(no_ends, rows, tables, entries)
    k = begin = after = span = chunk = ZERO
    while k < U64(changed):
        room = k if len(index) == changed else ZERO
        size = min(U64(changed) - k, U64(lanes.BATCH))
        count, begin, _, bad, ended = lanes.take_next(
            *(words, sizes, chunk, begin, ZERO, ZERO, no_ends, rows, tables, entries, bits),
            (index[room : room + size], steps, coded),
        )
        if not ended:
            return rans.BAD_END
        size = min(size, count * U64(CHUNK))
        for first in range(ZERO, size, U64(AT_ONCE)):
            end = min(first + U64(AT_ONCE), size)
            some, a, b = steps[first:end], room + first, room + end
            found, was, now, there = index[a:b], old[a:b], new[a:b], where[: end - first]
            if bad | rans.read_out(coded[first:end], bits, found, some):
                return rans.BAD_CHANGE
            after = _add_up(found, after)
            if after > ends[U64(len(at))]:
                return rans.TOO_FAR
            span = _locate(found, at, ends, span, U64(bits // 8), there)
            _move(there, like, some, top, ones, write, was, now)
            digest.digest_changes(found, was, now, start, limbs, seeds, table_0, table_1, sums)
        chunk += count
        k += size
    return rans.OK
