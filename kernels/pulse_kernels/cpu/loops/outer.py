"""Numba loops of the outer optimizer: pseudo-gradients collected, gated, taken from the residual; the outer step.

Each operation is rounded to float32 by itself: numba contracts nothing unless it is told to.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = Any
_F32, _U32 = np.float32, np.uint32
_LEVELS = np.float32(32767)


def _fires(theta: Any, residual: Any, gain: Any) -> Any:
    """Tell whether a weight and the one that it may move to round to other BF16 patterns.

    Neither is NaN, but where a residual of 0 meets an infinite gain: that one's pattern is no finite weight's.
    """
    here = _F32(theta).view(_U32)
    there = _F32(theta - _F32(gain * residual)).view(_U32)
    here = (here + _U32(0x7FFF) + ((here >> _U32(16)) & _U32(1))) >> _U32(16)
    there = (there + _U32(0x7FFF) + ((there >> _U32(16)) & _U32(1))) >> _U32(16)
    return here != there


def outer_collect(theta: Array, local: Array, residual: Array) -> Any:
    """Add pseudo-gradients; return whether all sums are finite."""
    worst = _U32(0)
    for k in range(len(theta)):
        found = _F32(residual[k] + _F32(theta[k] - local[k]))
        residual[k] = found
        worst = max(worst, found.view(_U32) & _U32(0x7FFFFFFF))
    return worst < _U32(0x7F800000)


def outer_square(theta: Array, residual: Array, gain: Any) -> tuple[int, float]:
    """Return how many cells fire, and the sum of their squares."""
    count, total = 0, 0.0
    for k in range(len(theta)):
        if _fires(theta[k], residual[k], gain):
            count += 1
            total += np.float64(residual[k]) * np.float64(residual[k])
    return count, total


def outer_gate(
    theta: Array, residual: Array, gain: Any, inverse: Any, start: int, index: Array, levels: Array
) -> tuple[int, int]:
    """Write what is sent; return (how many, first cell not looked at: the buffer is full)."""
    n, k = 0, start
    while k < len(theta) and n < len(index):
        if _fires(theta[k], residual[k], gain):
            level = np.rint(_F32(residual[k] * inverse))
            level = min(max(level, -_LEVELS), _LEVELS)
            if level != 0:
                index[n] = k
                levels[n] = np.int16(level)
                n += 1
        k += 1
    return n, k


def outer_passed(theta: Array, residual: Array, gain: Any, index: Array) -> int:
    """Write the cells that fire and have a residual; return how many."""
    n = 0
    for k in range(len(theta)):
        if residual[k] != 0 and _fires(theta[k], residual[k], gain):
            index[n] = k
            n += 1
    return n


def outer_settle(residual: Array, index: Array, levels: Array, unit: Any) -> None:
    """Take what was sent from the residual."""
    for k in range(len(index)):
        residual[index[k]] = _F32(residual[index[k]] - _F32(_F32(levels[k]) * unit))


def outer_step(theta: Array, momentum: Array, index: Array, given: Array, rate: Any, decay: Any) -> None:
    """Make a step; between two cells of the index the gradient is 0."""
    n = 0
    for k in range(len(theta)):
        gradient = _F32(0)
        if n < len(index) and index[n] == k:
            gradient = given[n]
            n += 1
        moved = _F32(_F32(decay * momentum[k]) + gradient)
        momentum[k] = moved
        theta[k] = _F32(theta[k] - _F32(rate * _F32(gradient + _F32(decay * moved))))
