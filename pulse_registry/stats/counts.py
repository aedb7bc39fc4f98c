"""Counts of one step, and of a window of steps: exact numbers of cells, by tensor of the layout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pulse_kernels import Cells

Counts = npt.NDArray[np.int64]
WINDOWS = (2, 4, 8, 16, 32)
"""Lengths of windows, in versions: one of ``k`` versions begins at a multiple of ``k``."""


@dataclass(frozen=True, slots=True)
class ExponentCounts:
    """Cells of one float dtype by exponent, as their bits have it (of F64 the upper 8 of its 11), 256 numbers each.

    Attributes:
        cells: at the step's base.
        changed: of these, those that the step changes.
    """

    cells: Counts
    changed: Counts


@dataclass(frozen=True, slots=True)
class StepStats:
    """What changed from version ``base`` to version ``target``, the next one that is not retired.

    Attributes:
        layout: id of the layout of both, whose tensors the counts are by.
        changed: cells that differ, as bits, by tensor.
        again: of these, those that the step before changed too; None where that is not known.
        flipped: of these, those of float dtypes whose sign differs; None without the weights.
        sizes: by dtype: how many moved by 1 step of the dtype, by 2 to 3, by 4 to 7, and so on; a step leads from one
            pattern to the next in the order of the values.
        exponents: by float dtype; None without the weights.
    """

    base: int
    target: int
    layout: str
    changed: Counts
    again: Counts | None
    flipped: Counts | None
    sizes: Mapping[str, Counts]
    exponents: Mapping[str, ExponentCounts] | None


@dataclass(frozen=True, slots=True)
class WindowStats:
    """What changed over ``target - base`` versions, none of which is retired.

    Attributes:
        layout: of all of them.
        changed: cells that differ between the two ends, by tensor.
        touched: cells that some step between them changes: those that are not among ``changed`` went and came back.
    """

    base: int
    target: int
    layout: str
    changed: Counts
    touched: Counts


def sizes_of(distance: Cells) -> Counts:
    """Count distances by how far they lead, either way: entry ``n`` of those from ``2**n`` to ``2**(n + 1) - 1``."""
    bits = 8 * distance.dtype.itemsize
    signed = distance.view(f"<i{distance.dtype.itemsize}")
    far = np.abs(signed).view(distance.dtype)  # the most negative one stays as it is, which is its magnitude
    reached = np.zeros(bits + 1, np.int64)
    for power in range(bits):
        reached[power] = np.count_nonzero(far >= distance.dtype.type(1 << power))
        if not reached[power]:
            break
    return reached[:-1] - reached[1:]
