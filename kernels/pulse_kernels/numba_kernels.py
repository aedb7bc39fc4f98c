"""The loops of the numba backend: plain functions on arrays, compiled by ``numba_compile`` for each cell width.

They hold no Python objects, release the GIL and check nothing that their caller can check once an array. Where speed
counts, indices are unsigned or run from 0 over a slice: they need no wrap-around test, and the loop vectorizes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = Any
U64 = np.uint64
ZERO, ONE = U64(0), U64(1)
CHUNK = U64(64)
"""Cells that ``diff`` compares at a time."""


def diff(live: Array, base: Array, start: int, index: Array, old: Array, new: Array) -> tuple[Any, Any]:
    """Write the differences from cell ``start`` on; return (how many, first cell not compared: the buffer is full)."""
    size, room = U64(len(live)), U64(len(index)) - CHUNK
    whole = size - size % CHUNK
    n = ZERO
    i = U64(start)
    while i < whole and n <= room:
        seen = live[i] ^ base[i]
        for k in range(CHUNK):
            seen |= live[i + k] ^ base[i + k]
        if seen != 0:
            for k in range(CHUNK):
                if live[i + k] != base[i + k]:
                    index[n] = i + k
                    old[n] = base[i + k]
                    new[n] = live[i + k]
                    n += ONE
        i += CHUNK
    if i >= whole and n <= room:
        while i < size:
            if live[i] != base[i]:
                index[n] = i
                old[n] = base[i]
                new[n] = live[i]
                n += ONE
            i += ONE
    return n, i


def _bf16(v: Any) -> Any:
    """Round a float32 pattern to BF16: to nearest, ties to even; a NaN keeps sign and top payload, made quiet."""
    rounded = (v + np.uint32(0x7FFF) + ((v >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    quiet = (v >> np.uint32(16)) | np.uint32(0x40)
    is_nan = (v & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    return np.uint16(quiet) if is_nan else np.uint16(rounded)


def cast_f32(live: Array, out: Array) -> None:
    """Round float32 patterns to BF16."""
    for k in range(len(out)):
        out[k] = _bf16(live[k])


def diff_f32(live: Array, base: Array, start: int, index: Array, old: Array, new: Array) -> tuple[Any, Any]:
    """Write the differences of rounded float32 patterns from BF16 cells; otherwise as ``diff``."""
    size, room = U64(len(base)), U64(len(index)) - CHUNK
    whole = size - size % CHUNK
    n = ZERO
    i = U64(start)
    while i < whole and n <= room:
        seen = np.uint32(0)
        for k in range(CHUNK):
            # All in 32 bits, without a branch: a NaN (the second term) counts as seen, and is looked at below.
            v = live[i + k]
            rounded = (v + np.uint32(0x7FFF) + ((v >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
            nan = (np.uint32(0x7F800000) - (v & np.uint32(0x7FFFFFFF))) >> np.uint32(31)
            seen |= (rounded ^ np.uint32(base[i + k])) | nan
        if seen != 0:
            for k in range(CHUNK):
                value = _bf16(live[i + k])
                if value != base[i + k]:
                    index[n] = i + k
                    old[n] = base[i + k]
                    new[n] = value
                    n += ONE
        i += CHUNK
    if i >= whole and n <= room:
        while i < size:
            value = _bf16(live[i])
            if value != base[i]:
                index[n] = i
                old[n] = base[i]
                new[n] = value
                n += ONE
            i += ONE
    return n, i


def gather(cells: Array, index: Array, out: Array) -> None:
    """Store cells[index] in ``out``."""
    for k in range(len(index)):
        out[k] = cells[index[k]]


def scatter(cells: Array, index: Array, values: Array) -> None:
    """Store ``values`` at ``index``."""
    for k in range(len(index)):
        cells[index[k]] = values[k]


def distance(old: Array, new: Array, top: int, ones: int, out: Array) -> None:
    """Store order(new) - order(old); ``top`` is the sign bit (0 for integers), ``ones`` all bits (0 for integers)."""
    for k in range(len(out)):
        a, b = old[k], new[k]
        out[k] = (b ^ (ones if b & top else top)) - (a ^ (ones if a & top else top))


def move(old: Array, step: Array, top: int, ones: int, out: Array) -> None:
    """Store the pattern ``step`` after ``old`` in the order."""
    for k in range(len(out)):
        a = old[k]
        place = (a ^ (ones if a & top else top)) + step[k]
        out[k] = place ^ (top if place & top else ones)


def merge(index_a: Array, step_a: Array, index_b: Array, step_b: Array, index: Array, step: Array) -> int:
    """Merge two increasing lists; equal indices add up, zeros drop out. Returns the length."""
    i = j = n = 0
    while i < len(index_a) and j < len(index_b):
        a, b = index_a[i], index_b[j]
        if a < b:
            index[n], step[n] = a, step_a[i]
            i += 1
            n += 1
        elif b < a:
            index[n], step[n] = b, step_b[j]
            j += 1
            n += 1
        else:
            index[n], step[n] = a, step_a[i] + step_b[j]
            if step[n] != 0:
                n += 1
            i += 1
            j += 1
    while i < len(index_a):
        index[n], step[n] = index_a[i], step_a[i]
        i += 1
        n += 1
    while j < len(index_b):
        index[n], step[n] = index_b[j], step_b[j]
        j += 1
        n += 1
    return n


def union(index_a: Array, index_b: Array, index: Array) -> int:
    """Merge two increasing lists of indices, equal ones once. Returns the length."""
    i = j = n = 0
    while i < len(index_a) and j < len(index_b):
        a, b = index_a[i], index_b[j]
        index[n] = min(a, b)
        n += 1
        i += a <= b
        j += b <= a
    for k in range(i, len(index_a)):
        index[n] = index_a[k]
        n += 1
    for k in range(j, len(index_b)):
        index[n] = index_b[k]
        n += 1
    return n


def locate(among: Array, index: Array, place: Array) -> None:
    """Store where each of ``index`` stands in ``among``; both increase, and the first is contained in the second."""
    i = 0
    for k in range(len(index)):
        while i < len(among) and among[i] < index[k]:
            i += 1
        place[k] = i


def _mix(x: U64) -> U64:
    x = (x ^ (x >> U64(30))) * U64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> U64(27))) * U64(0x94D049BB133111EB)
    return x ^ (x >> U64(31))


def digest(cells: Array, start: int, limbs: int, seeds: Array, table_0: Array, table_1: Array, lanes: Array) -> None:
    """Add the sum of h over consecutive cells, the first at flat index ``start``, to the two lanes."""
    i = 0
    while i < len(cells):
        within = (start + i) & 1023
        block = U64((start + i) >> 10)
        part = cells[i : i + 1024 - within]
        row_0, row_1 = table_0[within : within + len(part)], table_1[within : within + len(part)]
        for limb in range(limbs):
            sum_0 = U64(0)
            sum_1 = U64(0)
            shift = U64(16 * limb)
            for k in range(len(part)):
                v = (U64(part[k]) >> shift) & U64(0xFFFF)
                sum_0 += v * U64(row_0[k])
                sum_1 += v * U64(row_1[k])
            step = (U64(4) * block + U64(limb) + ONE) * U64(0x9E3779B97F4A7C15)
            lanes[0] += sum_0 * (_mix(seeds[0] + step) | ONE)
            lanes[1] += sum_1 * (_mix(seeds[1] + step) | ONE)
        i += len(part)


def digest_sparse(
    index: Array,
    values: Array,
    start: int,
    limbs: int,
    seeds: Array,
    table_0: Array,
    table_1: Array,
    lanes: Array,
) -> None:
    """Add the sum of h over single cells to the two lanes; blocks are looked up once a run of cells in the same one."""
    current = U64(0)
    scale_0 = np.empty(4, dtype=np.uint64)
    scale_1 = np.empty(4, dtype=np.uint64)
    fresh = True
    for k in range(len(index)):
        flat = U64(start) + U64(index[k])
        block = flat >> U64(10)
        if fresh or block != current:
            current = block
            fresh = False
            for limb in range(limbs):
                step = (U64(4) * block + U64(limb) + ONE) * U64(0x9E3779B97F4A7C15)
                scale_0[limb] = _mix(seeds[0] + step) | ONE
                scale_1[limb] = _mix(seeds[1] + step) | ONE
        row = flat & U64(1023)
        for limb in range(limbs):
            v = (U64(values[k]) >> U64(16 * limb)) & U64(0xFFFF)
            lanes[0] += scale_0[limb] * v * U64(table_0[row])
            lanes[1] += scale_1[limb] * v * U64(table_1[row])


def class_ranks(
    cells: Array,
    index: Array,
    begin: int,
    offset: int,
    shift: int,
    mask: int,
    counters: Array,
    rank: Array,
    kind: Array,
) -> int:
    """Rank the cells of one span that ``index[begin:]`` names; return the first entry past the span."""
    n = begin
    following = int(index[n]) - offset if n < len(index) else len(cells)
    for i in range(len(cells)):
        c = np.uint8((cells[i] >> shift) & mask)
        if i == following:
            rank[n] = counters[c]
            kind[n] = c
            n += 1
            following = int(index[n]) - offset if n < len(index) else len(cells)
        counters[c] += np.uint32(1)
    return n


def class_select(
    cells: Array,
    offset: int,
    shift: int,
    mask: int,
    counters: Array,
    wanted: Array,
    place: Array,
    ends: Array,
    ranks: Array,
    index: Array,
    source: Array,
    begin: int,
) -> int:
    """Find the cells of one span whose rank in their class is wanted; return how many are found so far."""
    n = begin
    for i in range(len(cells)):
        c = np.uint8((cells[i] >> shift) & mask)
        seen = counters[c]
        if seen == wanted[c]:
            index[n] = offset + i
            source[n] = place[c]
            n += 1
            place[c] += 1
            wanted[c] = ranks[place[c]] if place[c] < ends[c] else np.uint32(0xFFFFFFFF)
        counters[c] = seen + np.uint32(1)
    return n
