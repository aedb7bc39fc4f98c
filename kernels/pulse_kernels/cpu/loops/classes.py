"""Ranks of cells within their classes, and back, as numba loops.

Both walk all cells of a group a stretch at a time and count its cells of each class. Only in the stretches that hold a
changed cell do they look at single ones: the count of a class before one is the counter, and the bits below it in the
mask of the class.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pulse_kernels.cpu.loops.simd import (
    BLOCK,
    BLOCKS,
    COUNTERS,
    count_classes,
    deposit,
    fetch_ahead,
    find_class,
    lowest,
    ones,
)
from pulse_kernels.cpu.loops.spans import array_at

Array = Any
U64 = np.uint64
ZERO, ONE = U64(0), U64(1)
STRETCH = U64(BLOCKS * BLOCK)
AHEAD = U64(4) * STRETCH
"""Cells from one that is looked at to one that is fetched, in the next page: the processor stops at the end of one."""
LINE = U64(64)
"""Bytes that are fetched at a time."""
NEVER = U64(0xFFFFFFFF)
"""A rank that no cell has: a group has fewer."""


def _class_of(cell: Any, shift: Any, mask: Any, first: Any, last: Any) -> Any:
    return min(max(np.uint8((cell >> shift) & mask), first), last) - first


def _put_back(
    index: Array,
    old: Array,
    n: Any,
    begin: Any,
    shift: int,
    mask: int,
    first: int,
    last: int,
    kinds: Array,
    counters: Array,
) -> None:
    """Let the cells of a stretch that ``index[n:]`` names count as the old ones: few of them are of another class."""
    while n < U64(len(index)) and U64(index[n]) - begin < STRETCH:
        k, c = U64(index[n]) - begin, np.uint8(_class_of(old[n], shift, mask, first, last))
        if c != kinds[k]:
            counters[kinds[k]] -= np.uint32(1)
            counters[c] += np.uint32(1)
            kinds[k] = c
        n += ONE


def _rank_span(
    cells: Array,
    index: Array,
    old: Array,
    begin: int,
    offset: int,
    shift: int,
    mask: int,
    first: int,
    last: int,
    counters: Array,
    rank: Array,
    kind: Array,
) -> Any:
    """Rank the old cells of one span that ``index[begin:]`` names; return the first entry past the span."""
    n, named, size = U64(begin), U64(len(index)), U64(len(cells))
    whole = size - size % STRETCH
    following = U64(index[n]) - U64(offset) if n < named else size
    masks, kinds = np.empty((COUNTERS, BLOCKS), np.uint64), np.empty(BLOCKS * BLOCK, np.uint8)
    before = np.empty((COUNTERS, BLOCKS), np.uint32)
    i = ZERO
    while i < whole:
        count_classes(cells, i, shift, mask, first, last, counters, counters, kinds)
        _put_back(index, old, n, U64(offset) + i, shift, mask, first, last, kinds, counters)
        known = ZERO
        while following - i < STRETCH:
            c: Any = U64(kinds[following - i])
            if (known >> c) & ONE == ZERO:
                known |= ONE << c
                find_class(kinds, np.uint8(c), masks[c])
                count = counters[c]
                for b in range(BLOCKS):
                    count -= np.uint32(ones(masks[c, BLOCKS - 1 - b]))
                    before[c, BLOCKS - 1 - b] = count
            own, bit = (following - i) // U64(BLOCK), (following - i) % U64(BLOCK)
            rank[n] = before[c, own] + np.uint32(ones(masks[c, own] & ((ONE << bit) - ONE)))
            kind[n] = c
            n += ONE
            following = U64(index[n]) - U64(offset) if n < named else size
        i += STRETCH
    while i < size:
        c = np.uint8(_class_of(old[n] if i == following else cells[i], shift, mask, first, last))
        if i == following:
            rank[n] = counters[c]
            kind[n] = c
            n += ONE
            following = U64(index[n]) - U64(offset) if n < named else size
        counters[c] += np.uint32(1)
        i += ONE
    return np.int64(n)


def class_ranks(
    at: Array,
    ends: Array,
    like: Array,
    index: Array,
    old: Array,
    shift: int,
    mask: int,
    first: int,
    last: int,
    counters: Array,
    rank: Array,
    kind: Array,
) -> Any:
    """Rank the cells of spans that ``index`` names, as they were; return how many of them there are."""
    n: Any = np.int64(0)  # not a literal, for which the helper would be compiled again
    for s in range(U64(len(at))):
        cells = array_at(like, at[s], ends[s + ONE] - ends[s])
        n = _rank_span(cells, index, old, n, ends[s], shift, mask, first, last, counters, rank, kind)
    return n


def _following(rank: Any, at: Any, end: Any, ranks: Array) -> Any:
    """Return the rank that is wanted after ``rank``; NEVER after the last one, and where ranks do not increase."""
    following = U64(ranks[U64(at)]) if at < end else NEVER
    return following if following > rank else NEVER


def _select_span(
    cells: Array,
    offset: int,
    shift: int,
    mask: int,
    first: int,
    last: int,
    counters: Array,
    wanted: Array,
    ahead: Array,
    place: Array,
    ends: Array,
    ranks: Array,
    index: Array,
    source: Array,
    old: Array,
    begin: int,
) -> Any:
    """Find the cells of one span whose rank in their class is wanted; return how many are found so far.

    ``wanted`` is of each class, at ``ahead`` in ``ranks``. Of a block, the ranks that are wanted are the bits that are
    deposited in the mask of the class. What is found is then written in the order of the cells: the next one of a class
    is the one at its ``place``.
    """
    n, size = U64(begin), U64(len(cells))
    whole = size - size % STRETCH
    masks, kinds = np.empty(BLOCKS, np.uint64), np.empty(BLOCKS * BLOCK, np.uint8)
    found = np.zeros(BLOCKS, np.uint64)
    i = ZERO
    while i < whole:
        for k in range(i + AHEAD, min(i + AHEAD + STRETCH, whole), LINE // U64(cells.itemsize)):
            fetch_ahead(cells, k)
        hits = count_classes(cells, i, shift, mask, first, last, counters, wanted, kinds)
        touched = ZERO
        while hits != 0:
            c: Any = np.uint8(lowest(hits))
            hits &= hits - ONE
            find_class(kinds, c, masks)
            seen = U64(counters[c])
            for b in range(BLOCKS):
                seen -= ones(masks[b])
            following, at, end = U64(wanted[c]), ahead[c], ends[c]
            own: Any = ZERO
            after, below = _following(following, at + 1, end, ranks), seen
            if after >= U64(counters[c]):  # mostly one is wanted: its block is found without a branch
                for b in range(U64(BLOCKS)):
                    reached = seen <= following
                    own, below = b if reached else own, seen if reached else below
                    seen += ones(masks[b])
                found[own] |= deposit(ONE << (following - below), masks[own])
                touched |= ONE << own
                wanted[c], ahead[c] = after, at + 1
                continue
            for b in range(U64(BLOCKS)):
                members = masks[b]
                upto = seen + ones(members)
                if following < upto:
                    bits = ZERO
                    while following < upto:
                        bits |= ONE << (following - seen)
                        at += 1
                        following = _following(following, at, end, ranks)
                    found[b] |= deposit(bits, members)
                    touched |= ONE << b
                seen = upto
            wanted[c], ahead[c] = following, at
        while touched != 0:
            b = lowest(touched)
            touched &= touched - ONE
            marks = found[b]
            found[b] = ZERO
            while marks != 0:
                k = U64(BLOCK) * b + lowest(marks)
                marks &= marks - ONE
                c = U64(kinds[k])
                index[n] = U64(offset) + i + k
                source[n] = place[c]
                old[n] = cells[i + k]
                place[c] += 1
                n += ONE
        i += STRETCH
    while i < size:
        c = np.uint8(_class_of(cells[i], shift, mask, first, last))
        if counters[c] == wanted[c]:
            index[n] = U64(offset) + i
            source[n] = place[c]
            old[n] = cells[i]
            n += ONE
            place[c] += 1
            wanted[c] = _following(U64(wanted[c]), place[c], ends[c], ranks)
            ahead[c] = place[c]
        counters[c] += np.uint32(1)
        i += ONE
    return np.int64(n)


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
) -> Any:
    """Find the cells of spans whose rank in their class is wanted; return how many there are."""
    n: Any = np.int64(0)  # not a literal, for which the helper would be compiled again
    ahead = place.copy()
    for s in range(U64(len(at))):
        cells = array_at(like, at[s], ends[s + ONE] - ends[s])
        bounds = (shift, mask, first, last)
        n = _select_span(
            cells, ends[s], *bounds, counters, wanted, ahead, place, member_ends, ranks, index, source, old, n
        )
    return n
