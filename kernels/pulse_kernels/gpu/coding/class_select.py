"""Select on the device: from ranks within classes to places, the inverse of ``ranks``, in one more read of the base.

The wanted ranks of a class rise, so those that fall into a tile are a slice. Three kernels: one finds the slices, by
bisection; one the place of each wanted rank, still class by class; one merges the slices of each tile into index order.
"""

from __future__ import annotations

from typing import Any

import torch

from pulse_kernels.gpu.cells import UNSIGNED
from pulse_kernels.gpu.changes import no_cells
from pulse_kernels.gpu.coding.class_rank import (
    WARPS,
    ClassCounts,
    Classing,
    class_of,
    count_before,
    row_counts,
    row_of,
    tile_kinds,
)
from pulse_kernels.gpu.coding.symbols import outward
from pulse_kernels.gpu.language import jit, tl
from pulse_kernels.gpu.tiling import Tiling

ITEMS = 64
"""Ranks whose rows a program looks at together; more of them take registers that keep other programs waiting."""
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
def row_with(
    table: tl.tensor,
    first: tl.tensor,
    kind: tl.tensor,
    rank: tl.tensor,
    SOME: tl.constexpr,
    ROWS: tl.constexpr,
    ITEMS: tl.constexpr,
) -> Any:
    """Return (row, cells of the class before it): of SOME rows from ``first`` on, the last with at most ``rank``."""
    row = first[:, None] + tl.arange(0, SOME)[None, :]
    kinds = tl.broadcast_to(kind[:, None], (ITEMS, SOME))
    before = count_before(table, tl.reshape(row, (ITEMS * SOME,)), tl.reshape(kinds, (ITEMS * SOME,)), ROWS)
    before = tl.reshape(before, (ITEMS, SOME))
    fits = before <= rank[:, None]
    last = tl.maximum(tl.sum(fits.to(tl.int32), 1) - 1, 0)
    return first + last, tl.max(tl.where(fits, before, 0), 1)


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
def find_places(
    address: tl.tensor,
    count: tl.tensor,
    group: tl.tensor,
    first: tl.tensor,
    offsets: tl.tensor,
    classing: tl.tensor,
    is_float: tl.tensor,
    counts: tl.tensor,
    begins: tl.tensor,
    class_end: tl.tensor,
    ranks: tl.tensor,
    steps: tl.tensor,
    places: tl.tensor,
    TILE: tl.constexpr,
    CELL: tl.constexpr,
    ROW: tl.constexpr,
    ITEMS: tl.constexpr,
) -> None:
    """Write the place of each wanted rank that a tile holds, and turn its step inward by the old cell's sign."""
    ROWS: tl.constexpr = TILE // ROW
    FINE: tl.constexpr = 16 if ROWS > 16 else 1
    tile = tl.program_id(0).to(tl.int64)
    owner = tl.load(group + tile)
    kinds = tl.arange(0, 32)
    begin, end = bounds_of(tile, owner, offsets, begins, class_end)
    wanted = end - begin
    total = tl.sum(wanted, 0)
    if total > 0:
        start, cells, own = tl.load(address + tile), tl.load(count + tile), classing + owner * 4
        rows = row_counts(tile_kinds(start, cells, own, TILE, CELL), ROWS, ROW)
        before = tl.cumsum(wanted, 0) - wanted
        table = tl.cumsum(rows, 1) - rows
        ahead = tl.reshape(table, (8 * ROWS,))
        # The search begins in the first of every FINE rows; before that, there is least of every class.
        coarse = tl.reshape(tl.min(tl.reshape(table, (8, ROWS // FINE, FINE)), 2), (ROWS // FINE * 8,))
        shift, mask, least, most = tl.load(own), tl.load(own + 1), tl.load(own + 2), tl.load(own + 3)
        pointer = start.to(tl.pointer_type(CELL))
        column = tl.arange(0, ROW)[None, :]
        for done in range(0, total, ITEMS):
            item = done + tl.arange(0, ITEMS)
            some = item < total
            kind, at = slice_of(kinds, before, begin, item)
            rank = tl.load(ranks + at, mask=some, other=0) - tl.load(counts + tile * 32 + kind)
            row, _ = row_with(coarse, tl.zeros((ITEMS,), tl.int32), kind, rank, ROWS // FINE, ROWS // FINE, ITEMS)
            row, passed_by = row_with(ahead, row * FINE, kind, rank, FINE, ROWS, ITEMS)
            rest = rank - passed_by
            near_place = row[:, None] * ROW + column
            near = tl.load(pointer + near_place, mask=near_place < cells, other=0)
            alike = (class_of(near, shift, mask, least, most) == kind[:, None]) & (near_place < cells)
            passed = tl.cumsum(alike.to(tl.int32), 1) <= rest[:, None]
            place = tl.minimum(row * ROW + tl.sum(passed.to(tl.int32), 1), cells - 1)
            old = tl.load(pointer + place, mask=some, other=0)
            step_out = tl.load(steps + at, mask=some, other=0).to(CELL, bitcast=True)
            step_in = outward(step_out, old, tl.load(is_float + owner))
            tl.store(steps + at, step_in.to(steps.dtype.element_ty, bitcast=True), mask=some)
            tl.store(places + at, tl.load(first + tile) + place, mask=some)


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
    MERGED: tl.constexpr,
) -> None:
    """Write a tile's places in order, each with its step."""
    tile = tl.program_id(0).to(tl.int64)
    owner = tl.load(group + tile)
    kinds = tl.arange(0, 32)
    begin, end = bounds_of(tile, owner, offsets, begins, class_end)
    wanted = end - begin
    before = tl.cumsum(wanted, 0) - wanted
    total = tl.sum(wanted, 0)
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
            *(base.address, tiles.count, tiles.group, tiles.first, tiles.offsets, classing.table, tiles.is_float),
            *(counts.before, begins, class_end, ranks, steps, places),
            TILE=tiles.tile,
            CELL=UNSIGNED[tiles.width],
            ROW=row_of(tiles),
            ITEMS=ITEMS,
            num_warps=WARPS,
        )
        merge_classes[(len(tiles),)](
            *(tiles.group, tiles.offsets, group_offsets, begins, class_begin, class_end),
            *(places, steps, index, distance),
            MERGED=MERGED,
            num_warps=1,
        )
    return index, distance
