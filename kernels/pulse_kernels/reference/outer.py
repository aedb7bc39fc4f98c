"""The loops of the outer optimizer in plain NumPy: what the compiled ones are compared with."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pulse_kernels.cells import Cells, Index
from pulse_kernels.protocol import LEVELS, Floats, Gated, Levels, OuterRates, Totals, Weighted
from pulse_kernels.reference.backend import ReferenceBackend


class ReferenceOuter:
    """See ``OuterLoops``."""

    def collect(self, theta: Floats, local: Floats, residual: Floats, sums: Floats) -> float:
        """Add the pseudo-gradient: see OuterLoops.collect."""
        with np.errstate(over="ignore", invalid="ignore"):
            np.add(residual, theta - local, out=sums)
        return float(np.abs(sums).max(initial=0))

    def gate(self, theta: Floats, residual: Floats, gain: float, exponent: int) -> Gated:
        """Choose what to send: see OuterLoops.gate."""
        fired = np.flatnonzero(_fired(theta, residual, gain))
        with np.errstate(over="ignore"):
            level = np.rint(np.ldexp(residual[fired], -exponent))
        level = np.clip(level, -LEVELS, LEVELS)
        sent = level != 0
        return fired[sent].astype(np.uint32), level[sent].astype(np.int16)

    def square(self, theta: Floats, residual: Floats, gain: float) -> tuple[int, float]:
        """Measure what the gate passes: see OuterLoops.square."""
        fired = residual[_fired(theta, residual, gain)].astype(np.float64)
        return len(fired), float(np.dot(fired, fired))

    def passed(self, theta: Floats, residual: Floats, gain: float) -> Index:
        """Choose what to send whole: see OuterLoops.passed."""
        return np.flatnonzero(_fired(theta, residual, gain) & (residual != 0)).astype(np.uint32)

    def settle(self, residual: Floats, index: Index, levels: Levels, exponent: int) -> None:
        """Take what was sent: see OuterLoops.settle."""
        residual[index] -= np.ldexp(levels.astype(np.float32), exponent)

    def add(self, total: Totals, index: Index, levels: Levels, factor: int) -> None:
        """Add levels to a sum: see OuterLoops.add."""
        total[index] += levels.astype(np.int64) * factor

    def fold(self, theta: Floats, momentum: Floats, parts: Sequence[Weighted], scale: float, rates: OuterRates) -> None:
        """Make a step by the levels of all members: see OuterLoops.fold."""
        total = np.zeros(len(theta), np.int64)
        for part in parts:
            self.add(total, *part)
        index = np.flatnonzero(total).astype(np.uint32)
        self.step(theta, momentum, index, total[index].astype(np.float32) * np.float32(scale), rates)

    def step(self, theta: Floats, momentum: Floats, index: Index, gradient: Floats, rates: OuterRates) -> None:
        """Make an outer step: see OuterLoops.step."""
        rate, decay = np.float32(rates.rate), np.float32(rates.momentum)
        given = np.zeros(len(theta), np.float32)
        given[index] = gradient
        np.add(decay * momentum, given, out=momentum)
        np.subtract(theta, rate * (given + decay * momentum), out=theta)


def _fired(theta: Floats, residual: Floats, gain: float) -> npt.NDArray[np.bool_]:
    """Tell where BF16(theta) and BF16(theta - gain residual) are other bits."""
    with np.errstate(over="ignore", invalid="ignore"):
        moved = theta - np.float32(gain) * residual
    different: npt.NDArray[np.bool_] = _bf16(theta) != _bf16(moved)
    return different


def _bf16(values: Floats) -> Cells:
    cells = np.empty(len(values), np.uint16)
    ReferenceBackend().cast_f32(values.view(np.uint32), cells)
    return cells
