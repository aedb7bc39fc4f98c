"""The mean of a round's contributions: levels of several exponents and weights, summed exactly in any order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pulse_kernels.cells import Index
from pulse_kernels.protocol import Floats, Levels, OuterLoops, OuterRates, Totals


@dataclass(frozen=True, slots=True)
class GroupLevels:
    """One member's levels of one group.

    Attributes:
        index: which cells.
        levels: of each, none of them 0.
        exponent: a level is so many times 2 to this.
        weight: of the member.
    """

    index: Index
    levels: Levels
    exponent: int
    weight: int


def added_up(cells: int, parts: Sequence[GroupLevels], exponent: int) -> tuple[Index, Totals]:
    """Return (index, total) of a group of so many cells: the weighted levels in steps of ``2 ** exponent``, added up.

    ``exponent`` is the least of the round. Zeros drop out. The same for any order of the parts.
    """
    total: npt.NDArray[np.int64] = np.zeros(cells, np.int64)
    for part in parts:
        total[part.index] += part.levels.astype(np.int64) * (part.weight << (part.exponent - exponent))
    index = np.flatnonzero(total)
    return index.astype(np.uint32), total[index]


def step_group(
    loops: OuterLoops,
    theta: Floats,
    momentum: Floats,
    parts: Sequence[GroupLevels],
    exponent: int,
    weight: int,
    rates: OuterRates,
) -> None:
    """Make a round's outer step in one group, in place.

    Args:
        loops: compute.
        theta: float32 weights of the group.
        momentum: of the same cells.
        parts: of all contributions that have levels there.
        exponent: the least of the round's contributions.
        weight: of all members of the round, those that sent nothing included.
        rates: of the round.
    """
    index, total = added_up(len(theta), parts, exponent)
    loops.step(theta, momentum, index, total, float(np.ldexp(1.0, exponent) / weight), rates)
