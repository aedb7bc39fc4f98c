"""Exponents of contributions: a level is so many times a power of two, and each member chooses its own.

Sums are exact in 64 bits: 15 of a level, 24 between the largest and the least exponent of a round, 16 of a weight, 8 of
256 members.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from pulse_schemas.outer import LEAST_EXPONENT, MOST_EXPONENT

WINDOW: Final = 12
"""How far an exponent may be from the round's middle one."""
_FINEST: Final = 0.25
"""Of the root mean square, at gain 1 or below: where few cells pass, and seldom, those of level 0 wait too long."""


def middle(exponents: Iterable[int], before: int) -> int:
    """Return the exponent about which those of the next round lie: the lower median of a round's.

    Args:
        exponents: of the round's contributions that have entries.
        before: the middle one until now, which stays if there are none.
    """
    found = sorted(exponents)
    return found[(len(found) - 1) // 2] if found else before


def chosen(count: int, square: float, gain: float | None, middle: int) -> int:
    """Return a contribution's exponent: of the power of two next to the root mean square of what the gate passes.

    At gains below 4, next to gain / 4 of it, and to no less than a quarter.

    Args:
        count: cells that the gate passes.
        square: sum of their squares.
        gain: of the gate; None: all cells pass.
        middle: of the round; the exponent is cut to the window about it, and to what records can say.
    """
    wanted = middle
    if count and square:
        share = 1.0 if gain is None else min(max(gain, 1.0) * _FINEST, 1.0)
        mantissa, wanted = math.frexp(math.sqrt(square / count) * share)
        wanted -= mantissa < math.sqrt(0.5)  # no logarithm, whose last bit is each machine's own: ranks must agree
    return min(max(wanted, middle - WINDOW, LEAST_EXPONENT), middle + WINDOW, MOST_EXPONENT)
