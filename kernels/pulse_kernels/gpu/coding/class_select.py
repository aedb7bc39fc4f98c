"""Select on the device: from ranks within classes to places, the inverse of ``ranks``, in one more read of the base.

The wanted ranks of a class rise, so those that fall into a tile are a slice. Three kernels: one finds the slices, by
bisection; one the place of each wanted rank, still class by class; one merges the slices of each tile into index order.
"""

from __future__ import annotations

from typing import Any

import torch

from pulse_kernels.gpu.cells import UNSIGNED
from pulse_kernels.gpu.changes import no_cells
from pulse_kernels.gpu.coding.class_rank import WARPS, ClassCounts, Classing, rows_of
from pulse_kernels.gpu.coding.class_rows import bit_at, class_planes, class_table, count_in, of_class, planes_at
from pulse_kernels.gpu.coding.symbols import outward
from pulse_kernels.gpu.language import jit, tl
from pulse_kernels.gpu.tiling import Tiling

ITEMS = 128
"""Ranks whose rows a program looks at together: one a thread."""
SEARCHED = 4
"""Tiles whose slices one program looks up."""
MERGED = 32
"""Places that a program puts in order together."""


@jit
def lower_bound(values: tl.tensor, low: tl.tensor, high: tl.tensor, wanted: tl.tensor) -> Any:
    """Return the first of the places from ``low`` to ``high`` whose value is not below ``wanted``; else ``high``."""
    while tl.max(high - low) > 0:
        some = low < high
        middle = (low + high) // 2
        less = some & (tl.load(values + middle, mask=some, other=0) < wanted)
        low = tl.where(less, middle + 1, low)
        high = tl.where(some, tl.where(less, high, middle), high)
    return low


@jit
def slice_of(kinds: tl.tensor, before: tl.tensor, begin: tl.tensor, item: tl.tensor) -> Any:
    """Return (kind, place) of items of slices laid end to end, each after ``before`` items and from ``begin`` on."""
    past = tl.sum((before[None, :] <= item[:, None]).to(tl.int32), 1)
    kind = past - 1
    own = kind[:, None] == kinds[None, :]
    return kind, item + tl.sum(tl.where(own, (begin - before)[None, :], 0), 1)


@jit
def bounds_of(
    tile: tl.tensor,
    owner: tl.tensor,
    offsets: tl.tensor,
    begins: tl.tensor,
    class_end: tl.tensor,
) -> Any:
    """Return where a tile's slice of each class begins, and where that of the next tile of its group does."""
    kinds = tl.arange(0, 32)
    end = tl.load(class_end + owner * 32 + kinds).to(tl.int32)
    if tile + 1 < tl.load(offsets + owner + 1):
        end = tl.load(begins + (tile + 1) * 32 + kinds)
    return tl.load(begins + tile * 32 + kinds), end


@jit
def last_row(
    before: tl.tensor,
    first: tl.tensor,
    kind: tl.tensor,
    rank: tl.tensor,
    SOME: tl.constexpr,
    STEP: tl.constexpr,
    ROWS: tl.constexpr,
    ITEMS: tl.constexpr,
) -> Any:
    """Return (row, cells of the class before it): of SOME rows from ``first`` on, STEP apart, the last with at most
    ``rank`` of them before it.
    """
    row = first[None, :] + (tl.arange(0, SOME) * STEP)[:, None]
    at = tl.reshape((kind & 15)[None, :] * ROWS + row, (SOME * ITEMS,))
    passed = count_in(tl.reshape(tl.gather(before, at, 0), (SOME, ITEMS)), kind[None, :])
    fits = passed <= rank[None, :]
    last = tl.maximum(tl.sum(fits.to(tl.int32), 0) - 1, 0)
    return first + last * STEP, tl.max(tl.where(fits, passed, 0), 0)


