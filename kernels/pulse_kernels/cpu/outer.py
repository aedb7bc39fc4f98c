"""The compiled loops of the outer optimizer, as arrays in, arrays out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from llvmlite.binding import get_host_cpu_features  # type: ignore[import-untyped]

from pulse_kernels.cells import Index
from pulse_kernels.cpu.compile import compiled
from pulse_kernels.cpu.loops.spans import table
from pulse_kernels.protocol import Floats, Gated, Levels, OuterRates, Totals, Weighted

_SHARE: Final = 0.05
"""Of the cells, how many there is room for at first; then as many more as were found."""
_ROOM: Final = 4096
"""Cells that there is room for besides: at least a block of the loop."""
_NONE: Final = np.empty(0, np.uint32), np.empty(0, np.int16)


class CompiledOuter:
    """See ``OuterLoops``."""

    def __init__(self, *, squeeze: bool | None = None) -> None:
        """Make the loops.

        Args:
            squeeze: put what the gate passes end to end 16 cells at a time; None: where the processor has an
                instruction for that (AVX-512 VBMI2), which others do cell by cell, sent or not.
        """
        self._squeeze = bool(get_host_cpu_features().get("avx512vbmi2")) if squeeze is None else squeeze
        self._share = _SHARE  # a model's groups are alike: what is made with enough room is not copied

    def collect(self, theta: Floats, local: Floats, residual: Floats, sums: Floats) -> float:
        """Add the pseudo-gradient: see OuterLoops.collect."""
        return float(np.uint32(compiled("outer_collect", 4)(theta, local, residual, sums)).view(np.float32))

    def square(self, theta: Floats, residual: Floats, gain: float) -> tuple[int, float]:
        """Measure what the gate passes: see OuterLoops.square."""
        count, total = compiled("outer_square", 4)(theta, residual, np.float32(gain))
        return int(count), float(total)

    def gate(self, theta: Floats, residual: Floats, gain: float, exponent: int) -> Gated:
        """Choose what to send: see OuterLoops.gate."""
        loop, inverse = compiled("outer_gate", 4), np.ldexp(np.float32(1), -exponent)
        parts: list[Gated] = []
        done, share = 0, self._share
        while done < len(theta):
            room = int(share * (len(theta) - done)) + _ROOM
            index, levels = np.empty(room, np.uint32), np.empty(room, np.int16)
            count, done = loop(theta, residual, np.float32(gain), inverse, done, self._squeeze, index, levels)
            parts.append((index[:count], levels[:count]))
            share = max(_SHARE, 1.1 * (sum(len(some) for some, _ in parts) / done))
        self._share = share
        if len(parts) == 1:
            return parts[0]
        every = np.concatenate([np.empty(0, np.uint32), *(index for index, _ in parts)])
        return every, np.concatenate([np.empty(0, np.int16), *(levels for _, levels in parts)])

    def passed(self, theta: Floats, residual: Floats, gain: float) -> Index:
        """Choose what to send whole: see OuterLoops.passed."""
        index = np.empty(len(theta), np.uint32)
        count = compiled("outer_passed", 4)(theta, residual, np.float32(gain), index)
        return index[:count].copy()

    def settle(self, residual: Floats, index: Index, levels: Levels, exponent: int) -> None:
        """Take what was sent: see OuterLoops.settle."""
        compiled("outer_settle", 4)(residual, index, levels, np.ldexp(np.float32(1), exponent))

    def add(self, total: Totals, index: Index, levels: Levels, factor: int) -> None:
        """Add levels to a sum: see OuterLoops.add."""
        compiled("outer_add", 4)(total, index, levels, factor)

    def fold(self, theta: Floats, momentum: Floats, parts: Sequence[Weighted], scale: float, rates: OuterRates) -> None:
        """Make a step by the levels of all members: see OuterLoops.fold."""
        indexes, levels = [part[0] for part in parts], [part[1].view(np.uint16) for part in parts]
        where = table(indexes, compiled("address", 4), np.dtype(np.uint32))
        how_many = table(levels, compiled("address", 2), np.dtype(np.uint16))
        factors = np.array([part[2] for part in parts], np.int64)
        scalars = np.float32(scale), np.float32(rates.rate), np.float32(rates.momentum)
        compiled("outer_fold", 4)(theta, momentum, where.at, how_many.at, where.ends, factors, *_NONE, *scalars)

    def step(self, theta: Floats, momentum: Floats, index: Index, gradient: Floats, rates: OuterRates) -> None:
        """Make an outer step: see OuterLoops.step."""
        scalars = np.float32(rates.rate), np.float32(rates.momentum)
        compiled("outer_step", 4)(theta, momentum, index, gradient, *scalars)
