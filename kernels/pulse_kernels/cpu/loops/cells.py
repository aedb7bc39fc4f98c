"""The loops of the numba backend: plain functions on arrays, compiled by ``cpu.compile`` for each cell width.

They hold no Python objects, release the GIL and check nothing that their caller can check once an array. Where speed
counts, indices are unsigned or run from 0 over a slice: they need no wrap-around test, and the loop vectorizes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pulse_kernels.cpu.loops.simd import cell, differing, fetch_ahead, lowest
from pulse_kernels.cpu.loops.spans import array_at

Array = Any
U64 = np.uint64
ZERO, ONE = U64(0), U64(1)
CHUNK = U64(64)
"""Cells that ``diff`` compares at a time."""
SPANS_AHEAD = U64(8)
"""Of small tensors, the one whose first cells are fetched: they lie wherever the model's author put them."""


def _diff(
    live: Array, base: Array, begin: Any, offset: Any, found: Any, keep: bool, index: Array, old: Array, new: Array
) -> tuple[Any, Any]:
    """Write the differences of one span; return (how many in all, first cell not compared: the buffer is full)."""
    size, room = U64(len(base)), U64(len(index)) - CHUNK
    whole = size - size % CHUNK
    n, i = found, begin
    while i < whole and n <= room:
        mask = differing(live, base, i)
        while mask != 0:
            k = i + lowest(mask)
            mask &= mask - ONE
            value, before = cell(live, base, k), base[k]
            index[n] = offset + k
            old[n] = before
            new[n] = value
            if keep:
                base[k] = value
            n += U64(value != before)  # somebody may have changed it back since it was compared
        i += CHUNK
    if i >= whole and n <= room:
        while i < size:
            value = cell(live, base, i)
            if value != base[i]:
                index[n] = offset + i
                old[n] = base[i]
                new[n] = value
                if keep:
                    base[i] = value
                n += ONE
            i += ONE
    return n, i


def diff(
    live_at: Array,
    rounded: Array,
    base_at: Array,
    ends: Array,
    live_like: Array,
    base_like: Array,
    span: int,
    begin: int,
    keep: bool,
    index: Array,
    old: Array,
    new: Array,
) -> tuple[Any, Any, Any]:
    """Write the differences from cell ``begin`` of a span on; return (how many, span, first cell not compared).

    Stops at the end of the last span, or when the buffer is full. Spans that are ``rounded`` are float32 patterns over
    a base of BF16: they count as what they round to. With ``keep``, the base is made equal to the live cells.
    """
    n, s, i = ZERO, U64(span), U64(begin)
    while s < U64(len(base_at)):
        if s + SPANS_AHEAD < U64(len(base_at)):
            fetch_ahead(array_at(base_like, live_at[s + SPANS_AHEAD], ONE), ZERO)
        offset = ends[s]
        size = ends[s + ONE] - offset
        base = array_at(base_like, base_at[s], size)
        if rounded[s]:
            n, i = _diff(array_at(live_like, live_at[s], size), base, i, offset, n, keep, index, old, new)
        else:
            n, i = _diff(array_at(base_like, live_at[s], size), base, i, offset, n, keep, index, old, new)
        if i < size:
            break
        s += ONE
        i = ZERO
    return n, s, i


def cast_f32(live: Array, out: Array) -> None:
    """Round float32 patterns to BF16."""
    for k in range(U64(len(out))):
        out[k] = cell(live, out, k)


def gather(at: Array, ends: Array, like: Array, index: Array, out: Array) -> bool:
    """Store the cells at ``index`` in ``out``; return False where an index is past the end, or not in order."""
    # Nothing is fetched ahead: the processor has dozens of these loads on their way at once, if a turn is short.
    k, n = ZERO, U64(len(index))
    for s in range(U64(len(at))):
        offset, size = ends[s], ends[s + ONE] - ends[s]
        cells = array_at(like, at[s], size)
        while k < n:
            i = U64(index[k]) - offset
            if i >= size:
                break
            out[k] = cells[i]
            k += ONE
    return bool(k == n)


def scatter(at: Array, ends: Array, like: Array, index: Array, values: Array) -> bool:
    """Store ``values`` at ``index``; return False, with nothing stored, where an index is past the end.

    Also where indices are not in order, which is found only on the way.
    """
    top = np.uint32(0)
    for k in range(len(index)):
        top = max(top, index[k])
    if len(index) and top >= ends[len(at)]:
        return False
    n, stored = U64(len(index)), ZERO
    for s in range(U64(len(at))):
        offset, size = ends[s], ends[s + ONE] - ends[s]
        cells = array_at(like, at[s], size)
        while stored < n:
            i = U64(index[stored]) - offset
            if i >= size:
                break
            cells[i] = values[stored]
            stored += ONE
    return bool(stored == n)


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
