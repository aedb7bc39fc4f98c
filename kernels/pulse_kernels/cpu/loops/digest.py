"""The sums of the state digest as numba loops: over all cells of a span, and over single ones."""

from __future__ import annotations

from typing import Any

import numpy as np

from pulse_kernels.cpu.loops.simd import STEP, add_products
from pulse_kernels.cpu.loops.spans import array_at, array_on_stack

Array = Any
U64 = np.uint64
ZERO, ONE = U64(0), U64(1)
AT_ONCE = 512
"""Changes whose multipliers are kept at a time: they stay in the cache."""


def _mix(x: U64) -> U64:
    x = (x ^ (x >> U64(30))) * U64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> U64(27))) * U64(0x94D049BB133111EB)
    return x ^ (x >> U64(31))


def _multipliers(block: U64, limb: int, seeds: Array) -> tuple[U64, U64]:
    """Return what both sums of a block of cells are multiplied with."""
    number = (U64(4) * block + U64(limb) + ONE) * U64(0x9E3779B97F4A7C15)
    return _mix(seeds[0] + number) | ONE, _mix(seeds[1] + number) | ONE


def _digest(cells: Array, start: Any, h: Any) -> None:
    """Add the sum of h over consecutive cells, the first at flat index ``start``, to the two lanes."""
    _, limbs, seeds, table_0, table_1, lanes = h
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
            scale_0, scale_1 = _multipliers(flat >> U64(10), limb, seeds)
            lanes[0] += sums[0] * scale_0
            lanes[1] += sums[1] * scale_1
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
        _digest(cells, start + np.int64(offset), (start, limbs, seeds, table_0, table_1, lanes))


def digest_changes(index: Array, old: Array, new: Array, h: Any) -> None:
    """Add the sums of h over single cells to the lanes: two for the old values, then two for the new ones.

    A multiplier is of 1,024 cells: of some changes at a time those of all blocks between them are computed, or, where
    that is more, one for each change. A vector at a time costs less than a branch that would keep the last block's.

    ``h`` is what ``digest_sparse`` gets after the changes: the flat index of the first cell, how many limbs a cell has,
    the seeds and both tables of h, and the lanes.
    """
    start, limbs, seeds, table_0, table_1, lanes = h
    scales_0, scales_1 = array_on_stack(lanes, AT_ONCE), array_on_stack(lanes, AT_ONCE)
    for begin in range(0, len(index), AT_ONCE):
        some, was, now = index[begin : begin + AT_ONCE], old[begin : begin + AT_ONCE], new[begin : begin + AT_ONCE]
        n, least, most = U64(len(some)), some[ZERO], some[ZERO]
        for k in range(n):
            least, most = min(least, some[k]), max(most, some[k])
        first = (U64(start) + U64(least)) >> U64(10)
        blocks = ((U64(start) + U64(most)) >> U64(10)) - first + ONE
        by_block = blocks < n
        for limb in range(limbs):
            shift = U64(16 * limb)
            if by_block:
                for k in range(blocks):
                    scales_0[k], scales_1[k] = _multipliers(first + k, limb, seeds)
            else:
                for k in range(n):
                    scales_0[k], scales_1[k] = _multipliers((U64(start) + U64(some[k])) >> U64(10), limb, seeds)
            old_0 = old_1 = new_0 = new_1 = ZERO
            for k in range(n):
                flat = U64(start) + U64(some[k])
                at, row = (flat >> U64(10)) - first if by_block else k, flat & U64(1023)
                scale_0, scale_1 = scales_0[at] * U64(table_0[row]), scales_1[at] * U64(table_1[row])
                a, b = (U64(was[k]) >> shift) & U64(0xFFFF), (U64(now[k]) >> shift) & U64(0xFFFF)
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
    """Add the sums of h over single cells: see ``digest_changes``."""
    digest_changes(index, old, new, (start, limbs, seeds, table_0, table_1, lanes))
