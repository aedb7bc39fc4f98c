"""The outer optimizer's loops: exact, rounded as they say, and the same bits from each implementation."""

from __future__ import annotations

from fractions import Fraction

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulse_kernels.cpu.outer import CompiledOuter
from pulse_kernels.protocol import LEVELS, Floats, OuterLoops, OuterRates, Weighted
from pulse_kernels.select import outer_loops

PLAIN, FAST = outer_loops("reference"), outer_loops("numba")
SQUEEZING, LISTING = CompiledOuter(squeeze=True), CompiledOuter(squeeze=False)
EACH = pytest.mark.parametrize("loops", [PLAIN, SQUEEZING, LISTING], ids=["reference", "squeezing", "listing"])
RATES = OuterRates(0.7, 0.9)


def bits(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint32]:
    return values.view(np.uint32)


def drawn(cells: int, seed: int, scale: float) -> Floats:
    """Weights or pseudo-gradients of all sizes, zeros of both signs and subnormal numbers among them."""
    rng = np.random.default_rng(seed)
    made = (rng.standard_normal(cells) * scale * 2.0 ** rng.integers(-20, 8, cells)).astype(np.float32)
    made[rng.random(cells) < 0.02] = 0.0
    made[rng.random(cells) < 0.02] = -0.0
    made[rng.random(cells) < 0.01] = np.float32(1e-42)
    return made


def pair(cells: int = 30_000, seed: int = 1) -> tuple[Floats, Floats]:
    """Return (theta, residual)."""
    return drawn(cells, seed, 0.02), drawn(cells, seed + 1000, 1e-5)


@EACH
def test_the_pseudo_gradient_is_what_was_before_less_what_is_now(loops: OuterLoops) -> None:
    residual, sums = np.array([0.5, -0.0, -9.0], np.float32), np.empty(3, np.float32)
    theta, local = np.array([2.0, 1.0, 1.0], np.float32), np.array([1.5, 1.0, 0.5], np.float32)
    assert loops.collect(theta, local, residual, sums) == 8.5
    assert sums.tolist() == [1.0, 0.0, -8.5]
    assert residual.tolist() == [0.5, -0.0, -9.0]
    loops.collect(theta, local, residual, residual)  # in place
    assert bits(residual).tolist() == bits(sums).tolist()


@EACH
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", ["theta", "local", "residual"])
def test_what_is_not_finite_is_told(loops: OuterLoops, bad: float, where: str) -> None:
    given = {"theta": drawn(100, 1, 1.0), "local": drawn(100, 2, 1.0), "residual": drawn(100, 3, 1.0)}
    given[where][77] = bad
    assert not np.isfinite(loops.collect(**given, sums=np.empty(100, np.float32)))


@EACH
def test_a_sum_that_is_too_large_is_not_finite(loops: OuterLoops) -> None:
    most = np.finfo(np.float32).max
    residual = np.zeros(1, np.float32)
    assert loops.collect(np.array([most], np.float32), np.array([-most], np.float32), residual, residual) == np.inf


@EACH
@pytest.mark.parametrize("gain", [1.0, 7.0])
def test_the_gate_passes_what_changes_the_bf16_weight(loops: OuterLoops, gain: float) -> None:
    theta, residual = pair()
    moved = theta - np.float32(gain) * residual
    changes = theta.astype(ml_dtypes.bfloat16).view(np.uint16) != moved.astype(ml_dtypes.bfloat16).view(np.uint16)
    index, levels = loops.gate(theta, residual, gain, -40)
    expected = np.clip(np.rint(residual.astype(np.float64) * 2.0**40), -LEVELS, LEVELS)
    sent = changes & (expected != 0)
    assert 100 < sent.sum() < len(theta)
    assert index.tolist() == np.flatnonzero(sent).tolist()
    assert levels.tolist() == expected[sent].tolist()
    count, square = loops.square(theta, residual, gain)
    assert count == changes.sum()
    assert square == pytest.approx(float((residual[changes].astype(np.float64) ** 2).sum()), rel=1e-12)


