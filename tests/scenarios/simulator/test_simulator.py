"""The simulator over a few seeds by default, and over ten million store operations in the sweep."""

from __future__ import annotations

import os

import pytest

from tests.scenarios.simulator.campaign import again, campaign
from tests.scenarios.simulator.mutants import short_merge
from tests.scenarios.simulator.report import PAGE, with_tables
from tests.scenarios.simulator.simulation import run
from tests.scenarios.simulator.weather import Weather
from tests.scenarios.simulator.world import Crash, World
from tests.support.groups import small_groups
from tests.support.parts import small_parts
from tests.support.sampling import slow_but

_OPERATIONS = 8_500
SEEDS = [*slow_but([1], range(3)), *(pytest.param(seed, marks=pytest.mark.sweep) for seed in range(3, 8))]


@pytest.mark.parametrize("seed", SEEDS)
def test_everything_that_must_hold_holds_while_all_goes_wrong_that_can(seed: int) -> None:
    outcome = run(seed, _OPERATIONS)
    story = "\n".join((*outcome.tail[-40:], str(outcome.violation), again(seed, _OPERATIONS)))
    assert outcome.violation is None, story
    assert outcome.operations >= _OPERATIONS
    assert outcome.counts["commit"] > 10


@pytest.mark.slow
@pytest.mark.parametrize("seed", [20, *(pytest.param(seed, marks=pytest.mark.sweep) for seed in range(21, 26))])
def test_all_of_it_holds_for_patches_in_parts(seed: int) -> None:
    with small_groups(), small_parts(1):
        outcome = run(seed, _OPERATIONS)
    assert outcome.violation is None, "\n".join((*outcome.tail[-40:], str(outcome.violation)))
    assert outcome.counts["commit"] > 10
    assert outcome.counts["deleted"] > 10


@pytest.mark.slow
def test_the_same_seed_gives_the_same_trace_and_another_one_another() -> None:
    first, second, other = run(3, 2_000), run(3, 2_000), run(4, 2_000)
    assert (first.trace, first.counts, first.operations) == (second.trace, second.counts, second.operations)
    assert first.trace != other.trace


@pytest.mark.slow
def test_a_compactor_that_forgets_a_patch_attaches_nothing_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    short_merge(monkeypatch)
    for seed in range(2):
        assert run(seed, 3_000).violation is None


@pytest.mark.slow
def test_all_holds_in_a_storm_of_every_kind_of_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    storm = Weather(0.004, 0.02, 0.02, 0.1, 0.002, 0.02, 0.5, skew=600.0)
    notes: list[str] = []
    note = World.note

    def noted(self: World, what: str) -> None:
        notes.append(what)
        note(self, what)

    monkeypatch.setattr(World, "note", noted)
    outcome = run(1, 4_000, storm)
    assert outcome.violation is None, outcome.violation
    for trouble in ("crash", "fail", "lose", "straggle", "stall", "flip"):
        assert any(f" {trouble}" in what for what in notes), trouble
    assert any(" late " in what for what in notes)


def test_the_page_shows_the_result_files() -> None:
    assert with_tables(PAGE.read_text()) == PAGE.read_text(), "python -m tests.scenarios.simulator report"


def test_time_passes_only_when_all_wait_and_in_order() -> None:
    world, seen = World(0), []

    def actor(name: str, pauses: list[float]) -> None:
        for seconds in pauses:
            world.pause(seconds)
            seen.append((name, world.now))

    world.spawn(lambda: actor("a", [1.0, 5.0]))
    world.spawn(lambda: actor("b", [2.0, 2.0]))
    world.later(3.0, lambda: seen.append(("late", world.now)))
    world.run(1)
    assert seen == [("a", 1.0), ("b", 2.0), ("late", 3.0), ("b", 4.0), ("a", 6.0)]


def test_an_actor_is_gone_when_the_world_ends_whatever_it_does() -> None:
    world, ended = World(0), []

    def actor() -> None:
        try:
            world.pause(1e9)
        except Crash:
            with pytest.raises(Crash):
                world.pause(1.0)  # its last wishes are not heard
            ended.append(world.now)
            raise

    world.spawn(actor)
    world.later(1.0, world.end_all)
    world.run()
    assert ended == [1.0]


@pytest.mark.sweep
def test_ten_million_store_operations() -> None:
    document = {}
    for document in campaign(10_000_000, first=100, processes=os.cpu_count() or 1):
        assert not document["violations"], document["violations"]
    assert document["operations"] >= 10_000_000
