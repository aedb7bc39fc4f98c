"""Places: how the cells of one tensor lie in a worker's memory, where they are not simply end to end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from pulse_kernels import Cells

Where = slice | npt.NDArray[np.int64]
"""Cells of one tensor, by their flat indices in it."""


class Place(Protocol):
    """The cells of one tensor."""

    def read(self, where: Where) -> Cells:
        """Return some cells; they are not to be changed."""
        ...

    def write(self, where: Where, cells: Cells) -> None:
        """Store some cells."""
        ...

    def exact(self, where: Where) -> bool:
        """Whether the memory holds there what ``read`` returns, and nothing beside it."""
        ...


class Strided:
    """Cells in an array of any strides."""

    def __init__(self, array: npt.NDArray[Any]) -> None:
        self._memory = _memory(array)

    def read(self, where: Where) -> Cells:
        """Return some cells: a view of contiguous ones."""
        cells: Cells = self._memory[where]
        return cells

    def write(self, where: Where, cells: Cells) -> None:
        """Store some cells."""
        self._memory[where] = cells

    def exact(self, where: Where) -> bool:
        """Whether the memory holds what ``read`` returns, which is so."""
        return True


class Widened:
    """BF16 cells in an array of F32, of any strides: the upper half of each, above a lower half of zeros.

    So each is the same number in F32, with the sign of a zero and the payload of a NaN.
    """

    def __init__(self, array: npt.NDArray[np.uint32]) -> None:
        self._memory = _memory(array)

    def read(self, where: Where) -> Cells:
        """Return the upper halves of some cells."""
        cells: npt.NDArray[np.uint32] = self._memory[where]
        return (cells >> np.uint32(16)).astype(np.uint16)

    def write(self, where: Where, cells: Cells) -> None:
        """Store some cells, with lower halves of zeros."""
        self._memory[where] = cells.astype(np.uint32) << np.uint32(16)

    def exact(self, where: Where) -> bool:
        """Whether the lower halves are zeros: what an optimizer has changed is no BF16."""
        return not (self._memory[where] & np.uint32(0xFFFF)).any()


class Replicas:
    """The same cells in several places: of a tensor that is tied in the version, and not in the model."""

    def __init__(self, places: Sequence[Place]) -> None:
        self._places = places

    def read(self, where: Where) -> Cells:
        """Return some cells of the first."""
        return self._places[0].read(where)

    def write(self, where: Where, cells: Cells) -> None:
        """Store some cells in all."""
        for place in self._places:
            place.write(where, cells)

    def exact(self, where: Where) -> bool:
        """Whether all agree."""
        cells = self.read(where)
        return all(place.exact(where) and np.array_equal(place.read(where), cells) for place in self._places)


def _memory(array: npt.NDArray[Any]) -> Any:
    return array.reshape(-1) if array.flags.c_contiguous else array.flat