@EACH
@pytest.mark.parametrize("gain", [1.0, 7.0])
def test_what_is_sent_whole_is_what_the_gate_passes_but_for_zeros(loops: OuterLoops, gain: float) -> None:
    theta, residual = pair()
    theta[:2], residual[:2] = -0.0, (0.0, -0.0)  # the gate passes -0.0 less -0.0, which is 0.0
    moved = theta - np.float32(gain) * residual
    changes = theta.astype(ml_dtypes.bfloat16).view(np.uint16) != moved.astype(ml_dtypes.bfloat16).view(np.uint16)
    assert changes[1]
    assert loops.passed(theta, residual, gain).tolist() == np.flatnonzero(changes & (residual != 0)).tolist()


@EACH
def test_without_a_gate_all_cells_pass(loops: OuterLoops) -> None:
    theta, residual = pair()
    assert loops.passed(theta, residual, np.inf).tolist() == np.flatnonzero(residual).tolist()
    index, levels = loops.gate(theta, residual, np.inf, -24)
    expected = np.clip(np.rint(np.ldexp(residual, 24)), -LEVELS, LEVELS)
    assert index.tolist() == np.flatnonzero(expected).tolist()
    assert levels.tolist() == expected[expected != 0].tolist()
    assert loops.square(theta, residual, np.inf)[1] == pytest.approx(float((residual.astype(np.float64) ** 2).sum()))


@EACH
def test_cells_whose_level_is_0_stay_whole_in_the_residual(loops: OuterLoops) -> None:
    theta, residual = pair()
    before = residual.copy()
    index, levels = loops.gate(theta, residual, 1.0, -12)
    assert bits(residual).tolist() == bits(before).tolist()  # nothing is taken before it is sent
    loops.settle(residual, index, levels, -12)
    kept = np.ones(len(residual), bool)
    kept[index] = False
    assert bits(residual[kept]).tolist() == bits(before[kept]).tolist()


@EACH
@given(
    exponent=st.integers(-126, 90),
    parts=st.lists(st.tuples(st.integers(1, 2**24 - 1), st.integers(-9, 0), st.booleans()), min_size=1, max_size=20),
)
def test_level_and_residual_make_what_was_before_exactly(
    loops: OuterLoops, exponent: int, parts: list[tuple[int, int, bool]]
) -> None:
    """Up to 2 ** 24 steps, where levels are cut off at 2 ** 15."""
    values = [np.ldexp(-n if minus else n, e + exponent) for n, e, minus in parts]
    before = np.array(values, np.float32)
    residual, theta = before.copy(), np.zeros(len(before), np.float32)
    index, levels = loops.gate(theta, residual, 1.0, exponent)
    loops.settle(residual, index, levels, exponent)
    sent = dict(zip(index.tolist(), levels.tolist(), strict=True))
    for k in range(len(before)):
        taken = sent.get(k, 0) * Fraction(2) ** exponent
        assert Fraction(float(before[k])) == taken + Fraction(float(residual[k]))


@EACH
def test_the_outer_step_rounds_each_operation_by_itself(loops: OuterLoops) -> None:
    theta, momentum = pair()
    index = np.flatnonzero(np.random.default_rng(5).random(len(theta)) < 0.3).astype(np.uint32)
    given = drawn(len(index), 6, 1e-5)
    wanted = plain_step(theta, momentum, index, given)
    fused = fused_step(theta, momentum, index, given)
    loops.step(theta, momentum, index, given, RATES)
    assert bits(theta).tolist() == bits(wanted[0]).tolist()
    assert bits(momentum).tolist() == bits(wanted[1]).tolist()
    assert (bits(fused) != bits(theta)).any()  # the control: a fused multiply-add would be seen


