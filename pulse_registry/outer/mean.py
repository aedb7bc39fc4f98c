"""The mean of a round's contributions: levels of several exponents and weights, summed exactly in any order.

Float32 values are summed in the order in which they are given, each operation rounded by itself.
"""

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


@dataclass(frozen=True, slots=True)
class GroupValues:
    """One member's float32 values of one group: which cells, the value of each, and the member's weight."""

    index: Index
    values: Floats
    weight: int


@dataclass(frozen=True, slots=True)
class GroupTotals:
    """The levels of all members of one group, added up: which cells, and the total of each."""

    index: Index
    totals: Totals


Part = GroupLevels | GroupValues
"""What one member has sent of one group."""


def added_up(loops: OuterLoops, cells: int, parts: Sequence[GroupLevels], exponent: int) -> tuple[Index, Totals]:
    """Return (index, total) of a group of so many cells: the weighted levels in steps of ``2 ** exponent``, added up.

    ``exponent`` is the least of the round. Zeros drop out. The same for any order of the parts.
    """
    total: npt.NDArray[np.int64] = np.zeros(cells, np.int64)
    for part in parts:
        loops.add(total, part.index, part.levels, part.weight << (part.exponent - exponent))
    index = np.flatnonzero(total)
    return index.astype(np.uint32), total[index]


def step_group(
    loops: OuterLoops,
    theta: Floats,
    momentum: Floats,
    parts: Sequence[Part] | GroupTotals,
    exponent: int,
    weight: int,
    rates: OuterRates,
) -> None:
    """Make a round's outer step in one group, in place, by the mean of what was sent.

    Args:
        loops: compute.
        theta: float32 weights of the group.
        momentum: of the same cells.
        parts: of all contributions that have some there: all levels, or all values. Values are added up one after the
            other, as they come; the order of levels says nothing. Or their totals.
        exponent: the least of the round's contributions.
        weight: of all members of the round, those that sent nothing included.
        rates: of the round.
    """
    scale = np.float32(np.ldexp(1.0, exponent) / weight)
    if isinstance(parts, GroupTotals):
        loops.step(theta, momentum, parts.index, parts.totals.astype(np.float32) * scale, rates)
        return
    levels = [part for part in parts if isinstance(part, GroupLevels)]
    values = [part for part in parts if isinstance(part, GroupValues)]
    if levels and values:
        raise TypeError("levels and float32 values have no common sum")
    if values:
        loops.step(theta, momentum, *_mean(len(theta), values, weight), rates)
        return
    weighted = [(part.index, part.levels, part.weight << (part.exponent - exponent)) for part in levels]
    loops.fold(theta, momentum, weighted, float(scale), rates)


def _mean(cells: int, parts: Sequence[GroupValues], weight: int) -> tuple[Index, Floats]:
    """Return (index, mean) of float32 values of a group of so many cells; zeros drop out."""
    sums: Floats = np.zeros(cells, np.float32)
    for part in parts:
        sums[part.index] += part.values * np.float32(part.weight)
    found = np.flatnonzero(sums).astype(np.uint32)
    return found, sums[found] / np.float32(weight)
