"""Numba loops of the outer optimizer: pseudo-gradients collected, gated, taken from the residual; the outer step.

Each operation is rounded to float32 by itself: numba contracts nothing unless it is told to.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pulse_kernels.cpu.loops.simd import BLOCK, STEP, compress, differing, lowest, ones
from pulse_kernels.cpu.loops.spans import array_at

Array = Any
_F32, _U32 = np.float32, np.uint32
_LEVELS = np.float32(32767)
_WHOLE = np.float32(1.5 * 2**23)
"""Added to a number up to 2^22, and taken away again, it rounds it to a whole one, to nearest, ties to even."""
_BLOCK = 512
"""Cells that are looked at together."""
_PIECE = 1 << 14
"""Cells whose sums are made, and used, before those of the next: so many stay in the cache."""


def _fires(theta: Any, residual: Any, gain: Any) -> Any:
    """Tell whether a weight and the one that it may move to round to other BF16 patterns.

    Neither is NaN, but where a residual of 0 meets an infinite gain: that one's pattern is no finite weight's.
    """
    here = _F32(theta).view(_U32)
    there = _F32(theta - _F32(gain * residual)).view(_U32)
    here = (here + _U32(0x7FFF) + ((here >> _U32(16)) & _U32(1))) >> _U32(16)
    there = (there + _U32(0x7FFF) + ((there >> _U32(16)) & _U32(1))) >> _U32(16)
    return here != there


def outer_collect(theta: Array, local: Array, residual: Array, sums: Array) -> Any:
    """Add pseudo-gradients; return the largest of the sums' patterns without a sign: that of NaN, if there is one."""
    worst = _U32(0)
    for k in range(len(theta)):
        found = _F32(residual[k] + _F32(theta[k] - local[k]))
        sums[k] = found
        worst = max(worst, found.view(_U32) & _U32(0x7FFFFFFF))
    return worst


def outer_square(theta: Array, residual: Array, gain: Any) -> tuple[int, float]:
    """Return how many cells fire, and the sum of their squares.

    Without a branch, and with a sum for each cell of a block, so that the compiler takes many cells at a time.
    """
    count, total, sums = 0, 0.0, np.zeros(_BLOCK, np.float64)
    for start in range(0, len(theta), _BLOCK):
        here, there = theta[start : start + _BLOCK], residual[start : start + _BLOCK]
        fired: Any = np.int32(0)
        for k in range(len(here)):
            hit = _fires(here[k], there[k], gain)
            kept = there[k] if hit else _F32(0)
            fired += np.int32(hit)
            sums[k] += np.float64(kept) * np.float64(kept)
        count += fired
    for k in range(_BLOCK):
        total += sums[k]
    return count, total


def outer_gate(
    theta: Array, residual: Array, gain: Any, inverse: Any, start: int, squeeze: bool, index: Array, levels: Array
) -> tuple[Any, int]:
    """Write what is sent; return (how many, first cell not looked at: there is no room for another block).

    Of each block, the levels come first, 0 where nothing is sent, without a branch; then only those that are not 0 are
    written: with ``squeeze`` 16 at a time, for processors that have an instruction for it, else one after the other.
    """
    kept, none, places = np.empty(_BLOCK, np.int16), np.zeros(_BLOCK, np.int16), np.empty(_BLOCK, np.uint32)
    n: Any = np.uint64(0)
    done = start
    while done < len(theta) and np.int64(n) + _BLOCK <= len(index):
        here, there = theta[done : done + _BLOCK], residual[done : done + _BLOCK]
        for k in range(len(here)):
            level = _F32(there[k] * inverse)
            level = _LEVELS if level > _LEVELS else level
            level = -_LEVELS if level < -_LEVELS else level
            level = _F32(_F32(level + _WHOLE) - _WHOLE)
            kept[k] = np.int16(np.int32(level if _fires(here[k], there[k], gain) else _F32(0)))
        for k in range(len(here), _BLOCK):
            kept[k] = 0
        for k in range(_BLOCK):
            places[k] = np.uint32(done + k)
        for at in range(np.uint64(0), np.uint64(_BLOCK), np.uint64(BLOCK)):
            mask = differing(kept, none, at)
            if squeeze:
                for part in range(np.uint64(0), np.uint64(BLOCK), np.uint64(STEP)):
                    some = (mask >> part) & np.uint64(0xFFFF)
                    compress(places, at + part, some, index, n)
                    compress(kept, at + part, some, levels, n)
                    n += ones(some)
            else:
                while mask != np.uint64(0):
                    place = at + lowest(mask)
                    index[n], levels[n] = places[place], kept[place]
                    n += np.uint64(1)
                    mask &= mask - np.uint64(1)
        done += len(here)
    return np.int64(n), done


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


def outer_add(total: Array, index: Array, levels: Array, factor: int) -> None:
    """Add levels to a sum."""
    for k in range(len(index)):
        total[index[k]] += np.int64(levels[k]) * factor


def _stepped(theta: Array, momentum: Array, k: Any, gradient: Any, rate: Any, decay: Any) -> None:
    """Make the step of one cell."""
    moved = _F32(_F32(decay * momentum[k]) + gradient)
    momentum[k] = moved
    theta[k] = _F32(theta[k] - _F32(rate * _F32(gradient + _F32(decay * moved))))


def outer_fold(
    theta: Array,
    momentum: Array,
    index_at: Array,
    levels_at: Array,
    ends: Array,
    factors: Array,
    index_like: Array,
    levels_like: Array,
    scale: Any,
    rate: Any,
    decay: Any,
) -> None:
    """Make a step by the levels of several members: their sums are made, and used, a piece of the cells at a time."""
    total, done = np.empty(_PIECE, np.int64), np.zeros(len(factors), np.int64)
    for start in range(0, len(theta), _PIECE):
        size = min(_PIECE, len(theta) - start)
        here, held = theta[start : start + size], momentum[start : start + size]
        total[:] = 0
        for part in range(len(factors)):
            count = ends[part + 1] - ends[part]
            index, levels = array_at(index_like, index_at[part], count), array_at(levels_like, levels_at[part], count)
            factor, n = factors[part], done[part]
            while n < len(index) and np.int64(index[n]) < start + size:
                total[np.int64(index[n]) - start] += np.int64(levels[n]) * factor
                n += 1
            done[part] = n
        for k in range(size):
            _stepped(here, held, k, _F32(_F32(total[k]) * scale), rate, decay)


def outer_step(theta: Array, momentum: Array, index: Array, given: Array, rate: Any, decay: Any) -> None:
    """Make a step; between two cells of the index the gradient is 0."""
    n = 0
    for k in range(len(theta)):
        gradient = _F32(0)
        if n < len(index) and index[n] == k:
            gradient = given[n]
            n += 1
        _stepped(theta, momentum, k, gradient, rate, decay)
