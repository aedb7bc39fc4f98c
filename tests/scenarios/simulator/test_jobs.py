"""The simulator with jobs of ranks: a few seeds by default, 10^5 pushes, and hundreds of ranks, in the sweep."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import pytest

from tests.scenarios.simulator.campaign import again, campaign
from tests.scenarios.simulator.job_peers import Wire
from tests.scenarios.simulator.simulation import run
from tests.scenarios.simulator.weather import Weather
from tests.scenarios.simulator.world import World
from tests.support.sampling import slow_but

_OPERATIONS, _RANKS = 2_500, 9
SEEDS = [*slow_but([4], [4, 5]), *(pytest.param(seed, marks=pytest.mark.sweep) for seed in range(6, 30))]
_EACH_OF_MANY = 100_000
"""Store operations of a seed of 512 ranks, which make some thousands of them a push."""


@pytest.mark.parametrize("seed", SEEDS)
def test_everything_holds_while_ranks_die_fall_silent_and_send_what_is_wrong(seed: int) -> None:
    outcome = run(seed, _OPERATIONS, ranks=_RANKS)
    story = "\n".join((*outcome.tail[-40:], str(outcome.violation), again(seed, _OPERATIONS, _RANKS)))
    assert outcome.violation is None, story
    assert outcome.counts["commit"] > 10
    assert outcome.counts["crashes"] > 2
    assert outcome.counts["mistakes"] > 1


@pytest.mark.slow
def test_the_same_seed_gives_the_same_trace_of_jobs_and_another_one_another() -> None:
    first, second, other = (run(seed, 400, ranks=_RANKS) for seed in (3, 3, 7))
    assert (first.trace, first.counts, first.operations) == (second.trace, second.counts, second.operations)
    assert first.trace != other.trace


@pytest.mark.slow
def test_deaths_silence_and_damage_between_ranks_are_among_what_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[str] = []
    note = World.note

    def noted(self: World, what: str) -> None:
        notes.append(what)
        note(self, what)

    monkeypatch.setattr(World, "note", noted)
    monkeypatch.setattr(Wire, "drawn", lambda *_: Wire(death=0.01, silence=0.003, damage=0.3))
    for seed in range(4):
        assert run(seed, 500, Weather(), _RANKS).violation is None, seed
    for what in (" dies before ", " dies after ", " silent ", " wrong"):
        assert any(what in line for line in notes), what


def test_whoever_waits_goes_on_once_it_is_so_or_when_time_is_over() -> None:
    world, said, seen = World(0), [], []

    def waits(name: str, seconds: float | None) -> None:
        seen.append((name, world.wait(lambda: bool(said), seconds), world.now))

    def says() -> None:
        world.pause(2.0)
        said.append("it")
        world.stir()

    for name, seconds in (("short", 1.0), ("long", 5.0), ("for ever", None)):
        world.spawn(lambda name=name, seconds=seconds: waits(name, seconds))  # type: ignore[misc]
    world.spawn(says)
    world.run()
    assert seen == [("short", False, 1.0), ("long", True, 2.0), ("for ever", True, 2.0)]
    assert world.wait(lambda: True, 1.0)


def test_ranks_that_go_round_in_circles_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.scenarios.simulator.job_peers._MOST_CALLS", 5)
    assert "goes round in circles" in str(run(1, 300, Weather(), _RANKS).violation)


def _pushes(documents: Iterable[dict[str, Any]], enough: int) -> int:
    """Run seeds until there were enough pushes; return how many there were."""
    pushes = 0
    for document in documents:
        assert not document["violations"], document["violations"]
        pushes = document["counts"].get("pushes of ranks", 0)
        if pushes >= enough:
            break
    return pushes


@pytest.mark.sweep
def test_a_hundred_thousand_pushes_by_two_to_nine_ranks() -> None:
    seeds = campaign(10**8, first=1_000, processes=os.cpu_count() or 1, ranks=_RANKS)
    assert _pushes(seeds, 100_000) >= 100_000


@pytest.mark.sweep
def test_a_hundred_pushes_by_512_ranks() -> None:
    seeds = campaign(10**8, first=1, processes=os.cpu_count() or 1, each=_EACH_OF_MANY, ranks=512)
    assert _pushes(seeds, 100) >= 100
