"""Tile tables of a layout: its groups by cell width, since a launch covers cells of one width."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from pulse_kernels.gpu.digest import as_lanes, digest
from pulse_kernels.gpu.tiling import CELL_DTYPES, Spans, Tiles, Tiling
from pulse_registry.errors import InvalidModel
from pulse_registry.weights.cell_space import Geometry, Group
from pulse_registry.weights.digest import Digest
from pulse_registry.weights.model import View


@dataclass(frozen=True, slots=True)
class TileTable:
    """Groups of one cell width, and their table of tiles on the device."""

    groups: tuple[Group, ...]
    tiles: Tiles
    _batches: dict[int, tuple[TileTable, ...]] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, groups: Sequence[Group], device: torch.device) -> TileTable:
        """Make the table of some groups of one width, in flat order."""
        rows = [
            (number, span.tensor, span.start, span.stop - span.start)
            for number, group in enumerate(groups)
            for span in group.spans
        ]
        columns = (np.array(column, dtype=np.int64) for column in zip(*rows, strict=True))
        starts, types = [group.start for group in groups], [group.cell_type for group in groups]
        return cls(tuple(groups), Tiles.cut(Spans(*columns), starts, types, device))

    def batches(self, nbytes: int) -> tuple[TileTable, ...]:
        """Cut the table into tables of at most so many bytes, or of one group; itself if that is all. Made once."""
        if nbytes not in self._batches:
            self._batches[nbytes] = tuple(self._cut(nbytes))
        return self._batches[nbytes]

    def _cut(self, nbytes: int) -> Iterator[TileTable]:
        width, device = self.tiles.width, self.tiles.device
        if sum(group.cells for group in self.groups) * width <= nbytes:
            yield self
            return
        batch: list[Group] = []
        for group in self.groups:
            if batch and (sum(g.cells for g in batch) + group.cells) * width > nbytes:
                yield TileTable.of(batch, device)
                batch = []
            batch.append(group)
        yield TileTable.of(batch, device)


_made: weakref.WeakKeyDictionary[Geometry, dict[torch.device, tuple[TileTable, ...]]] = weakref.WeakKeyDictionary()
_MAKING = threading.Lock()


def tile_tables(geometry: Geometry, device: torch.device) -> tuple[TileTable, ...]:
    """Return the tile tables of a layout, by first group; made once a device, as long as the geometry lives."""
    with _MAKING:
        known = _made.setdefault(geometry, {})
        if device not in known:
            known[device] = _tile_tables(geometry, device)
        return known[device]


def _tile_tables(geometry: Geometry, device: torch.device) -> tuple[TileTable, ...]:
    by_width: dict[int, list[Group]] = {}
    for group in geometry.groups:
        by_width.setdefault(group.cell_type.width, []).append(group)
    return tuple(TileTable.of(groups, device) for groups in by_width.values())


def empty_cells(geometry: Geometry, device: torch.device) -> list[torch.Tensor]:
    """Allocate the cells of each tensor of a layout, in layout order."""
    widths = {group.cell_type.name: group.cell_type.width for group in geometry.groups}
    return [
        torch.empty(size, dtype=CELL_DTYPES[widths[tensor.dtype]] if size else torch.uint8, device=device)
        for tensor, size in zip(geometry.layout.tensors, geometry.sizes, strict=True)
    ]


def live_cells(geometry: Geometry, views: Mapping[str, View], device: torch.device) -> list[torch.Tensor]:
    """Return the model's tensors in layout order, to be read: copied where they are not contiguous or lie elsewhere."""
    return [views[tensor.name].tensor.to(device).contiguous() for tensor in geometry.layout.tensors]


def cells_in_place(geometry: Geometry, views: Mapping[str, View]) -> list[torch.Tensor]:
    """Return the model's tensors in layout order, to be written.

    Raises:
        InvalidModel: one is not contiguous.
    """
    tensors = [views[tensor.name].tensor for tensor in geometry.layout.tensors]
    for tensor, wanted in zip(tensors, geometry.layout.tensors, strict=True):
        if not tensor.is_contiguous():
            raise InvalidModel(
                f"tensor {wanted.name!r} is not contiguous, and weights on {tensor.device} are changed in place only "
                "where they are: make it contiguous, or pull into host memory and copy it"
            )
    return tensors


def spans_of(group: Group, cells: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return a group's cells as views of the tensors, end to end, as the integers that cells travel as."""
    dtype = CELL_DTYPES[group.cell_type.width]
    return [cells[span.tensor].view(-1).view(dtype)[span.start : span.stop] for span in group.spans]


def total(tilings: Sequence[Tiling]) -> Digest:
    """Return the sum of the groups' digests by a full pass."""
    return sum((Digest(*lanes) for tiling in tilings for lanes in as_lanes(digest(tiling))), Digest())
