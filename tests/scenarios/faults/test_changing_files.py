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


STRIDES = pytest.mark.parametrize(
    "stride", [2, pytest.param(1, marks=pytest.mark.sweep)], ids=["every second", "every"]
)


@STRIDES
@pytest.mark.parametrize("load", [False, True], ids=["into", "load"])
@pytest.mark.parametrize("cache", CACHES)
def test_a_pull_whose_files_change_after_any_read_brings_what_was_committed_or_nothing(
    world: World, cache: str, load: bool, stride: int
) -> None:
    outcomes = world.pull_at_reads(cache, flip, stride, load=load)
    assert outcomes["pulled"] >= 1, "after the last read nothing is read any more"
    assert outcomes["refused"] >= 2, "what is damaged before it was read is seen"


@pytest.mark.parametrize("cache", CACHES)
def test_what_was_staged_is_applied_as_it_was_checked_whatever_becomes_of_its_files(world: World, cache: str) -> None:
    world.change_what_is_staged(cache, flip)


@pytest.mark.slow
@STRIDES
def test_files_that_are_cut_short_at_any_moment_kill_nobody(stride: int) -> None:
    command = [sys.executable, "-m", "tests.scenarios.faults.changing_files", str(stride)]
    child = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, cwd=Path(__file__).parents[3])
    assert child.returncode == 0, f"{child.returncode}: {child.stderr[-2000:]}"
    lines = child.stdout.splitlines()
    assert lines[-1] == "alive"
    assert len(lines) == len(KINDS) * len(CACHES) + 1
    assert all("refused" in line and "pulled" in line for line in lines[:-1])
