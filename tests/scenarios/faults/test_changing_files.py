"""Files that change while they are read, and after they were checked: no cell arrives that nobody has committed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.scenarios.faults.changing_files import CACHES, KINDS, Kind, World, flip
from tests.support.waiting import HANG_S


@pytest.fixture(scope="module", params=KINDS)
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> World:
    kind: Kind = request.param
    return World(tmp_path_factory.mktemp("world"), kind)


@pytest.mark.parametrize("load", [False, True], ids=["into", "load"])
@pytest.mark.parametrize("cache", CACHES)
def test_a_pull_whose_files_change_after_any_read_brings_what_was_committed_or_nothing(
    world: World, cache: str, load: bool
) -> None:
    outcomes = world.pull_at_every_read(cache, flip, load=load)
    assert outcomes["pulled"] >= 1, "after the last read nothing is read any more"
    assert outcomes["refused"] >= 3, "what is damaged before it was read is seen"


@pytest.mark.parametrize("cache", CACHES)
def test_what_was_staged_is_applied_as_it_was_checked_whatever_becomes_of_its_files(world: World, cache: str) -> None:
    world.change_what_is_staged(cache, flip)


def test_files_that_are_cut_short_at_any_moment_kill_nobody() -> None:
    command = [sys.executable, "-m", "tests.scenarios.faults.changing_files"]
    child = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, cwd=Path(__file__).parents[3])
    assert child.returncode == 0, f"{child.returncode}: {child.stderr[-2000:]}"
    lines = child.stdout.splitlines()
    assert lines[-1] == "alive"
    assert len(lines) == len(KINDS) * len(CACHES) + 1
    assert all("refused" in line and "pulled" in line for line in lines[:-1])
