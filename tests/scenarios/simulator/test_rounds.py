"""The simulator with members of outer rounds: a few seeds by default, 10^5 rounds in the sweep."""

from __future__ import annotations

import os

import numpy as np
import pytest

from tests.scenarios.simulator.campaign import again, campaign
from tests.scenarios.simulator.rounds_truth import bf16, exact, stepped
from tests.scenarios.simulator.simulation import run
from tests.scenarios.simulator.weather import Weather
from tests.support.sampling import slow_but

_OPERATIONS, _MEMBERS = 5_000, 4
SEEDS = [*slow_but([1], range(5)), *(pytest.param(seed, marks=pytest.mark.sweep) for seed in range(5, 40))]


@pytest.mark.parametrize("seed", SEEDS)
def test_all_members_hold_the_fold_of_the_log_while_all_goes_wrong_that_can(seed: int) -> None:
    outcome = run(seed, _OPERATIONS, members=_MEMBERS)
    story = "\n".join((*outcome.tail[-40:], str(outcome.violation), again(seed, _OPERATIONS, 0, _MEMBERS)))
    assert outcome.violation is None, story
    assert outcome.counts["rounds"] > 1
    if not outcome.counts.get("others push"):
        assert outcome.counts["commit"] == outcome.counts["rounds"] + 1


def test_the_same_seed_gives_the_same_trace_of_rounds_and_another_one_another() -> None:
    first, second, other = (run(seed, 1_000, members=3) for seed in (3, 3, 4))
    assert (first.trace, first.counts, first.operations) == (second.trace, second.counts, second.operations)
    assert first.trace != other.trace


_HAPPENS = {
    "late", "twins fenced", "restored", "diverged", "NaN refused", "outer rates", "outer leave", "crashes",
    "outer restart",
}  # fmt: skip


@pytest.mark.slow
def test_lateness_twins_restarts_and_broken_weights_are_among_what_happens() -> None:
    weather, seen = Weather(0.002, 0.01, 0.02, 0.01, 0.002, 0.005, skew=4 * 3600.0), set[str]()
    for seed in (4, 22, 5, 9, *range(60)):  # all of it happens in the first of them
        outcome = run(seed, 4_000, weather, members=_MEMBERS)
        assert outcome.violation is None, (seed, outcome.violation)
        seen |= outcome.counts.keys()
        if seen >= _HAPPENS:
            return
    pytest.fail(f"{_HAPPENS - seen} have not happened")


def test_what_the_truth_adds_up_and_rounds_is_exact() -> None:
    rng = np.random.default_rng(1)
    values = (rng.standard_normal(500) * 10.0 ** rng.integers(-44, 30, 500)).astype(np.float32)
    assert [one / 2**173 for one in exact(values)] == values.astype(np.float64).tolist()
    import ml_dtypes

    assert bf16(values) == values.astype(ml_dtypes.bfloat16).tobytes()
    theta, momentum = stepped(
        np.float32([1.0]), np.float32([0.0]), [3], -2, 3, {"rate": 0.5, "momentum": 0.5}
    )  # a quarter each: g is 0.25, and the step 0.5 (0.25 + 0.125)
    assert (theta.tolist(), momentum.tolist()) == ([1.0 - 0.1875], [0.25])


@pytest.mark.sweep
def test_a_hundred_thousand_rounds() -> None:
    rounds = 0
    for document in campaign(10**9, first=1_000, processes=os.cpu_count() or 1, members=_MEMBERS):
        assert not document["violations"], document["violations"]
        rounds = document["counts"].get("rounds", 0)
        if rounds >= 100_000:
            break
    assert rounds >= 100_000
