"""Sparse updates between host memory and a device: group by group there, a tile table at a time here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import torch

from pulse_kernels.gpu.apply import locate
from pulse_kernels.gpu.changes import Changes
from pulse_kernels.gpu.transfer import upload
from pulse_registry.format.sparse_update import SparseUpdate
from pulse_registry.gpu.stream import DeviceStream
from pulse_registry.gpu.tile_table import TileTable


def uploaded(table: TileTable, groups: Mapping[int, SparseUpdate]) -> Changes:
    """Return what changes in the groups of a tile table, by number, on its device, on the current stream."""
    device, width = table.tiles.device, table.tiles.width
    found = [groups[group.number] for group in table.groups if group.number in groups]
    counts = [len(groups[group.number].index) if group.number in groups else 0 for group in table.groups]
    host = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    (group_offsets,) = upload(device, host)
    unsigned, signed = f"u{width}", f"i{width}" if width > 1 else "u1"
    index = np.concatenate([np.empty(0, np.uint32), *(change.index for change in found)]).view(np.int32)
    old, new = (
        np.concatenate([np.empty(0, unsigned), *(cells.view(unsigned) for cells in column)]).view(signed)
        for column in ([change.old for change in found], [change.new for change in found])
    )
    there = [torch.from_numpy(column).to(device) for column in (index, old, new)]
    tile_offsets = locate(table.tiles, there[0], group_offsets)
    return Changes(table.tiles, there[0], there[1], there[2], tile_offsets, group_offsets, host)


def downloaded(table: TileTable, changes: Changes, stream: DeviceStream) -> Iterator[SparseUpdate]:
    """Yield what changes in each group of a tile table, in host memory; call it within the stream's ``work``."""
    index, old, new = (stream.download(column).numpy() for column in (changes.index, changes.old, changes.new))
    for number, group in enumerate(table.groups):
        low, high = changes.host_offsets[number : number + 2].tolist()
        if low < high:
            before, after = (column[low:high].view(group.cell_type.dtype) for column in (old, new))
            yield SparseUpdate(group, index[low:high].view(np.uint32), before, after)
