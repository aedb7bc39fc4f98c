"""Contributions add up to the same bits in any order, on each implementation; FP32 sums do not."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulse_kernels.protocol import LEVELS, Floats, OuterLoops, OuterRates
from pulse_kernels.select import outer_loops
from pulse_registry.outer.exponents import WINDOW, chosen, middle
from pulse_registry.outer.mean import GroupLevels, GroupValues, Part, added_up, step_group
from pulse_schemas.outer import LEAST_EXPONENT, MOST_EXPONENT, MOST_MEMBERS

PLAIN, FAST = outer_loops("reference"), outer_loops("numba")
EACH = pytest.mark.parametrize("loops", [PLAIN, FAST], ids=["reference", "numba"])
RATES = OuterRates(0.7, 0.9)
PART = st.builds(
    lambda levels, exponent, weight: GroupLevels(
        np.array(sorted(levels), np.uint32),
        np.array([levels[k] for k in sorted(levels)], np.int16),
        exponent,
        weight,
    ),
    st.dictionaries(st.integers(0, 19), st.integers(-LEVELS, LEVELS).filter(bool)),
    st.integers(-40, -40 + 2 * WINDOW),
    st.integers(1, 2**16 - 1),
)


@EACH
@given(parts=st.lists(PART, max_size=6))
def test_sums_are_exact(loops: OuterLoops, parts: list[GroupLevels]) -> None:
    index, total = added_up(loops, 20, parts, -40)
    sums = [Fraction(0)] * 20
    for part in parts:
        for place, level in zip(part.index.tolist(), part.levels.tolist(), strict=True):
            sums[place] += part.weight * level * Fraction(2) ** part.exponent
    found = {place: value * Fraction(2) ** -40 for place, value in zip(index.tolist(), total.tolist(), strict=True)}
    assert found == {place: value for place, value in enumerate(sums) if value}


@EACH
def test_the_largest_sum_fits(loops: OuterLoops) -> None:
    part = GroupLevels(np.array([0], np.uint32), np.array([-LEVELS], np.int16), 2 * WINDOW, 2**16 - 1)
    _, total = added_up(loops, 1, [part] * MOST_MEMBERS, 0)
    assert total.tolist() == [-LEVELS * (2**16 - 1) * 2 ** (2 * WINDOW) * MOST_MEMBERS]


@pytest.mark.parametrize(
    ("gain", "finer"), [(None, 0), (14.0, 0), (4.0, 0), (3.0, 0), (2.8, 1), (2.0, 1), (1.0, 2), (0.01, 2), (5e-324, 2)]
)
def test_steps_are_up_to_four_times_finer_where_the_gain_is_small(gain: float | None, finer: int) -> None:
    assert chosen(4, 4 * 2.0**-40, gain, -18) == -20 - finer


@pytest.mark.parametrize("power", range(-30, 5))
def test_an_exponent_is_the_nearest_one_to_the_last_bit(power: int) -> None:
    """All ranks of a member choose one, each by its own machine's arithmetic."""
    border = math.ldexp(math.sqrt(0.5), power)
    for root in (math.nextafter(border, 0), border, math.nextafter(border, 1e9)):
        nearer = Fraction(root) ** 2 * 2 > Fraction(4) ** power
        assert chosen(1, root * root, 7.0, power) in (power - 1, power)
        if math.sqrt(root * root) == root:
            assert chosen(1, root * root, 7.0, power) == power - (not nearer)


def test_exponents_lie_about_the_middle_one() -> None:
    assert chosen(4, 4 * 2.0**-40, 7.0, -18) == -20
    assert chosen(4, 4 * 2.0**-80, 7.0, -18) == -18 - WINDOW
    assert chosen(4, 4.0, 7.0, -18) == -18 + WINDOW
    assert chosen(0, 0.0, 7.0, -18) == -18
    assert chosen(1, 2.0**-300, 7.0, LEAST_EXPONENT + 3) == LEAST_EXPONENT  # what a record can say
    assert chosen(1, 2.0**300, 7.0, MOST_EXPONENT - 3) == MOST_EXPONENT
    assert middle([-3, -9, -4], 0) == -4
    assert middle([-3, -9], 0) == -9
    assert middle([], -7) == -7