def plain_step(theta: Floats, momentum: Floats, index: npt.NDArray[np.uint32], given: Floats) -> tuple[Floats, Floats]:
    """The formulas in float64, which holds each product of two float32 exactly, rounded after each operation.

    A sum of two float32 in float64, rounded again, is the float32 sum: 53 bits are more than twice 24 and 2.
    """

    def rounded(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        return values.astype(np.float32).astype(np.float64)

    rate, decay = np.float64(np.float32(0.7)), np.float64(np.float32(0.9))
    gradient = np.zeros(len(theta))
    gradient[index] = given
    moved = rounded(rounded(decay * momentum.astype(np.float64)) + gradient)
    stepped = rounded(rate * rounded(gradient + rounded(decay * moved)))
    return (theta.astype(np.float64) - stepped).astype(np.float32), moved.astype(np.float32)


def fused_step(theta: Floats, momentum: Floats, index: npt.NDArray[np.uint32], given: Floats) -> Floats:
    """The same where products are not rounded before they are added."""
    rate, decay = np.float64(np.float32(0.7)), np.float64(np.float32(0.9))
    gradient = np.zeros(len(theta))
    gradient[index] = given
    moved = (decay * momentum + gradient).astype(np.float32).astype(np.float64)
    direction = (gradient + decay * moved).astype(np.float32).astype(np.float64)
    return (theta - rate * direction).astype(np.float32)


@st.composite
def weighted(draw: st.DrawFn, cells: int) -> Weighted:
    """A member's levels of some cells, which may all be in one place, and their factor."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    first = draw(st.integers(0, cells))
    share = draw(st.sampled_from([0.0, 0.001, 0.3, 1.0]))
    index = np.flatnonzero((rng.random(cells) < share) & (np.arange(cells) >= first)).astype(np.uint32)
    levels = rng.integers(1, LEVELS, len(index), endpoint=True).astype(np.int16) * rng.choice([-1, 1], len(index))
    return index, levels.astype(np.int16), draw(st.integers(1, 2**40))


@settings(deadline=None)
@given(parts=st.lists(weighted(40_000), max_size=5), exponent=st.integers(-60, 0), members=st.integers(1, 9))
def test_a_step_by_levels_is_that_by_their_exact_sums(parts: list[Weighted], exponent: int, members: int) -> None:
    theta, momentum = pair(40_000)
    total = np.zeros(len(theta), np.int64)
    for index, levels, factor in parts:
        total[index] += levels.astype(np.int64) * factor
    scale = float(np.float32(2.0**exponent / members))
    wanted = plain_step(
        theta, momentum, np.arange(len(theta), dtype=np.uint32), total.astype(np.float32) * np.float32(scale)
    )
    for loops, some in ((PLAIN, parts), (FAST, parts[::-1])):
        found = theta.copy(), momentum.copy()
        loops.fold(*found, some, scale, RATES)
        assert [bits(one).tobytes() for one in found] == [bits(one).tobytes() for one in wanted]


@pytest.mark.parametrize("cells", [0, 1, 4096, 100_000])
@pytest.mark.parametrize("gain", [1.0, 7.0, 3e4, np.inf])
def test_both_implementations_give_the_same_bits(cells: int, gain: float) -> None:
    """Through three rounds; at a large gain all cells pass, more than there is room for at first."""
    states = [(*pair(cells), np.zeros(cells, np.float32)) for _ in range(2)]
    for round_ in range(3):
        local = drawn(cells, 50 + round_, 0.02)
        found = []
        for loops, (theta, residual, momentum) in zip((PLAIN, FAST), states, strict=True):
            largest = loops.collect(theta, local, residual, residual)
            assert largest == np.abs(residual).max(initial=0)
            index, levels = loops.gate(theta, residual, gain, -20)
            loops.settle(residual, index, levels, -20)
            passed = loops.passed(theta, residual, gain)
            loops.step(theta, momentum, index, np.ldexp(levels.astype(np.float32), -20), RATES)
            found.append([index, levels, passed, bits(theta), bits(residual), bits(momentum)])
        for plain, fast in zip(*found, strict=True):
            assert (plain.dtype, plain.tolist()) == (fast.dtype, fast.tolist())
    if cells > 1 and gain > 1e4:
        assert len(found[0][0]) > 0.5 * cells
