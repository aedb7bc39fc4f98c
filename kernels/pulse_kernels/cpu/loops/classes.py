"""Ranks of cells within their classes, and back, as numba loops.

Both walk all cells of a group a stretch at a time and count its cells of each class. Only in the stretches that hold a
changed cell do they look at single ones: how many of a class come before one is what comes before the stretch, and the
bits below it in the mask of the class.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pulse_kernels.cpu.loops.class_counts import BLOCKS, COUNTERS, classes_past, count_classes, find_class, find_classes
from pulse_kernels.cpu.loops.simd import BLOCK, deposit, fetch_ahead, lowest, ones
from pulse_kernels.cpu.loops.spans import array_at

Array = Any
U32, U64 = np.uint32, np.uint64
ZERO, ONE, BITS = U64(0), U64(1), U64(BLOCK)
STRETCH = U64(BLOCKS * BLOCK)
ROWS = 8
"""Stretches of a window: cells are ranked so many at a time, that the processor has few branches to guess."""
WINDOW = U64(ROWS) * STRETCH
AHEAD = U64(8192)
"""Bytes from a cell that is looked at to one that is fetched, in another page: processors stop at the end of one."""
LINE = U64(64)
"""Bytes that are fetched at a time."""
NEVER = U32(0xFFFFFFFF)
"""More cells than a group has."""


def _class_of(cell: Any, shift: Any, mask: Any, first: Any, last: Any) -> Any:
    """Return the number of a cell's class, from the highest down."""
    return U64(last) - U64(min(max(np.uint8((cell >> shift) & mask), first), last))


def _fetch(cells: Array, i: Any, whole: Any) -> None:
    """Fetch a stretch that is looked at soon."""
    begin = i + AHEAD // U64(cells.itemsize)
    for k in range(begin, min(begin + STRETCH, whole), LINE // U64(cells.itemsize)):
        fetch_ahead(cells, k)


def _find_members(kinds: Array, row: Any, c: Any, before: Any, masks: Array, firsts: Array) -> None:
    """Find the cells of a class in a stretch: their mask in each block, and the rank of the first one there."""
    begin = c * U64(BLOCKS)
    find_class(kinds, row * STRETCH, np.uint8(c), masks, begin)
    for b in range(begin, begin + U64(BLOCKS)):
        firsts[b] = before
        before += U32(ones(masks[b]))


def _rank_span(
    cells: Array, index: Array, old: Array, begin: int, offset: int, bounds: Any, totals: Array, room: Any, out: Any
) -> Any:
    """Rank the old cells of one span that ``index[begin:]`` names; return the first entry past the span."""
    (shift, mask, first, last), (kinds, counts, masks, firsts), (rank, kind) = bounds, room, out
    n, named, size = U64(begin), U64(len(index)), U64(len(cells))
    whole, lowest_class = size - size % STRETCH, U64(last) - U64(first)
    for start in range(ZERO, whole, WINDOW):
        end = min(start + WINDOW, whole)
        for i in range(start, end, STRETCH):
            find_classes(cells, i, shift, mask, first, last, kinds, i - start)
        past = n
        while past < named and U64(index[past]) - U64(offset) - start < end - start:
            k = U64(index[past]) - U64(offset) - start
            kinds[k] = np.uint8(_class_of(old[past], shift, mask, first, last))
            past += ONE
        for i in range(start, end, STRETCH):
            _fetch(cells, i, whole)
            row = (i - start) // STRETCH
            count_classes(kinds, row * STRETCH, totals, counts, row * U64(COUNTERS))
        known, looked = ZERO, U64(ROWS)
        while n < past:
            k = U64(index[n]) - U64(offset) - start
            c, row = U64(kinds[k]), k // STRETCH
            known = known if row == looked else ZERO
            looked = row
            if (known >> c) & ONE == ZERO:
                known |= ONE << c
                _find_members(kinds, row, c, counts[row * U64(COUNTERS) + c], masks, firsts)
            own = c * U64(BLOCKS) + k % STRETCH // BITS
            rank[n] = firsts[own] + U32(ones(masks[own] & ((ONE << k % BITS) - ONE)))
            kind[n] = lowest_class - c
            n += ONE
    for i in range(whole, size):
        named_here = n < named and U64(index[n]) - U64(offset) == i
        c = _class_of(old[n] if named_here else cells[i], shift, mask, first, last)
        if named_here:
            rank[n] = totals[c]
            kind[n] = lowest_class - c
            n += ONE
        totals[c] += U32(1)
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
    totals: Array,
    rank: Array,
    kind: Array,
) -> Any:
    """Rank the cells of spans that ``index`` names, as they were; return how many of them there are.

    ``totals`` are how many cells each class has, the highest first.
    """
    n: Any = np.int64(0)  # not a literal, for which the helper would be compiled again
    bounds, out = (shift, mask, first, last), (rank, kind)
    kinds, counts = np.empty(WINDOW, np.uint8), np.empty(ROWS * COUNTERS, np.uint32)
    masks, firsts = np.empty(COUNTERS * BLOCKS, np.uint64), np.empty(COUNTERS * BLOCKS, np.uint32)
    for s in range(U64(len(at))):
        cells = array_at(like, at[s], ends[s + ONE] - ends[s])
        n = _rank_span(cells, index, old, n, ends[s], bounds, totals, (kinds, counts, masks, firsts), out)
    return n