def weights(cells: int, seed: int, scale: float) -> Floats:
    return (np.random.default_rng(seed).standard_normal(cells) * scale).astype(np.float32)


@EACH
def test_a_step_by_float32_values_is_that_by_their_mean(loops: OuterLoops) -> None:
    cells, rng, parts = 5000, np.random.default_rng(7), list[Part]()
    for share in (0.0, 0.001, 0.3, 1.0):
        index = np.flatnonzero(rng.random(cells) < share).astype(np.uint32)
        parts.append(GroupValues(index, weights(len(index), 8, 1e-5), 3))
    sums = np.zeros(cells, np.float32)
    for part in parts:
        dense = np.zeros(cells, np.float32)
        dense[part.index] = part.values
        sums = sums + dense * np.float32(3)
    theta, momentum = weights(cells, 3, 0.02), weights(cells, 4, 1e-5)
    wanted = theta.copy(), momentum.copy()
    PLAIN.step(*wanted, np.arange(cells, dtype=np.uint32), sums / np.float32(12), RATES)
    step_group(loops, theta, momentum, parts, 0, 12, RATES)
    assert (theta.tobytes(), momentum.tobytes()) == tuple(one.tobytes() for one in wanted)


@EACH
def test_levels_weigh_by_their_exponents_and_members(loops: OuterLoops) -> None:
    one, other = (
        GroupLevels(np.array([1], np.uint32), np.array([3], np.int16), *given) for given in ((-4, 5), (-6, 1))
    )
    theta, momentum = np.zeros(2, np.float32), np.zeros(2, np.float32)
    step_group(loops, theta, momentum, [one, other], -6, 8, RATES)
    assert momentum.tolist() == [0.0, (3 * 2.0**-4 * 5 + 3 * 2.0**-6) / 8]


def test_levels_and_values_have_no_common_mean() -> None:
    place = np.array([0], np.uint32)
    parts = [GroupLevels(place, np.ones(1, np.int16), 0, 1), GroupValues(place, np.ones(1, np.float32), 1)]
    with pytest.raises(TypeError, match="no common sum"):
        step_group(FAST, np.zeros(1, np.float32), np.zeros(1, np.float32), parts, 0, 2, RATES)


@pytest.mark.slow
def test_four_trainers_hold_the_same_bits_over_50_rounds_in_any_order() -> None:
    """Each folds in an order of its own, two by each implementation. FP32 sums in another order are other bits."""
    cells, members = 20_000, 4
    start = weights(cells, 1, 0.02)
    theta = [start.copy() for _ in range(members)]
    momentum, residual = ([np.zeros(cells, np.float32) for _ in range(members)] for _ in range(2))
    about, other_bits, rng = -18, 0, np.random.default_rng(2)
    for round_ in range(50):
        parts, sent = [], []
        for member in range(members):
            local = theta[member] - weights(cells, 100 * round_ + member, 3e-6) + np.float32(1e-6)
            PLAIN.collect(theta[member], local, residual[member], residual[member])
            exponent = chosen(*PLAIN.square(theta[member], residual[member], 7.0), 7.0, about)
            index, levels = FAST.gate(theta[member], residual[member], 7.0, exponent)
            before = residual[member].astype(np.float64)
            FAST.settle(residual[member], index, levels, exponent)
            before[index] -= np.ldexp(levels.astype(np.float64), exponent)
            assert before.tolist() == residual[member].astype(np.float64).tolist()
            parts.append(GroupLevels(index, levels, exponent, member + 1))
            dense = np.zeros(cells, np.float32)
            dense[index] = np.ldexp(levels.astype(np.float32) * (member + 1) / 3, exponent)
            sent.append(dense)
        about = middle([part.exponent for part in parts], about)
        least = min(part.exponent for part in parts)
        for member in range(members):
            order = rng.permutation(members)
            loops = PLAIN if member % 2 else FAST
            step_group(loops, theta[member], momentum[member], [parts[k] for k in order], least, 10, RATES)
        other_bits += int((sum(sent[1:], sent[0]) != sum(sent[-2::-1], sent[-1])).sum())
        for held in (theta, momentum):
            assert all(one.tobytes() == held[0].tobytes() for one in held)
    assert other_bits > 1000
    assert (theta[0] != start).mean() > 0.9
