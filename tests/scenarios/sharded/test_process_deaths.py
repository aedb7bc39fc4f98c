"""Ranks of real processes are killed at each step of a push, or stopped, or their stores fail: a job goes on."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pulse_registry.store import FileStore
from tests.scenarios.sharded.process_deaths import GROUP_BYTES, Step, state_of_step
from tests.support.groups import small_groups
from tests.support.parts import small_parts
from tests.support.records import DictStore
from tests.support.registries import all_restored, bits, check_store, commits
from tests.support.waiting import NEVER_S

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]
Found = Mapping[int, Mapping[str, Any]]


@dataclass(frozen=True)
class Ran:
    """What the ranks found that did not die, by case, and the registry that all jobs wrote."""

    folder: Path
    ranks: int
    cases: Mapping[tuple[Any, ...], Found]

    def of(self, name: str) -> Iterator[tuple[Step, Found]]:
        """Yield the steps at which something happened, and what was found; there is one at least."""
        found = [(Step(*case[1:]), said) for case, said in self.cases.items() if case[0] == name]
        assert found
        yield from found


@pytest.fixture(
    scope="module",
    params=[(2, 67), pytest.param((2, 1), marks=pytest.mark.sweep), pytest.param((4, 9), marks=pytest.mark.sweep)],
    ids=lambda sizes: f"{sizes[0]} ranks, every {sizes[1]}",
)
def ran(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """Run all jobs, one after another, in one process that imports torch once and whose forks are the ranks."""
    folder, (ranks, every) = tmp_path_factory.mktemp("registry"), request.param
    arguments: Sequence[Any] = (sys.executable, "-m", "tests.scenarios.sharded.process_deaths", folder, ranks, every)
    made = subprocess.run(
        [*map(str, arguments)], cwd=ROOT, capture_output=True, text=True, timeout=NEVER_S, check=False
    )
    assert made.returncode == 0, made.stderr
    cases: dict[tuple[Any, ...], dict[int, Any]] = {}
    for line in made.stdout.splitlines():
        name, rank, found = json.loads(line)
        cases.setdefault(tuple(json.loads(name)), {})[rank] = found
    return Ran(folder, ranks, cases)


def test_a_killed_rank_is_named_by_the_others_wherever_it_was_and_the_next_job_goes_on(ran: Ran) -> None:
    """Each job pushes first: it goes on with what the one before it left, whatever that died of."""
    for step, found in ran.of("dies"):
        assert sorted(found) == [rank for rank in range(ran.ranks) if rank != step.victim], step
        for said in found.values():
            assert said["results"] == next(iter(found.values()))["results"], step
            assert len(said["results"]) >= (step.phase == "push"), step
            assert step.victim in said["ranks"], step
            assert "died, or lost its connection" in said["lost"], step


def test_a_rank_that_was_silent_hears_that_it_is_late_and_all_open_again_and_go_on(ran: Ran) -> None:
    for step, found in ran.of("sleeps"):
        assert sorted(found) == [*range(ran.ranks)], step
        again = [said["again"] for said in found.values()]
        assert again == [again[0]] * ran.ranks, step
        for rank, said in found.items():
            assert "lost" in said, step
            assert rank == step.victim or step.victim in said["ranks"] or not said["ranks"], step
        assert any(step.victim in said["ranks"] for said in found.values()), step  # named where it can be


def test_a_store_that_fails_one_rank_fails_the_push_alike_on_all_and_the_next_one_goes_on(ran: Ran) -> None:
    for said in ran.cases["store fails",].values():
        assert said["odd"] == []
        assert said["errors"] >= 4


def test_all_that_was_told_to_be_a_version_is_one_and_each_is_what_was_pushed(ran: Ran) -> None:
    files, store = FileStore(ran.folder), DictStore()
    store.objects = {key: files.get(key) for key in files.list("")}
    with small_groups(GROUP_BYTES), small_parts(1):
        check_store(store)
        records = commits(store)
        wanted = [state_of_step(record.step) for record in records]
        assert all_restored(store, wanted) == [bits(state) for state in wanted]
    told = {record.version: (record.step, record.digest) for record in records}
    for case, found in ran.cases.items():
        for said in found.values():
            for version, step, _, digest in (*said.get("results", ()), *([said["again"]] if "again" in said else ())):
                assert told[version] == (step, digest), case
