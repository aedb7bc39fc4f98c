"""Cells: tensor elements as raw bit patterns, and what a dtype means for them.

A cell is an unsigned integer of the element's width. Comparison, storage and coding work on cells alone; a dtype
adds two things: the *order* of the bit patterns, in which neighbouring values are neighbours, and the *class* of a
pattern, which the ``class`` coder uses as context.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Cells: TypeAlias = npt.NDArray[Any]
"""1-D, C-contiguous, dtype uint8, uint16, uint32 or uint64."""
Index: TypeAlias = npt.NDArray[np.uint32]
"""1-D strictly increasing cell positions below 2**32."""


@dataclass(frozen=True, slots=True)
class CellType:
    """What the coders need to know of a dtype.

    Attributes:
        name: the safetensors dtype name.
        width: bytes a cell: 1, 2, 4 or 8.
        is_float: sign-magnitude patterns, ordered by ``order = v ^ (all ones if sign else sign bit)``; otherwise the
            order is the pattern itself (a distance mod 2**bits does not depend on signedness).
        class_shift, class_mask: ``class = (v >> class_shift) & class_mask``: for floats the (top 8 bits of the)
            exponent, for the rest always 0.
    """

    name: str
    width: int
    is_float: bool
    class_shift: int
    class_mask: int

    @property
    def dtype(self) -> np.dtype[Any]:
        """NumPy dtype of the cells."""
        return np.dtype(f"<u{self.width}")

    @property
    def bits(self) -> int:
        """Bits a cell."""
        return 8 * self.width

    def class_of(self, cells: Cells) -> npt.NDArray[np.uint8]:
        """Return the class of each cell, uint8 in the shape of ``cells``."""
        shift, mask = self.dtype.type(self.class_shift), self.dtype.type(self.class_mask)
        return np.asarray((cells >> shift) & mask, dtype=np.uint8)


CELL_TYPES: dict[str, CellType] = {
    t.name: t
    for t in (
        CellType("F64", 8, True, 55, 0xFF),
        CellType("I64", 8, False, 0, 0),
        CellType("U64", 8, False, 0, 0),
        CellType("F32", 4, True, 23, 0xFF),
        CellType("I32", 4, False, 0, 0),
        CellType("U32", 4, False, 0, 0),
        CellType("BF16", 2, True, 7, 0xFF),
        CellType("F16", 2, True, 10, 0x1F),
        CellType("I16", 2, False, 0, 0),
        CellType("U16", 2, False, 0, 0),
        CellType("F8_E4M3", 1, True, 3, 0x0F),
        CellType("F8_E5M2", 1, True, 2, 0x1F),
        CellType("I8", 1, False, 0, 0),
        CellType("U8", 1, False, 0, 0),
        CellType("BOOL", 1, False, 0, 0),
        CellType("F8_E8M0", 1, False, 0, 0),  # a power of two: no sign, and its pattern is its order
        CellType("F4", 1, False, 0, 0),  # two elements in a cell
    )
}
"""By safetensors dtype name."""
