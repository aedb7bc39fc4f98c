"""Ranks of cells within their classes, and back, as numba loops.

Both walk all cells of a group a stretch at a time and count its cells of each class. Only in the stretches that hold a
changed cell do they look at single ones: the count of a class before one is the counter, and the bits below it in the
mask of the class.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pulse_kernels.numba_spans import array_at
from pulse_kernels.simd import BLOCK, BLOCKS, count_classes, find_class, lowest, ones, reached

Array = Any
U64 = np.uint64
ZERO, ONE = U64(0), U64(1)
STRETCH = U64(BLOCKS * BLOCK)
NEVER = np.uint32(0xFFFFFFFF)
"""A rank that no cell has: a group has fewer."""


def _class_of(cell: Any, shift: Any, mask: Any, first: Any, last: Any) -> Any:
    return min(max(np.uint8((cell >> shift) & mask), first), last) - first


def _rank_span(
    cells: Array,
    index: Array,
    begin: int,
    offset: int,
    shift: int,
    mask: int,
    first: int,
    last: int,
    counters: Array,
    rank: Array,
    kind: Array,
) -> int:
    """Rank the cells of one span that ``index[begin:]`` names; return the first entry past the span."""
    n, size = begin, U64(len(cells))
    whole = size - size % STRETCH
    following = U64(index[n]) - U64(offset) if n < len(index) else size
    masks = np.empty(BLOCKS, np.uint64)
    i = ZERO
    while i < whole:
        count_classes(cells, i, shift, mask, first, last, counters)
        while following - i < STRETCH:
            c = np.uint8(_class_of(cells[following], shift, mask, first, last))
            find_class(cells, i, shift, mask, first, last, c, masks)
            own, bit = (following - i) // BLOCK, (following - i) % BLOCK
            not_before = np.uint32(ones(masks[own] >> bit))
            for b in range(own + ONE, BLOCKS):
                not_before += np.uint32(ones(masks[b]))
            rank[n] = counters[c] - not_before
            kind[n] = c
            n += 1
            following = U64(index[n]) - U64(offset) if n < len(index) else size
        i += STRETCH
    while i < size:
        c = np.uint8(_class_of(cells[i], shift, mask, first, last))
        if i == following:
            rank[n] = counters[c]
            kind[n] = c
            n += 1
            following = U64(index[n]) - U64(offset) if n < len(index) else size
        counters[c] += np.uint32(1)
        i += ONE
    return n


def class_ranks(
    at: Array,
    ends: Array,
    like: Array,
    index: Array,
    shift: int,
    mask: int,
    first: int,
    last: int,
    counters: Array,
    rank: Array,
    kind: Array,
) -> int:
    """Rank the cells of spans that ``index`` names; return how many of them there are."""
    n = 0
    for s in range(len(at)):
        cells = array_at(like, at[s], ends[s + 1] - ends[s])
        n = _rank_span(cells, index, n, ends[s], shift, mask, first, last, counters, rank, kind)
    return n


def _next_wanted(c: Any, wanted: Array, place: Array, ends: Array, ranks: Array) -> None:
    """Go on to the next rank of a class; NEVER after the last one, and where ranks do not increase."""
    place[c] += 1
    following = ranks[place[c]] if place[c] < ends[c] else NEVER
    wanted[c] = following if following > wanted[c] else NEVER


def _select_span(
    cells: Array,
    offset: int,
    shift: int,
    mask: int,
    first: int,
    last: int,
    counters: Array,
    wanted: Array,
    place: Array,
    ends: Array,
    ranks: Array,
    index: Array,
    source: Array,
    old: Array,
    begin: int,
) -> int:
    """Find the cells of one span whose rank in their class is wanted; return how many are found so far."""
    n, size = begin, U64(len(cells))
    whole = size - size % STRETCH
    masks = np.empty(BLOCKS, np.uint64)
    found = np.zeros(BLOCKS, np.uint64)
    origin = np.empty(BLOCKS * BLOCK, np.uint32)
    i = ZERO
    while i < whole:
        count_classes(cells, i, shift, mask, first, last, counters)
        hits = reached(wanted, counters)
        if hits != 0:
            while hits != 0:
                c = np.uint8(lowest(hits))
                hits &= hits - ONE
                find_class(cells, i, shift, mask, first, last, c, masks)
                seen = counters[c]
                for b in range(BLOCKS):
                    seen -= np.uint32(ones(masks[b]))
                for b in range(BLOCKS):
                    members = masks[b]
                    after = seen + np.uint32(ones(members))
                    while wanted[c] < after:
                        while seen < wanted[c]:
                            members &= members - ONE
                            seen += np.uint32(1)
                        k = lowest(members)
                        found[b] |= ONE << k
                        origin[BLOCK * U64(b) + k] = place[c]
                        _next_wanted(c, wanted, place, ends, ranks)
                    seen = after
            for b in range(BLOCKS):
                while found[b] != 0:
                    k = BLOCK * U64(b) + lowest(found[b])
                    found[b] &= found[b] - ONE
                    index[n] = U64(offset) + i + k
                    source[n] = origin[k]
                    old[n] = cells[i + k]
                    n += 1
        i += STRETCH
    while i < size:
        c = np.uint8(_class_of(cells[i], shift, mask, first, last))
        if counters[c] == wanted[c]:
            index[n] = U64(offset) + i
            source[n] = place[c]
            old[n] = cells[i]
            n += 1
            _next_wanted(c, wanted, place, ends, ranks)
        counters[c] += np.uint32(1)
        i += ONE
    return n


def class_select(
    at: Array,
    ends: Array,
    like: Array,
    shift: int,
    mask: int,
    first: int,
    last: int,
    counters: Array,
    wanted: Array,
    place: Array,
    member_ends: Array,
    ranks: Array,
    index: Array,
    source: Array,
    old: Array,
) -> int:
    """Find the cells of spans whose rank in their class is wanted; return how many there are."""
    n = 0
    for s in range(len(at)):
        cells = array_at(like, at[s], ends[s + 1] - ends[s])
        bounds = (shift, mask, first, last)
        n = _select_span(cells, ends[s], *bounds, counters, wanted, place, member_ends, ranks, index, source, old, n)
    return n
