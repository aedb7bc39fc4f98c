"""The sums of the state digest as numba loops: over all cells of a span, and over single ones."""

from __future__ import annotations

from typing import Any

import numpy as np

from pulse_kernels.cpu.loops.simd import STEP, add_products
from pulse_kernels.cpu.loops.spans import array_at

Array = Any
U64 = np.uint64
ZERO, ONE = U64(0), U64(1)


def _mix(x: U64) -> U64:
    x = (x ^ (x >> U64(30))) * U64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> U64(27))) * U64(0x94D049BB133111EB)
    return x ^ (x >> U64(31))


def _digest(cells: Array, start: Any, limbs: int, seeds: Array, table_0: Array, table_1: Array, lanes: Array) -> None:
    """Add the sum of h over consecutive cells, the first at flat index ``start``, to the two lanes."""
    sums = np.empty(2, np.uint64)
    i, size = ZERO, U64(len(cells))
    while i < size:
        flat = U64(start) + i
        row = flat & U64(1023)
        length = min(U64(1024) - row, size - i)
        whole = length - length % U64(STEP)
        for limb in range(limbs):
            shift = 16 * limb
            sums[0] = sums[1] = ZERO
            add_products(cells, i, whole // U64(STEP), shift, table_0, table_1, row, sums)
            for k in range(whole, length):
                v = (U64(cells[i + k]) >> U64(shift)) & U64(0xFFFF)
                sums[0] += v * U64(table_0[row + k])
                sums[1] += v * U64(table_1[row + k])
            number = (U64(4) * (flat >> U64(10)) + U64(limb) + ONE) * U64(0x9E3779B97F4A7C15)
            lanes[0] += sums[0] * (_mix(seeds[0] + number) | ONE)
            lanes[1] += sums[1] * (_mix(seeds[1] + number) | ONE)
        i += length


def digest(
    at: Array,
    ends: Array,
    like: Array,
    start: int,
    limbs: int,
    seeds: Array,
    table_0: Array,
    table_1: Array,
    lanes: Array,
) -> None:
    """Add the sum of h over the cells of spans to the two lanes."""
    for s in range(len(at)):
        offset = ends[s]
        cells = array_at(like, at[s], ends[s + 1] - offset)
        _digest(cells, start + np.int64(offset), limbs, seeds, table_0, table_1, lanes)


def digest_changes(
    index: Array,
    old: Array,
    new: Array,
    start: Any,
    limbs: int,
    seeds: Array,
    table_0: Array,
    table_1: Array,
    lanes: Array,
) -> None:
    """Add the sums of h over single cells to the lanes: two for the old values, then two for the new ones.

    The multiplier is computed for each cell: a vector at a time costs less than the branch that would keep the last
    block's.
    """
    seed_0, seed_1 = seeds[0], seeds[1]
    for limb in range(limbs):
        shift = U64(16 * limb)
        old_0 = old_1 = new_0 = new_1 = ZERO
        for k in range(len(index)):
            flat = U64(start) + U64(index[k])
            row = flat & U64(1023)
            number = (U64(4) * (flat >> U64(10)) + U64(limb) + ONE) * U64(0x9E3779B97F4A7C15)
            scale_0 = (_mix(seed_0 + number) | ONE) * U64(table_0[row])
            scale_1 = (_mix(seed_1 + number) | ONE) * U64(table_1[row])
            a = (U64(old[k]) >> shift) & U64(0xFFFF)
            b = (U64(new[k]) >> shift) & U64(0xFFFF)
            old_0 += scale_0 * a
            old_1 += scale_1 * a
            new_0 += scale_0 * b
            new_1 += scale_1 * b
        lanes[0] += old_0
        lanes[1] += old_1
        lanes[2] += new_0
        lanes[3] += new_1


def digest_sparse(
    index: Array,
    old: Array,
    new: Array,
    start: int,
    limbs: int,
    seeds: Array,
    table_0: Array,
    table_1: Array,
    lanes: Array,
) -> None:
    """Add the sums of h over single cells to the lanes: two for the old values, then two for the new ones."""
    digest_changes(index, old, new, start, limbs, seeds, table_0, table_1, lanes)
