"""The outer optimizer on the device gives the reference's bits."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pulse_kernels.gpu import outer
from pulse_kernels.protocol import Floats, OuterRates
from pulse_kernels.select import outer_loops

PLAIN = outer_loops("reference")
RATES = OuterRates(0.7, 0.9)


def drawn(cells: int, seed: int, scale: float) -> Floats:
    rng = np.random.default_rng(seed)
    made = (rng.standard_normal(cells) * scale * 2.0 ** rng.integers(-20, 8, cells)).astype(np.float32)
    made[rng.random(cells) < 0.02] = -0.0
    made[rng.random(cells) < 0.01] = np.float32(1e-42)
    return made


def bits(values: Floats) -> list[int]:
    found: list[int] = values.view(np.uint32).tolist()
    return found


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")  # the interpreter's: infinity times 0
@pytest.mark.parametrize("cells", [0, 1, 1024, 5000])
@pytest.mark.parametrize(("gain", "exponent"), [(1.0, -20), (7.0, -24), (3e4, -60), (np.inf, -24)])
def test_rounds_on_the_device_are_those_of_the_reference(device: str, cells: int, gain: float, exponent: int) -> None:
    theta, residual, momentum = drawn(cells, 1, 0.02), drawn(cells, 2, 1e-5), np.zeros(cells, np.float32)
    held = [torch.from_numpy(one.copy()).to(device) for one in (theta, residual, momentum)]
    for round_ in range(3):
        local = drawn(cells, 10 + round_, 0.02)
        largest = PLAIN.collect(theta, local, residual, residual)
        assert outer.collect(held[0], torch.from_numpy(local).to(device), held[1], held[1]) == largest
        index, levels = PLAIN.gate(theta, residual, gain, exponent)
        found_index, found_levels, fired = outer.gate(held[0], held[1], gain, exponent)
        assert found_index.tolist() == index.tolist()
        assert found_levels.tolist() == levels.tolist()
        assert int(fired.sum()) == PLAIN.square(theta, residual, gain)[0]
        PLAIN.settle(residual, index, levels, exponent)
        outer.settle(held[1], found_index, found_levels, exponent)
        gradient = (3 * levels.astype(np.float32) - 1) * np.float32(2.0**exponent / 3)
        PLAIN.step(theta, momentum, index, gradient, RATES)
        outer.step(held[0], held[2], found_index, torch.from_numpy(gradient).to(device), RATES)
        for mine, theirs in zip(held, (theta, residual, momentum), strict=True):
            assert bits(mine.cpu().numpy()) == bits(theirs)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_told(device: str, bad: float) -> None:
    given = [torch.from_numpy(drawn(2000, seed, 1.0)).to(device) for seed in range(3)]
    given[1][1999] = bad
    assert not np.isfinite(outer.collect(*given, torch.empty_like(given[2])))
