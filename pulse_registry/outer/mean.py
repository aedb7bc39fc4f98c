"""The mean of a round's contributions: levels of several exponents and weights, summed exactly in any order.

Float32 values are summed in the order in which they are given, each operation rounded by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

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
_PIECE: Final = 1 << 17
"""Cells whose sums are made, and used, before those of the next: so many stay in the cache."""


def added_up(loops: OuterLoops, cells: int, parts: Sequence[GroupLevels], exponent: int) -> tuple[Index, Totals]:
    """Return (index, total) of a group of so many cells: the weighted levels in steps of ``2 ** exponent``, added up.

    ``exponent`` is the least of the round. Zeros drop out. The same for any order of the parts.
    """
    total: npt.NDArray[np.int64] = np.zeros(cells, np.int64)
    for part in parts:
        loops.add(total, part.index, part.levels, part.weight << (part.exponent - exponent))
    index = np.flatnonzero(total)
    return index.astype(np.uint32), total[index]


def mean_of(
    loops: OuterLoops, cells: int, parts: Sequence[Part] | GroupTotals, exponent: int, weight: int
) -> tuple[Index, Floats]:
    """Return (index, mean) of a group of so many cells; zeros drop out.

    Args:
        loops: compute.
        cells: of the group.
        parts: of all contributions that have some there: all levels, or all values. Values are added up one after the
            other, as they come; the order of levels says nothing. Or their totals.
        exponent: the least of the round's contributions.
        weight: of all members of the round, those that sent nothing included.
    """
    if isinstance(parts, GroupTotals):
        return parts.index, _scaled(parts.totals, exponent, weight)
    levels = [part for part in parts if isinstance(part, GroupLevels)]
    if len(levels) == len(parts):
        index, total = added_up(loops, cells, levels, exponent)
        return index, _scaled(total, exponent, weight)
    sums: Floats = np.zeros(cells, np.float32)
    for part in parts:
        if isinstance(part, GroupLevels):
            raise TypeError("levels and float32 values have no common sum")
        sums[part.index] += part.values * np.float32(part.weight)
    found = np.flatnonzero(sums)
    return found.astype(np.uint32), sums[found] / np.float32(weight)


def step_group(
    loops: OuterLoops,
    theta: Floats,
    momentum: Floats,
    parts: Sequence[Part] | GroupTotals,
    exponent: int,
    weight: int,
    rates: OuterRates,
) -> None:
    """Make a round's outer step in one group, in place; see ``mean_of``.

    Args:
        loops: compute.
        theta: float32 weights of the group.
        momentum: of the same cells.
        parts: of all contributions that have some there; or their totals.
        exponent: the least of them.
        weight: of all members of the round.
        rates: of the round.
    """
    if isinstance(parts, GroupTotals):
        loops.step(theta, momentum, *mean_of(loops, len(theta), parts, exponent, weight), rates)
        return
    bounds = np.arange(0, len(theta) + _PIECE, _PIECE)
    places = [np.searchsorted(part.index, bounds).tolist() for part in parts]
    for piece, start in enumerate(bounds[:-1].tolist()):
        here = slice(start, start + _PIECE)
        inside = [
            _within(part, slice(*ends[piece : piece + 2]), start) for part, ends in zip(parts, places, strict=True)
        ]
        index, gradient = mean_of(loops, len(theta[here]), inside, exponent, weight)
        loops.step(theta[here], momentum[here], index, gradient, rates)


def _within(part: Part, entries: slice, start: int) -> Part:
    """Return some entries of a part, of the cells from ``start`` on."""
    index = part.index[entries] - np.uint32(start)
    if isinstance(part, GroupLevels):
        return GroupLevels(index, part.levels[entries], part.exponent, part.weight)
    return GroupValues(index, part.values[entries], part.weight)


def _scaled(total: Totals, exponent: int, weight: int) -> Floats:
    scaled: Floats = total.astype(np.float32) * np.float32(np.ldexp(1.0, exponent) / weight)
    return scaled
