"""Batches of groups: coding works on so many changes at a time, so that its scratch is bounded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch

from pulse_kernels.gpu.changes import Changes
from pulse_kernels.gpu.coding.pieces import I64
from pulse_kernels.gpu.tiling import Tiles, Tiling

BATCH = 2**27
"""Changes of a batch, unless the caller says otherwise: one batch for a step of 13 G cells of which 1 % changes."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Groups ``groups``, whose tiles are ``tiles`` and whose changes are ``changes``."""

    groups: slice
    tiles: slice
    changes: slice


def batches(tiles: Tiles, host_offsets: I64, most: int) -> Iterator[Batch]:
    """Cut groups into batches of at most ``most`` changes; a group with more is a batch of its own."""
    if host_offsets[-1] <= most:
        yield Batch(slice(0, tiles.groups), slice(0, len(tiles)), slice(0, int(host_offsets[-1])))
        return
    tile_offsets = tiles.host_offsets
    begin = 0
    while begin < tiles.groups:
        end = int(np.searchsorted(host_offsets, host_offsets[begin] + most, side="right")) - 1
        end = min(max(end, begin + 1), tiles.groups)
        cuts = (tile_offsets, host_offsets)
        tile, change = (slice(int(cut[begin]), int(cut[end])) for cut in cuts)
        yield Batch(slice(begin, end), tile, change)
        begin = end


def tiles_of(tiles: Tiles, batch: Batch) -> Tiles:
    """Return the tiles of a batch as if its groups were all there are."""
    if batch.groups == slice(0, tiles.groups):
        return tiles
    group, tile = batch.groups, batch.tiles

    def cut(table: torch.Tensor, where: slice) -> torch.Tensor:
        return table[where].clone()  # a part of it begins anywhere

    return replace(
        tiles,
        types=tiles.types[group],
        group_cells=tiles.group_cells[group],
        tensor=cut(tiles.tensor, tile),
        start=cut(tiles.start, tile),
        count=cut(tiles.count, tile),
        group=tiles.group[tile] - group.start,
        first=cut(tiles.first, tile),
        flat=cut(tiles.flat, tile),
        offsets=tiles.offsets[group.start : group.stop + 1] - tile.start,
        host_offsets=tiles.host_offsets[group.start : group.stop + 1] - tile.start,
        starts=cut(tiles.starts, group),
        is_float=cut(tiles.is_float, group),
    )


def tiling_of(tiling: Tiling, tiles: Tiles, batch: Batch) -> Tiling:
    """Return a tiling's part over the tiles of a batch."""
    address, wide = (table[batch.tiles].clone() for table in (tiling.address, tiling.wide))
    return replace(tiling, tiles=tiles, address=address, wide=wide)


def changes_of(changes: Changes, tiles: Tiles, batch: Batch) -> Changes:
    """Return the changes of a batch."""
    group, tile, change = batch.groups, batch.tiles, batch.changes
    return replace(
        changes,
        tiles=tiles,
        index=changes.index[change],
        old=changes.old[change],
        new=changes.new[change],
        tile_offsets=changes.tile_offsets[tile.start : tile.stop + 1] - change.start,
        group_offsets=changes.group_offsets[group.start : group.stop + 1] - change.start,
        host_offsets=changes.host_offsets[group.start : group.stop + 1] - change.start,
    )