def _following(rank: Any, at: Any, end: Any, ranks: Array) -> Any:
    """Return the rank that is wanted after ``rank``; NEVER after the last one, and where ranks do not increase."""
    following = U64(ranks[U64(at)]) if at < end else NEVER
    return following if following > rank else NEVER


def _select_span(cells: Array, begin: int, offset: int, bounds: Any, totals: Array, members: Any, out: Any) -> Any:
    """Find the cells of one span whose rank in their class is wanted; return how many are found so far.

    ``wanted`` is of each class, at ``ahead`` in ``ranks``. Of a block, the ranks that are wanted are the bits that are
    deposited in the mask of the class. What is found is then written in the order of the cells: the next one of a class
    is the one at its ``place``.
    """
    (shift, mask, first, last), (wanted, ahead, place, ends, ranks), (index, source, old) = bounds, members, out
    n, size = U64(begin), U64(len(cells))
    whole = size - size % STRETCH
    masks, kinds = np.empty(BLOCKS, np.uint64), np.empty(BLOCKS * BLOCK, np.uint8)
    befores, found = np.empty(COUNTERS, np.uint32), np.zeros(BLOCKS, np.uint64)
    for i in range(ZERO, whole, STRETCH):
        _fetch(cells, i, whole)
        find_classes(cells, i, shift, mask, first, last, kinds, ZERO)
        count_classes(kinds, ZERO, totals, befores, ZERO)
        hits = classes_past(totals, wanted)
        touched = ZERO
        while hits != 0:
            c: Any = lowest(hits)
            hits &= hits - ONE
            find_class(kinds, ZERO, np.uint8(c), masks, ZERO)
            seen = U64(befores[c])
            following, at, end = U64(wanted[c]), ahead[c], ends[c]
            own: Any = ZERO
            after, below = _following(following, at + 1, end, ranks), seen
            if after >= U64(totals[c]):  # mostly one is wanted: its block is found without a branch
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
    for i in range(whole, size):
        c = _class_of(cells[i], shift, mask, first, last)
        if totals[c] == wanted[c]:
            index[n] = U64(offset) + i
            source[n] = place[c]
            old[n] = cells[i]
            n += ONE
            place[c] += 1
            wanted[c] = _following(U64(wanted[c]), place[c], ends[c], ranks)
            ahead[c] = place[c]
        totals[c] += U32(1)
    return np.int64(n)


def class_select(
    at: Array,
    ends: Array,
    like: Array,
    shift: int,
    mask: int,
    first: int,
    last: int,
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
    totals, bounds, out = np.zeros(COUNTERS, np.uint32), (shift, mask, first, last), (index, source, old)
    members = wanted, place.copy(), place, member_ends, ranks
    for s in range(U64(len(at))):
        cells = array_at(like, at[s], ends[s + ONE] - ends[s])
        n = _select_span(cells, n, ends[s], bounds, totals, members, out)
    return n
