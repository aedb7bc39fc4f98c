"""Changes of a model on a device, in its memory."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from pulse_kernels.gpu.apply import locate
from pulse_kernels.gpu.changes import Changes, no_cells
from pulse_kernels.gpu.digest import as_lanes, digest_sparse
from pulse_kernels.gpu.transfer import upload
from pulse_registry.gpu.nonfinite import first_nonfinite
from pulse_registry.gpu.stream import DeviceStream
from pulse_registry.gpu.tile_table import TileTable
from pulse_registry.weights.digest import Digest


@dataclass(frozen=True, slots=True)
class DeviceUpdate:
    """What changes in each tile table of a layout; the weights themselves are not held.

    Attributes:
        by_table: of each tile table of the layout, or none where nothing changes.
        stream: that made them: what reads them on another stream waits for it.
    """

    by_table: tuple[Changes, ...]
    stream: DeviceStream

    @property
    def changed(self) -> int:
        """Cells that differ."""
        return sum(map(len, self.by_table))

    @property
    def nbytes(self) -> int:
        """Bytes of device memory."""
        return sum(changes.nbytes for changes in self.by_table)

    def not_finite(self) -> int | None:
        """Return the flat index of the first new cell that is NaN or infinite, None if there is none."""
        with self.stream.work():
            return min(
                (found for change in self.by_table if (found := first_nonfinite(change)) is not None), default=None
            )


def reversed_(changes: Changes) -> Changes:
    """Return the update that undoes this one."""
    return replace(changes, old=changes.new, new=changes.old)


def sums_of(changes: Changes) -> list[tuple[Digest, Digest]]:
    """Return the sums of h over the old and over the new cells, group by group. Waits for the device."""
    return [(Digest(*lanes[:2]), Digest(*lanes[2:])) for lanes in as_lanes(digest_sparse(changes))]


def cut(changes: Changes, whole: TileTable, table: TileTable) -> Changes:
    """Return what changes in some consecutive groups of a tile table."""
    if table is whole:
        return changes
    first = next(k for k, group in enumerate(whole.groups) if group.number == table.groups[0].number)
    host = changes.host_offsets[first : first + len(table.groups) + 1]
    begin, end = int(host[0]), int(host[-1])
    index, old, new = (column[begin:end] for column in (changes.index, changes.old, changes.new))
    group_offsets = changes.group_offsets[first : first + len(table.groups) + 1] - begin
    return Changes(table.tiles, index, old, new, locate(table.tiles, index, group_offsets), group_offsets, host - begin)


class Collected:
    """Puts the changes of consecutive groups, which make up a table, end to end.

    With room for all of them from the start nothing is held twice, but one piece at a time.
    """

    def __init__(self, whole: TileTable, room: int) -> None:
        """Allocate room for so many changes."""
        self._whole = whole
        self._at = 0
        self._host = [np.zeros(1, np.int64)]
        self._index = torch.empty(room, dtype=torch.int32, device=whole.tiles.device)
        self._old, self._new = no_cells(whole.tiles, room), no_cells(whole.tiles, room)

    def add(self, changes: Changes) -> None:
        """Copy the changes of the next groups; past the room, it is made."""
        count = len(changes)
        if self._at + count > len(self._index):
            room = max(2 * len(self._index), self._at + count)
            self._index, self._old, self._new = (
                torch.cat([kept[: self._at], kept.new_empty(room - self._at)])
                for kept in (self._index, self._old, self._new)
            )
        for kept, found in (self._index, changes.index), (self._old, changes.old), (self._new, changes.new):
            kept[self._at : self._at + count] = found
        self._host.append(changes.host_offsets[1:] + self._at)
        self._at += count

    def changes(self) -> Changes:
        """Return them all."""
        tiles, host = self._whole.tiles, np.concatenate(self._host)
        index, old, new = (kept[: self._at] for kept in (self._index, self._old, self._new))
        (group_offsets,) = upload(tiles.device, host)
        return Changes(tiles, index, old, new, locate(tiles, index, group_offsets), group_offsets, host)