@jit
def find_slices(
    group: tl.tensor,
    counts: tl.tensor,
    class_begin: tl.tensor,
    class_end: tl.tensor,
    ranks: tl.tensor,
    begins: tl.tensor,
    tiles: tl.int32,
    SEARCHED: tl.constexpr,
) -> None:
    """Write where each tile's slice of each class begins: at the first rank that is not below the cells before it."""
    tile = tl.program_id(0).to(tl.int64) * SEARCHED + tl.arange(0, SEARCHED)
    some = tile < tiles
    kinds = tl.arange(0, 32)[None, :]
    of_group = tl.load(group + tile, mask=some, other=0)[:, None] * 32 + kinds
    of_tile = tile[:, None] * 32 + kinds
    before = tl.load(counts + of_tile, mask=some[:, None], other=0)
    low, high = tl.load(class_begin + of_group), tl.load(class_end + of_group)
    begin = lower_bound(ranks, low, tl.where(some[:, None], high, low), before)
    tl.store(begins + of_tile, begin.to(tl.int32), mask=some[:, None])


@jit
def order_of(place: tl.tensor, total: tl.tensor, ITEMS: tl.constexpr) -> Any:
    """Return how many of the first ``total`` places, all different, lie before each."""
    item = tl.arange(0, 32)
    before = tl.zeros((ITEMS,), tl.int32)
    for done in range(0, total, 32):
        some = tl.gather(place, done + item, 0)
        before += tl.sum(((some[:, None] < place[None, :]) & ((done + item) < total)[:, None]).to(tl.int32), 0)
    return before


