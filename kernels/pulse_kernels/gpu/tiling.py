"""Tilings: tensors of one cell width as a table of tiles on the device, so that a launch covers all of them.

The flat cell space is cut at the ends of groups and tensors, then into tiles of at most ``tile`` cells. ``Tiles``
is that cut, the same for all tensors of a layout; a ``Tiling`` adds where the cells of each tile are. Tilings over the
same tiles (live weights and shadow, say) line up tile by tile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from pulse_kernels.cells import CellType
from pulse_kernels.gpu.transfer import upload

TILE = 8192
"""Cells a tile: 16 KiB of BF16, what one program reads; small enough that its changes fit shared memory."""

CELL_DTYPES = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""What cells of each width travel as: torch knows little of the wider unsigned integers. Only the bits count."""

I64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Spans:
    """Which cells a group consists of: parallel arrays, in flat order; span k is of one tensor and one group.

    Attributes:
        group: number of the span's group, from 0, never falling; every group has a span.
        tensor: number of its tensor.
        start: its first cell in that tensor.
        cells: how many; never 0.
    """

    group: I64
    tensor: I64
    start: I64
    cells: I64


@dataclass(frozen=True, slots=True)
class Tiles:
    """A cut of groups of one cell width into tiles; the tensors are on the device.

    Attributes:
        width: bytes a cell.
        tile: the most cells of a tile.
        types: dtype of each group.
        group_cells: cells of each group.
        tensors: numbers of the tensors that the tiles are of.
        reach: how far into each of these tensors they reach, in cells.
        tensor, int32[T]: which of ``tensors`` each tile is of, from 0 on.
        start, int64[T]: its first cell's index in the tensor.
        count, int32[T]: cells of each tile.
        group, int32[T]: number of its group.
        first, int32[T]: its first cell's index in the group.
        flat, int64[T]: its first cell's index in the flat cell space.
        offsets, int64[G + 1]: the tiles of group g are ``offsets[g]`` to ``offsets[g + 1]``.
        host_offsets: the same on the host.
        starts, int64[G]: flat index of each group's first cell.
        is_float, int32[G]: whether its patterns are sign and magnitude.
    """

    width: int
    tile: int
    types: tuple[CellType, ...]
    group_cells: I64
    tensors: I64
    reach: I64
    tensor: torch.Tensor
    start: torch.Tensor
    count: torch.Tensor
    group: torch.Tensor
    first: torch.Tensor
    flat: torch.Tensor
    offsets: torch.Tensor
    host_offsets: I64
    starts: torch.Tensor
    is_float: torch.Tensor

    @property
    def device(self) -> torch.device:
        """Where the table is."""
        return self.count.device

    @property
    def groups(self) -> int:
        """How many groups."""
        return len(self.types)

    @property
    def tables(self) -> tuple[torch.Tensor, ...]:
        """Device tensors of the table."""
        by_tile = (self.tensor, self.start, self.count, self.group, self.first, self.flat)
        return *by_tile, self.offsets, self.starts, self.is_float

    def __len__(self) -> int:
        """Return how many tiles."""
        return len(self.count)

    @classmethod
    def cut(
        cls,
        spans: Spans,
        starts: Sequence[int],
        types: Sequence[CellType],
        device: torch.device | str,
        tile: int = TILE,
    ) -> Tiles:
        """Cut spans into tiles.

        Args:
            spans: of all groups.
            starts: flat index of each group's first cell.
            types: dtype of each group; all of one width.
            device: where the table goes.
            tile: a power of two.

        Raises:
            ValueError: widths are mixed, a span is empty, or ``tile`` is no power of two.
        """
        widths = {t.width for t in types}
        if len(widths) != 1:
            raise ValueError(f"the groups' cells are {sorted(widths)} bytes wide: a tiling has cells of one width")
        if tile < 1 or tile & (tile - 1):
            raise ValueError(f"a tile of {tile} cells: it must be a power of two")
        if len(spans.cells) and int(spans.cells.min()) < 1:
            raise ValueError("a span is empty")
        group_cells = np.bincount(spans.group, spans.cells, len(types)).astype(np.int64)
        each = -(-spans.cells // tile)
        span = np.repeat(np.arange(len(each)), each)
        within = (np.arange(len(span)) - np.repeat(np.cumsum(each) - each, each)) * tile
        before = np.cumsum(spans.cells) - spans.cells  # of the span, among all spans
        group = spans.group[span]
        group_before = np.cumsum(group_cells) - group_cells
        first = before[span] + within - group_before[group]
        count = np.minimum(spans.cells[span] - within, tile)
        offsets = np.searchsorted(group, np.arange(len(types) + 1))
        flat_starts = np.asarray(starts, dtype=np.int64)
        tensors, slot = np.unique(spans.tensor, return_inverse=True)
        reach = np.zeros(len(tensors), np.int64)
        np.maximum.at(reach, slot, spans.start + spans.cells)

        def move(values: npt.NDArray[Any], dtype: torch.dtype) -> torch.Tensor:
            return torch.from_numpy(np.ascontiguousarray(values)).to(device=device, dtype=dtype)

        return cls(
            width=widths.pop(),
            tile=tile,
            types=tuple(types),
            group_cells=group_cells,
            tensors=tensors,
            reach=reach,
            tensor=move(slot[span], torch.int32),
            start=move(spans.start[span] + within, torch.int64),
            count=move(count, torch.int32),
            group=move(group, torch.int32),
            first=move(first, torch.int32),
            flat=move(flat_starts[group] + first, torch.int64),
            offsets=move(offsets, torch.int64),
            host_offsets=offsets,
            starts=move(flat_starts, torch.int64),
            is_float=move(np.array([t.is_float for t in types]), torch.int32),
        )

    def over(self, tensors: Sequence[torch.Tensor]) -> Tiling:
        """Lay the tiles over tensors, by the spans' numbers; tensors that no span names are not looked at.

        A tensor of twice the cells' width holds float32 to be rounded to BF16 (``diff``, ``copy``). The host works by
        tensor, the device by tile, on the current stream; nobody waits for it.

        Raises:
            ValueError: a tensor is not contiguous, on another device, or its elements have the wrong width.
        """
        base, scale = np.zeros((2, len(self.tensors)), np.int64)
        for slot, (number, reach) in enumerate(zip(self.tensors.tolist(), self.reach.tolist(), strict=True)):
            tensor = tensors[number]
            base[slot], scale[slot] = tensor.data_ptr(), tensor.element_size()
            if not tensor.is_contiguous():
                raise ValueError(f"tensor {number} is not contiguous: the cells of a tile must lie in a row")
            if tensor.device.type != self.device.type:
                raise ValueError(f"tensor {number} is on {tensor.device}, the tiles on {self.device}")
            if tensor.numel() < reach:
                raise ValueError(f"tensor {number} has {tensor.numel()} cells, the tiles reach to {reach}")
            if scale[slot] != self.width and (self.width, tensor.dtype) != (2, torch.float32):
                raise ValueError(f"tensor {number} has {tensor.dtype} elements, the cells are {self.width} bytes wide")
        bases, scales = (part.index_select(0, self.tensor) for part in upload(self.device, base, scale))
        return Tiling(
            tiles=self,
            address=bases + scales * self.start,
            wide=(scales != self.width).int(),
            any_wide=bool((scale != self.width).any()),
            tensors=tuple(tensors),
        )

    def packed(self, cells: torch.Tensor) -> Tiling:
        """Lay the tiles over one tensor that has all groups end to end.

        Raises:
            ValueError: it does not hold them.
        """
        if cells.numel() < self.group_cells.sum() or cells.element_size() != self.width or not cells.is_contiguous():
            raise ValueError(f"{cells.numel()} {cells.dtype} elements do not hold {self.group_cells.sum()} cells")
        (before,) = upload(self.device, np.cumsum(self.group_cells) - self.group_cells)
        address = cells.data_ptr() + self.width * (before[self.group] + self.first)
        return Tiling(self, address, torch.zeros_like(self.count), False, (cells,))


@dataclass(frozen=True, slots=True)
class Tiling:
    """Tiles and where their cells are; keeps the tensors alive.

    Attributes:
        tiles: the cut.
        address, int64[T]: of each tile's first cell, in bytes.
        wide, int32[T]: whether the tile's memory is float32, to be rounded to BF16 when it is read.
        any_wide: whether there is such a tile.
        tensors: that the addresses point into.
    """

    tiles: Tiles
    address: torch.Tensor
    wide: torch.Tensor
    any_wide: bool
    tensors: tuple[torch.Tensor, ...]
