"""The proof that the simulator sees: with any one safeguard taken away, a seed finds it."""

from __future__ import annotations

import pytest

from tests.scenarios.simulator.campaign import measure_mutant
from tests.scenarios.simulator.job_mutants import JOB_MUTANTS
from tests.scenarios.simulator.mutants import MUTANTS, Mutant
from tests.scenarios.simulator.rounds_mutants import ROUNDS_MUTANTS
from tests.scenarios.simulator.simulation import run

pytestmark = pytest.mark.slow

_OPERATIONS, _SEEDS = 6_000, 12
EVERY = MUTANTS + JOB_MUTANTS + ROUNDS_MUTANTS


@pytest.mark.parametrize("mutant", EVERY, ids=lambda mutant: mutant.name)
def test_a_safeguard_that_is_missing_is_missed(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.apply(monkeypatch)
    for seed in (mutant.seed, *range(_SEEDS)):
        outcome = run(seed, _OPERATIONS, mutant.weather, mutant.ranks, mutant.members)
        if outcome.violation is not None and not outcome.died:
            return
    pytest.fail(f"{_SEEDS} seeds of {_OPERATIONS} store operations see nothing")


@pytest.mark.sweep
@pytest.mark.parametrize("mutant", EVERY, ids=lambda mutant: mutant.name)
def test_several_seeds_find_it_in_time(mutant: Mutant) -> None:
    assert measure_mutant(mutant, range(10), 40_000)["found_by"] >= 2