@jit
def find_places(
    address: tl.tensor,
    count: tl.tensor,
    group: tl.tensor,
    first: tl.tensor,
    offsets: tl.tensor,
    group_offsets: tl.tensor,
    classing: tl.tensor,
    is_float: tl.tensor,
    counts: tl.tensor,
    begins: tl.tensor,
    class_begin: tl.tensor,
    class_end: tl.tensor,
    ranks: tl.tensor,
    steps: tl.tensor,
    places: tl.tensor,
    index: tl.tensor,
    distance: tl.tensor,
    ROWS: tl.constexpr,
    CELL: tl.constexpr,
    ITEMS: tl.constexpr,
) -> None:
    """Find the place of each wanted rank that a tile holds, and turn its step inward by the old cell's sign.

    ITEMS places, or fewer, are written in order at once; of more, each is written where its rank and its step lie.
    """
    COARSE: tl.constexpr = 8 if ROWS > 8 else 1
    tile = tl.program_id(0).to(tl.int64)
    owner = tl.load(group + tile)
    kinds = tl.arange(0, 32)
    begin, end = bounds_of(tile, owner, offsets, begins, class_end)
    wanted = end - begin
    total = tl.sum(wanted, 0)
    if total > 0:
        start, cells = tl.load(address + tile), tl.load(count + tile)
        p0, p1, p2, p3, p4, known = class_planes(start, cells, classing + owner * 4, ROWS, CELL)
        counted = class_table(p0, p1, p2, p3, p4, known)
        table = tl.reshape(tl.cumsum(counted, 1) - counted, (16 * ROWS,))
        ahead = tl.cumsum(wanted, 0) - wanted
        earlier = tl.load(counts + tile * 32 + kinds)
        pointer = start.to(tl.pointer_type(CELL))
        nowhere = tl.zeros((ITEMS,), tl.int32)
        for done in range(0, total, ITEMS):
            item = done + tl.arange(0, ITEMS)
            some = item < total
            kind = tl.sum((ahead[:, None] <= item[None, :]).to(tl.int32), 0) - 1
            at = item + tl.gather(begin - ahead, kind, 0)
            rank = tl.load(ranks + at, mask=some, other=0) - tl.gather(earlier, kind, 0)
            row, _ = last_row(table, nowhere, kind, rank, ROWS // COARSE, COARSE, ROWS, ITEMS)
            row, passed = last_row(table, row, kind, rank, COARSE, 1, ROWS, ITEMS)
            q0, q1, q2 = planes_at(p0, row), planes_at(p1, row), planes_at(p2, row)
            q3, q4 = planes_at(p3, row), planes_at(p4, row)
            bit = bit_at(of_class(kind, q0, q1, q2, q3, q4), rank - passed)
            place = tl.minimum(row * 64 + bit, cells - 1)
            old = tl.load(pointer + place, mask=some, other=0)
            step_out = tl.load(steps + at, mask=some, other=0).to(CELL, bitcast=True)
            step_in = outward(step_out, old, tl.load(is_float + owner)).to(steps.dtype.element_ty, bitcast=True)
            if total <= ITEMS:
                earlier_tiles = tl.sum(begin - tl.load(class_begin + owner * 32 + kinds), 0)
                target = tl.load(group_offsets + owner) + earlier_tiles + order_of(place, total, ITEMS)
                tl.store(index + target, tl.load(first + tile) + place, mask=some)
                tl.store(distance + target, step_in, mask=some)
            else:
                tl.store(places + at, tl.load(first + tile) + place, mask=some)
                tl.store(steps + at, step_in, mask=some)


@jit
def merge_classes(
    group: tl.tensor,
    offsets: tl.tensor,
    group_offsets: tl.tensor,
    begins: tl.tensor,
    class_begin: tl.tensor,
    class_end: tl.tensor,
    places: tl.tensor,
    steps: tl.tensor,
    index: tl.tensor,
    distance: tl.tensor,
    ITEMS: tl.constexpr,
    MERGED: tl.constexpr,
) -> None:
    """Write a tile's places in order, each with its step, where there are more than ``find_places`` has done."""
    tile = tl.program_id(0).to(tl.int64)
    owner = tl.load(group + tile)
    kinds = tl.arange(0, 32)
    begin, end = bounds_of(tile, owner, offsets, begins, class_end)
    wanted = end - begin
    before = tl.cumsum(wanted, 0) - wanted
    total = tl.sum(wanted, 0)
    total = tl.where(total <= ITEMS, 0, total)
    earlier = tl.sum(begin - tl.load(class_begin + owner * 32 + kinds), 0)
    out = tl.load(group_offsets + owner) + earlier
    for done in range(0, total, MERGED):
        item = done + tl.arange(0, MERGED)
        some = item < total
        _, at = slice_of(kinds, before, begin, item)
        place = tl.load(places + at, mask=some, other=0)
        low = tl.zeros((MERGED, 32), tl.int32) + begin[None, :]
        high = tl.where(some[:, None], low + wanted[None, :], low)
        target = out + tl.sum(lower_bound(places, low, high, place[:, None]) - begin[None, :], 1)
        tl.store(index + target, place, mask=some)
        tl.store(distance + target, tl.load(steps + at, mask=some, other=0), mask=some)


def class_select(
    base: Tiling,
    classing: Classing,
    counts: ClassCounts,
    class_begin: torch.Tensor,
    class_end: torch.Tensor,
    group_offsets: torch.Tensor,
    ranks: torch.Tensor,
    steps: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (index int32[n], distance) in index order, group by group.

    Args:
        base: the old cells.
        classing: of the groups.
        counts: ``class_counts`` of the same.
        class_begin, class_end: int64 [G, 32], where each class's ranks begin and end.
        group_offsets: int64 [G + 1], the same of each group.
        ranks: int32[n], class-major, rising within a class, each below its class's population.
        steps: outward distances beside them; turned inward in place.
    """
    tiles = base.tiles
    places, index, distance = torch.zeros_like(ranks), torch.empty_like(ranks), no_cells(tiles, len(ranks))
    if len(tiles) and len(ranks):
        begins = torch.empty_like(counts.before)
        find_slices[(-(-len(tiles) // SEARCHED),)](
            *(tiles.group, counts.before, class_begin, class_end, ranks, begins, len(tiles)),
            SEARCHED=SEARCHED,
            num_warps=1,
        )
        find_places[(len(tiles),)](
            *(base.address, tiles.count, tiles.group, tiles.first, tiles.offsets, group_offsets, classing.table),
            *(tiles.is_float, counts.before, begins, class_begin, class_end, ranks, steps, places, index, distance),
            ROWS=rows_of(tiles),
            CELL=UNSIGNED[tiles.width],
            ITEMS=ITEMS,
            num_warps=WARPS,
        )
        merge_classes[(len(tiles),)](
            *(tiles.group, tiles.offsets, group_offsets, begins, class_begin, class_end),
            *(places, steps, index, distance),
            ITEMS=ITEMS,
            MERGED=MERGED,
            num_warps=1,
        )
    return index, distance
