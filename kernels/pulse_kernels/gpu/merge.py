"""Merging staged changes on the device: two that follow each other become one, tile by tile.

A place in both keeps the first one's old and the second one's new cell, and drops out where these are equal. Each list
looks its places up in the other by bisection; what is kept before a place, in both lists, is where it goes.
"""

from __future__ import annotations

from typing import Any

import torch

from pulse_kernels.gpu.changes import Changes, no_cells, offsets_of
from pulse_kernels.gpu.language import jit, tl

RUN = 128
"""Changes that a program looks at a time."""


@jit
def lower_bound(index: tl.tensor, begin: tl.tensor, end: tl.tensor, wanted: tl.tensor) -> Any:
    """Return the first place in ``index[begin:end]`` whose value is not below each wanted one."""
    low = tl.zeros_like(wanted).to(tl.int64) + begin
    high = tl.zeros_like(wanted).to(tl.int64) + end
    while tl.max(high - low, 0) > 0:
        middle = (low + high) // 2
        active = low < high
        below = active & (tl.load(index + middle, mask=active, other=0) < wanted)
        low = tl.where(below, middle + 1, low)
        high = tl.where(active & ~below, middle, high)
    return low


@jit
def count_kept(
    offsets: tl.tensor,
    index: tl.tensor,
    old: tl.tensor,
    other_offsets: tl.tensor,
    other_index: tl.tensor,
    other_new: tl.tensor,
    before: tl.tensor,
    kept: tl.tensor,
    RUN: tl.constexpr,
    FIRST: tl.constexpr,
) -> None:
    """Write how many changes of this list are kept before each one in its tile, and how many the tile keeps.

    The first list speaks for the places that both have: of the second one only the others are kept.
    """
    tile = tl.program_id(0).to(tl.int64)
    begin = tl.load(offsets + tile)
    end = tl.load(offsets + tile + 1)
    other_begin = tl.load(other_offsets + tile)
    other_end = tl.load(other_offsets + tile + 1)
    total = tl.zeros([], tl.int32)
    for done in range(begin, end, RUN):
        k = done + tl.arange(0, RUN)
        some = k < end
        place = tl.load(index + k, mask=some, other=0)
        match = lower_bound(other_index, other_begin, other_end, place)
        both = some & (match < other_end)
        both = both & (tl.load(other_index + match, mask=both, other=-1) == place)
        if FIRST:
            was = tl.load(old + k, mask=both, other=0)
            now = tl.load(other_new + match, mask=both, other=0)
            keep = (some & (~both | (was != now))).to(tl.int32)
        else:
            keep = (some & ~both).to(tl.int32)
        tl.store(before + k, total + tl.cumsum(keep, 0) - keep, mask=some)
        total += tl.sum(keep, 0)
    tl.store(kept + tile, total)


@jit
def write_kept(
    offsets: tl.tensor,
    index: tl.tensor,
    old: tl.tensor,
    new: tl.tensor,
    before: tl.tensor,
    other_offsets: tl.tensor,
    other_index: tl.tensor,
    other_new: tl.tensor,
    other_before: tl.tensor,
    other_kept: tl.tensor,
    out_offsets: tl.tensor,
    out_index: tl.tensor,
    out_old: tl.tensor,
    out_new: tl.tensor,
    RUN: tl.constexpr,
    FIRST: tl.constexpr,
) -> None:
    """Write this list's kept changes to their places in the merged list."""
    tile = tl.program_id(0).to(tl.int64)
    begin = tl.load(offsets + tile)
    end = tl.load(offsets + tile + 1)
    other_begin = tl.load(other_offsets + tile)
    other_end = tl.load(other_offsets + tile + 1)
    target = tl.load(out_offsets + tile)
    other_total = tl.load(other_kept + tile)
    for done in range(begin, end, RUN):
        k = done + tl.arange(0, RUN)
        some = k < end
        place = tl.load(index + k, mask=some, other=0)
        match = lower_bound(other_index, other_begin, other_end, place)
        inside = some & (match < other_end)
        both = inside & (tl.load(other_index + match, mask=inside, other=-1) == place)
        was = tl.load(old + k, mask=some, other=0)
        if FIRST:
            now = tl.load(other_new + match, mask=both, other=0)
            now = tl.where(both, now, tl.load(new + k, mask=some, other=0))
            keep = some & (~both | (was != now))
        else:
            now = tl.load(new + k, mask=some, other=0)
            keep = some & ~both
        passed = tl.load(other_before + match, mask=inside, other=0)
        to = target + tl.load(before + k, mask=some, other=0) + tl.where(inside, passed, other_total)
        tl.store(out_index + to, place, mask=keep)
        tl.store(out_old + to, was, mask=keep)
        tl.store(out_new + to, now, mask=keep)


def merge(first: Changes, second: Changes) -> Changes:
    """Join two changes over the same tiles, the second one made upon the first.

    Waits for the device once, for the number of cells that change in all.
    """
    tiles = first.tiles
    device = tiles.device
    if not len(first) or not len(second):
        return first if len(first) else second
    pair = (first, second), (second, first)
    before = [torch.empty(len(c), dtype=torch.int32, device=device) for c in (first, second)]
    kept = [torch.empty(len(tiles), dtype=torch.int32, device=device) for _ in pair]
    for number, (one, other) in enumerate(pair):
        count_kept[(len(tiles),)](
            *(one.tile_offsets, one.index, one.old, other.tile_offsets, other.index, other.new),
            *(before[number], kept[number]),
            RUN=RUN,
            FIRST=number == 0,
            num_warps=1,
        )
    tile_offsets = offsets_of(kept[0] + kept[1])
    group_offsets = tile_offsets[tiles.offsets]
    host_offsets = group_offsets.cpu().numpy()
    total = int(host_offsets[-1])
    index = torch.empty(total, dtype=torch.int32, device=device)
    old, new = no_cells(tiles, total), no_cells(tiles, total)
    for number, (one, other) in enumerate(pair):
        write_kept[(len(tiles),)](
            *(one.tile_offsets, one.index, one.old, one.new, before[number]),
            *(other.tile_offsets, other.index, other.new, before[1 - number], kept[1 - number]),
            *(tile_offsets, index, old, new),
            RUN=RUN,
            FIRST=number == 0,
            num_warps=1,
        )
    return Changes(tiles, index, old, new, tile_offsets, group_offsets, host_offsets)
