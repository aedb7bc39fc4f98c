"""Finding cells that are NaN or infinite, by their bits: no arithmetic, so that no NaN raises a flag."""

from __future__ import annotations

import numpy as np

from pulse_kernels.cells import Cells, CellType

NONFINITE_FROM: dict[str, int] = {
    "F64": 0x7FF0_0000_0000_0000,
    "F32": 0x7F80_0000,
    "BF16": 0x7F80,
    "F16": 0x7C00,
    "F8_E5M2": 0x7C,
    "F8_E4M3": 0x7F,  # the one pattern that is NaN; it has no infinities, and 0x78 to 0x7E are numbers
    "F8_E8M0": 0xFF,  # NaN; it has no infinities and no sign
}
"""By dtype, the least pattern without its sign that is no finite number; all above it are none. The rest has none."""

_BLOCK = 1 << 16
"""Cells looked at together: what the test writes stays in a core's cache."""


def magnitude_mask(cell_type: CellType) -> int:
    """Return the bits of a pattern but its sign, where it has one."""
    return (1 << (cell_type.bits - cell_type.is_float)) - 1


def first_nonfinite(cells: Cells, cell_type: CellType) -> int | None:
    """Return the place of the first cell that is NaN or infinite; None if there is none, or the dtype has none."""
    least = NONFINITE_FROM.get(cell_type.name)
    if least is None:
        return None
    mask, limit = cells.dtype.type(magnitude_mask(cell_type)), cells.dtype.type(least)
    for start in range(0, len(cells), _BLOCK):
        wrong = (cells[start : start + _BLOCK] & mask) >= limit
        if wrong.any():
            return start + int(np.argmax(wrong))
    return None
