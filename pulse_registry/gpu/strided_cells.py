"""Cells of a tensor on a device that do not lie end to end: a view of a fused parameter's columns, for example."""

from __future__ import annotations

import math
from itertools import accumulate

import torch

from pulse_kernels.gpu.tiling import CELL_DTYPES


class StridedCells:
    """One tensor's cells, by their flat indices in it, wherever its strides put them; no two share memory."""

    def __init__(self, tensor: torch.Tensor) -> None:
        """Take a tensor of any strides."""
        self._cells = tensor.view(CELL_DTYPES[tensor.element_size()])
        reach = sum((length - 1) * step for length, step in self._dims()) + 1 if tensor.numel() else 0
        self._memory = torch.as_strided(self._cells, (reach,), (1,))

    @property
    def tensor(self) -> torch.Tensor:
        """The cells, as the integers that they travel as; of the tensor's shape and strides."""
        return self._cells

    def offsets(self, flat: torch.Tensor) -> torch.Tensor:
        """Return where in memory cells are, by their flat indices: what ``gather`` and ``scatter`` take."""
        found = torch.zeros_like(flat)
        inside = [*accumulate((length for length, _ in self._dims()[:0:-1]), initial=1, func=lambda a, b: a * b)]
        for (_, step), cells in zip(self._dims(), reversed(inside), strict=True):
            here = torch.div(flat, cells, rounding_mode="floor")
            found += here * step
            flat = flat - here * cells
        return found

    def gather(self, offsets: torch.Tensor) -> torch.Tensor:
        """Return the cells at these places in memory."""
        return self._memory[offsets]

    def scatter(self, offsets: torch.Tensor, cells: torch.Tensor) -> None:
        """Store cells at these places in memory."""
        self._memory[offsets] = cells

    def run(self, start: int, stop: int) -> torch.Tensor:
        """Return a copy of the cells ``start`` to ``stop``, end to end; it takes the memory of some rows more."""
        row = math.prod(self._cells.shape[1:])
        if not self._cells.ndim or not row:
            return self._cells.reshape(-1)[start:stop]
        first, last = start // row, -(-stop // row)
        return self._cells[first:last].reshape(-1)[start - first * row : stop - first * row]

    def fill(self, start: int, cells: torch.Tensor) -> None:
        """Store a run of cells from flat index ``start`` on."""
        stop, row = start + cells.numel(), math.prod(self._cells.shape[1:])
        first, last = (-(-start // row), stop // row) if self._cells.ndim and row else (0, 0)
        if first >= last:
            self._fill(start, cells)
            return
        head, body = first * row - start, (last - first) * row
        self._fill(start, cells[:head])
        self._cells[first:last].copy_(cells[head : head + body].view(last - first, *self._cells.shape[1:]))
        self._fill(last * row, cells[head + body :])

    def _fill(self, start: int, cells: torch.Tensor) -> None:
        """Store a part of a row."""
        flat = torch.arange(start, start + cells.numel(), dtype=torch.int64, device=cells.device)
        self.scatter(self.offsets(flat), cells)

    def _dims(self) -> list[tuple[int, int]]:
        return list(zip(self._cells.shape, self._cells.stride(), strict=True)) or [(1, 1)]
