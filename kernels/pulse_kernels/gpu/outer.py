"""The outer optimizer on the device, on float32 tensors: collect, gate, settle, step; see ``OuterLoops``.

Its kernels are compiled without contraction of products and sums: a fused multiply-add would give other bits than the
other implementations. What follows a gate, over what is sent, is plain torch, in which each operation is one kernel.
"""

from __future__ import annotations

from typing import Final

import torch

from pulse_kernels.gpu.cells import round_bf16
from pulse_kernels.gpu.language import Kernel, constant, jit, tl
from pulse_kernels.protocol import LEVELS, OuterRates

BLOCK: Final = 1024
LARGEST = constant(float(LEVELS))
TO_WHOLE = constant(3.0 * 2**22)
"""Added to a float32 below 2 ** 22 and taken away again, it rounds to a whole number, ties to even."""


@jit
def collect_cells(
    theta: tl.tensor,
    local: tl.tensor,
    residual: tl.tensor,
    sums: tl.tensor,
    worst: tl.tensor,
    cells: tl.int64,
    BLOCK: tl.constexpr,
) -> None:
    """Add pseudo-gradients to the residual, and keep the largest magnitude's pattern."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    some = at < cells
    gradient = tl.load(theta + at, mask=some, other=0.0) - tl.load(local + at, mask=some, other=0.0)
    found = tl.load(residual + at, mask=some, other=0.0) + gradient
    tl.store(sums + at, found, mask=some)
    tl.atomic_max(worst, tl.max(found.to(tl.int32, bitcast=True) & 0x7FFFFFFF, 0), sem="relaxed")


@jit
def gate_cells(
    theta: tl.tensor,
    residual: tl.tensor,
    levels: tl.tensor,
    fired: tl.tensor,
    gain: tl.float32,
    inverse: tl.float32,
    cells: tl.int64,
    BLOCK: tl.constexpr,
) -> None:
    """Write each cell's level, 0 where it is not sent, and whether the gate passes it."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    some = at < cells
    here, rest = tl.load(theta + at, mask=some, other=0.0), tl.load(residual + at, mask=some, other=0.0)
    there = here - gain * rest
    fires = round_bf16(here.to(tl.uint32, bitcast=True)) != round_bf16(there.to(tl.uint32, bitcast=True))
    level = tl.minimum(tl.maximum(rest * inverse, -LARGEST), LARGEST)
    whole = ((level + TO_WHOLE) - TO_WHOLE).to(tl.int16)
    tl.store(levels + at, tl.where(fires, whole, 0), mask=some)
    tl.store(fired + at, fires.to(tl.int8), mask=some)


@jit
def step_cells(
    theta: tl.tensor,
    momentum: tl.tensor,
    gradient: tl.tensor,
    rate: tl.float32,
    decay: tl.float32,
    cells: tl.int64,
    BLOCK: tl.constexpr,
) -> None:
    """Make a step of SGD with Nesterov's momentum."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    some = at < cells
    given = tl.load(gradient + at, mask=some, other=0.0)
    moved = decay * tl.load(momentum + at, mask=some, other=0.0) + given
    tl.store(momentum + at, moved, mask=some)
    direction = given + decay * moved
    tl.store(theta + at, tl.load(theta + at, mask=some, other=0.0) - rate * direction, mask=some)


def collect(theta: torch.Tensor, local: torch.Tensor, residual: torch.Tensor, sums: torch.Tensor) -> float:
    """Add the pseudo-gradient: see OuterLoops.collect. Waits for the device."""
    worst = torch.zeros(1, dtype=torch.int32, device=theta.device)
    _launch(collect_cells, theta.numel(), theta, local, residual, sums, worst)
    return worst.view(torch.float32).item()


def gate(
    theta: torch.Tensor, residual: torch.Tensor, gain: float, exponent: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Choose what to send: see OuterLoops.gate.

    Returns:
        int64 index, int16 levels; and which cells the gate passes, bool of all. Waits for the device.
    """
    levels = torch.empty(theta.shape, dtype=torch.int16, device=theta.device)
    fired = torch.empty(theta.shape, dtype=torch.bool, device=theta.device)
    _launch(gate_cells, theta.numel(), theta, residual, levels, fired.view(torch.int8), gain, 2.0**-exponent)
    index = levels.nonzero().view(-1)
    return index, levels[index], fired


def settle(residual: torch.Tensor, index: torch.Tensor, levels: torch.Tensor, exponent: int) -> None:
    """Take what was sent: see OuterLoops.settle."""
    residual[index] -= levels.float() * 2.0**exponent


def step(
    theta: torch.Tensor,
    momentum: torch.Tensor,
    index: torch.Tensor,
    gradient: torch.Tensor,
    rates: OuterRates,
) -> None:
    """Make an outer step: see OuterLoops.step."""
    given = torch.zeros_like(theta)
    given[index] = gradient
    _launch(step_cells, theta.numel(), theta, momentum, given, rates.rate, rates.momentum)


def _launch(kernel: Kernel, cells: int, *arguments: object) -> None:
    if cells:
        grid = (-(-cells // BLOCK),)
        kernel[grid](*arguments, cells, BLOCK=BLOCK, num_warps=4, enable_fp_fusion=False)
