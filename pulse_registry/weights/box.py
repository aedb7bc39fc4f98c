"""Box of a tensor: the cells of a rank's shard, as offsets and sizes along the tensor's dimensions.

A box is kept in its simplest form: dimensions that lie end to end in memory are one. So whole rows, one expert of many,
and a run of the flattened tensor all have a single dimension, and equal cells make equal boxes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from pulse_kernels import Cells

Positions = npt.NDArray[np.int64]
"""Flat indices of cells, in row-major order."""


@dataclass(frozen=True, slots=True)
class Box:
    """Cells ``offsets`` to ``offsets + sizes`` of a tensor, along each dimension of ``shape``; equal as sets of cells.

    Two numberings meet here: a cell's flat index in the tensor, and its *local* index, row-major within the box. Both
    increase together, so that the cells between two flat indices are a run of local ones.
    """

    shape: tuple[int, ...]
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    @classmethod
    def of(cls, shape: Sequence[int], offsets: Sequence[int], sizes: Sequence[int]) -> Self:
        """Return the box in its simplest form.

        Raises:
            ValueError: it does not lie within the shape.
        """
        if not len(shape) == len(offsets) == len(sizes):
            raise ValueError(f"offsets {list(offsets)} and sizes {list(sizes)} are not those of a shape {list(shape)}")
        if shape and sizes[1:] == shape[1:] and not any(offsets[1:]) and 0 not in sizes:  # whole rows, which most are
            inside, first, count = math.prod(shape[1:]), offsets[0], sizes[0]
            if first >= 0 < count and first + count <= shape[0]:
                return cls((shape[0] * inside,), (first * inside,), (count * inside,))
        wholes, starts, counts = [1], [0], [1]
        for whole, at, size in zip(shape, offsets, sizes, strict=True):
            if at < 0 or size < 0 or at + size > whole:
                raise ValueError(f"cells {_text(offsets, sizes)} are not all within a shape {list(shape)}")
            if size == whole or counts[-1] == 1:
                wholes[-1], starts[-1], counts[-1] = wholes[-1] * whole, starts[-1] * whole + at, counts[-1] * size
            else:
                wholes.append(whole)
                starts.append(at)
                counts.append(size)
        if 0 in sizes:
            return cls((math.prod(shape),), (0,), (0,))
        return cls(tuple(wholes), tuple(starts), tuple(counts))

    @classmethod
    def run(cls, cells: int, start: int, size: int) -> Self:
        """Return a run of a flattened tensor of so many cells.

        Raises:
            ValueError: it does not lie within the tensor.
        """
        return cls.of((cells,), (start,), (size,))

    @property
    def cells(self) -> int:
        """How many cells."""
        return math.prod(self.sizes)

    @property
    def whole(self) -> bool:
        """Whether it is all of the tensor."""
        return self.sizes == self.shape

    @property
    def start(self) -> int | None:
        """The flat index of its first cell, if all lie end to end; else None."""
        return self.offsets[0] if len(self.shape) == 1 else None

    def below(self, flat: int) -> int:
        """Return how many of its cells come before a flat index: the local index of the first one that does not."""
        count = 0
        for (whole, inside), at, size in zip(self._strides(), self.offsets, self.sizes, strict=True):
            here, flat = divmod(flat, whole)
            if here < at:
                return count
            if here >= at + size:
                return count + size * inside
            count += (here - at) * inside
        return count

    def to_flat(self, local: Positions) -> Positions:
        """Return the flat indices in the tensor of cells by their local ones."""
        *outer, _ = self._strides()
        flat, rest = np.zeros(len(local), np.int64), local
        for (whole, inside), at in zip(outer, self.offsets[:-1], strict=True):
            here = rest // inside  # NumPy's divmod is many times slower than a division by one number
            rest = rest - here * inside
            flat += (here + at) * whole
        return flat + rest + self.offsets[-1]

    def flat_of(self, local: int) -> int:
        """Return the flat index in the tensor of one cell by its local one."""
        *outer, _ = self._strides()
        flat = self.offsets[-1]
        for (whole, inside), at in zip(outer, self.offsets[:-1], strict=True):
            here, local = divmod(local, inside)
            flat += (here + at) * whole
        return flat + local

    def to_local(self, flat: Positions) -> tuple[npt.NDArray[np.intp], Positions]:
        """Return which of some flat indices, by their place in the list, are of the box, and their local indices."""
        inside, local, rest = np.ones(len(flat), bool), np.zeros(len(flat), np.int64), flat
        for (whole, cells), at, size, length in zip(self._strides(), self.offsets, self.sizes, self.shape, strict=True):
            if whole > 1:
                here = rest // whole  # NumPy's divmod is many times slower than a division by one number
                rest = rest - here * whole
            else:
                here = rest
            if size < length:
                here = here - at if at else here
                inside &= here.view(np.uint64) < size  # what is below 0 is large
            local += here * cells if cells > 1 else here
        chosen = np.flatnonzero(inside)
        return chosen, local[chosen]

    def cut(self, start: int, cells: Cells) -> Cells:
        """Return its cells among a run of the flattened tensor's that begins at ``start``: a view or a copy, 1-D."""
        offset, size = self.offsets[-1], self.sizes[-1]
        if len(self.shape) == 1:
            return cells[max(offset - start, 0) : max(offset + size - start, 0)]
        row = self.shape[-1]
        found: list[Cells] = []
        first, at = divmod(start, row)
        if at:  # the end of a row
            found.append(self._of_row(first, at, cells[: row - at]))
            cells, first = cells[row - at :], first + 1
        rows = len(cells) // row
        if rows:
            above = Box(self.shape[:-1], self.offsets[:-1], self.sizes[:-1])
            full = cells[: rows * row].reshape(rows, row)[:, offset : offset + size]
            chosen, _ = above.to_local(np.arange(first, first + rows, dtype=np.int64))
            found.append((full if len(chosen) == rows else full[chosen]).reshape(-1))
        if len(cells) > rows * row:  # the beginning of one
            found.append(self._of_row(first + rows, 0, cells[rows * row :]))
        return np.concatenate(found) if found else cells[:0]

    def _of_row(self, row: int, at: int, cells: Cells) -> Cells:
        """Return its cells among those of one row from ``at`` on."""
        inside, _ = Box(self.shape[:-1], self.offsets[:-1], self.sizes[:-1]).to_local(np.array([row]))
        if not len(inside):
            return cells[:0]
        offset, size = self.offsets[-1], self.sizes[-1]
        return cells[max(offset - at, 0) : max(offset + size - at, 0)]

    def meets(self, other: Box) -> bool:
        """Whether any cell is in both; two boxes of one tensor."""
        if not self.cells or not other.cells:
            return False
        if self.shape == other.shape:
            pairs = zip(self.offsets, self.sizes, other.offsets, other.sizes, strict=True)
            return all(a < c + d and c < a + b for a, b, c, d in pairs)
        few, many = sorted((self, other), key=lambda box: box.cells)
        return any(many.below(stop) > many.below(start) for start, stop in few._runs())

    def _runs(self) -> Iterator[tuple[int, int]]:
        """Yield the runs of the flattened tensor that it is made of, as flat starts and stops."""
        row = self.sizes[-1]
        for start in self.to_flat(np.arange(0, self.cells, row, dtype=np.int64)).tolist():
            yield start, start + row

    def _strides(self) -> list[tuple[int, int]]:
        """Return, of each dimension, the cells of one step along it: of the tensor, and of the box."""
        strides = [(1, 1)]
        for whole, size in zip(self.shape[:0:-1], self.sizes[:0:-1], strict=True):
            strides.append((strides[-1][0] * whole, strides[-1][1] * size))
        return strides[::-1]


def _text(offsets: Sequence[int], sizes: Sequence[int]) -> str:
    return f"[{', '.join(f'{at}:{at + size}' for at, size in zip(offsets, sizes, strict=True))}]"
