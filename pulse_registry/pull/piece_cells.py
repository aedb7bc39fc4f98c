"""Cells of a keyframe's pieces: handed over as each piece comes, and those that a piece's end cuts once both parts are
there."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import numpy as np

from pulse_kernels import CELL_TYPES, Cells
from pulse_registry.weights.cell_space import Geometry

Take = Callable[[int, int, Cells], None]
"""Takes cells of a tensor from flat index ``start`` on: read-only, and only until it returns. From any thread."""


class PieceCells:
    """Hands the cells of checked pieces over; of a cell that a piece's end cuts, once both parts are there."""

    def __init__(self, geometry: Geometry, take: Take) -> None:
        self.geometry = geometry
        self._take = take
        self._mutex = threading.Lock()
        self._cut: dict[tuple[int, int], bytes] = {}  # the part of a cell that came first, by tensor and cell

    def over(self, data: memoryview, start: int, tensors: Sequence[tuple[int, int]]) -> None:
        """Hand over the cells of tensors, and where those begin, that lie in a shard's bytes from ``start`` on."""
        for tensor, at in tensors:
            cell_type, cells = CELL_TYPES[self.geometry.layout.tensors[tensor].dtype], self.geometry.sizes[tensor]
            width, begin, end = cell_type.width, start - at, start + len(data) - at
            first, last = max(0, -(-begin // width)), min(cells, end // width)
            if first < last:
                run = data[first * width - begin : last * width - begin]
                self._take(tensor, first, _cells(run, cell_type.dtype))
            if begin > 0 and begin % width:
                self._join(tensor, first - 1, b"", bytes(data[: first * width - begin]), cell_type.dtype)
            if last < cells and end % width:
                self._join(tensor, last, bytes(data[last * width - begin :]), b"", cell_type.dtype)

    def _join(self, tensor: int, cell: int, head: bytes, tail: bytes, dtype: np.dtype[np.unsignedinteger]) -> None:
        with self._mutex:
            other = self._cut.pop((tensor, cell), None)
            if other is None:
                self._cut[tensor, cell] = head or tail
                return
        self._take(tensor, cell, _cells(memoryview(head + other + tail), dtype))


def _cells(data: memoryview, dtype: np.dtype[np.unsignedinteger]) -> Cells:
    """Return bytes as cells that can't be written, aligned as the kernels need them."""
    cells = np.frombuffer(data.toreadonly(), dtype)
    if not cells.flags.aligned:
        cells = cells.copy()
        cells.flags.writeable = False
    return cells
