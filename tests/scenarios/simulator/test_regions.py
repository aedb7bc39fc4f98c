"""Two regions in the simulator: nothing is lost or forked while a run is mirrored, collected, and moves to and fro."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.scenarios.simulator.mutants import Mutant
from tests.scenarios.simulator.regions import run_regions
from tests.scenarios.simulator.regions_mutants import REGIONS_MUTANTS
from tests.scenarios.simulator.simulation import Outcome

_OPERATIONS = 9_000


def _story(outcome: Outcome) -> str:
    return "\n".join((*outcome.tail[-40:], str(outcome.violation), f"seed {outcome.seed}"))


def _true(seed: int) -> Outcome:
    outcome = run_regions(seed, _OPERATIONS)
    assert outcome.violation is None, _story(outcome)
    assert outcome.operations >= _OPERATIONS
    return outcome


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(40))
def test_one_log_is_true_in_both_regions_whatever_goes_wrong(seed: int) -> None:
    _true(seed)


@pytest.mark.slow
def test_runs_move_homes_are_lost_copies_lack_what_was_retired_and_intruders_come_and_one_log_is_true() -> None:
    counts = Counter[str]()
    least = Counter(promoted=4, lost=3, forks=2, absent=11, intruded=2, retired=101)
    for seed in range(20, 30):
        counts.update(_true(seed).counts)
        if counts >= least:
            return
    assert counts >= least


@pytest.mark.slow
def test_the_same_seed_gives_the_same_trace() -> None:
    first, second = run_regions(3, 2_000), run_regions(3, 2_000)
    assert (first.trace, first.counts) == (second.trace, second.counts)


@pytest.mark.slow
@pytest.mark.parametrize("mutant", REGIONS_MUTANTS, ids=lambda mutant: mutant.name)
def test_a_safeguard_that_is_missing_is_missed(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.apply(monkeypatch)
    for seed in (mutant.seed, *range(12)):
        outcome = run_regions(seed, _OPERATIONS, mutant.weather)
        if outcome.violation is not None and not outcome.died:
            return
    pytest.fail(f"13 seeds of {_OPERATIONS} store operations see nothing")
