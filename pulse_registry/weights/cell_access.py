"""Access to the cells of one tensor in a worker's memory, also where they do not lie end to end."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from pulse_kernels import Cells
from pulse_schemas import Dtype

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


class WidenedBF16:
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


class WidenedF16:
    """F16 cells in an array of F32, of any strides: each as the same number, NaN with its sign and payload."""

    def __init__(self, array: npt.NDArray[np.uint32]) -> None:
        self._memory = _memory(array)

    def read(self, where: Where) -> Cells:
        """Return the F16 that each of some cells is; where one is none, some other."""
        return _narrow(self._memory[where])

    def write(self, where: Where, cells: Cells) -> None:
        """Store some cells."""
        self._memory[where] = _wide_f16()[cells]

    def exact(self, where: Where) -> bool:
        """Whether each cell is one of F16: what an optimizer has changed is none."""
        cells = self._memory[where]
        return np.array_equal(_wide_f16()[_narrow(cells)], cells)


WIDENED: Final[Mapping[tuple[Dtype, Dtype], Callable[[npt.NDArray[Any]], Place]]] = MappingProxyType(
    {("BF16", "F32"): WidenedBF16, ("F16", "F32"): WidenedF16}
)
"""How cells of a version's dtype lie in tensors of a wider one, which holds each of them exactly, by both."""


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


@functools.cache
def _wide_f16() -> npt.NDArray[np.uint32]:
    """Return the F32 of each F16, as bits; a cast would change what a NaN carries."""
    every = np.arange(1 << 16, dtype=np.uint16)
    wide = every.view(np.float16).astype(np.float32).view(np.uint32)
    cells = every.astype(np.uint32)
    nan = (cells << 16 & 0x8000_0000) | 0x7F80_0000 | (cells & 0x3FF) << 13
    return np.where(cells & 0x7FFF > 0x7C00, nan, wide)


def _narrow(wide: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint16]:
    """Return the F16 of each F32 that is exactly one, as bits; of another, some F16."""
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        cells = np.asarray(wide).view(np.float32).astype(np.float16).view(np.uint16)
    nan = (wide >> 16 & 0x8000) | 0x7C00 | (wide >> 13 & 0x3FF)
    return np.where(wide & 0x7FFF_FFFF > 0x7F80_0000, nan, cells).astype(np.uint16)
