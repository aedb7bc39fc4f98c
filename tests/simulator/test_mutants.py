"""The proof that the simulator sees: with any one safeguard taken away, a seed finds it."""

from __future__ import annotations

import pytest

from tests.simulator.campaign import measure_mutant
from tests.simulator.mutants import MUTANTS, Mutant
from tests.simulator.simulation import run


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_safeguard_that_is_missing_is_missed(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.apply(monkeypatch)
    outcome = run(mutant.seed, mutant.operations)
    assert outcome.violation is not None, f"{outcome.operations} store operations of seed {mutant.seed} see nothing"
    assert not outcome.died, outcome.violation


@pytest.mark.sweep
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_most_seeds_find_it_in_time(mutant: Mutant) -> None:
    assert measure_mutant(mutant, range(10), 40_000)["found_by"] >= 2
