"""Trainers in real processes: two that race for a run, one that is killed at every store call, one that never waits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from pulse_registry.options import ComputeOptions, Options
from pulse_registry.registry import Registry
from pulse_registry.store import FileStore, Store
from tests.scenarios.e2e.trainers import SCENARIOS, model_of, registry_of
from tests.support.groups import small_groups
from tests.support.registries import bits, check_store, commits, garbage, settle, state_of

ROOT = Path(__file__).parents[3]


def trainers(*arguments: str | Path, environment: Mapping[str, str] | None = None) -> Any:
    """Run the script, and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.scenarios.e2e.trainers", *map(str, arguments)],
        cwd=ROOT,
        env=os.environ | {"PYTHONWARNINGS": "error"} | dict(environment or {}),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def check_versions(store: Store, versions: Sequence[int]) -> None:
    """Pull versions, each into memory that holds nothing of any."""
    with Registry(store, "run", Options(compute=ComputeOptions(backend="reference"))) as reader:
        for version in versions:
            into = garbage(model_of(0))
            assert reader.pull(version, into=into).version == version
            assert bits(into) == bits(model_of(version))


def check_race(store: Store, stories: Any, rounds: int) -> None:
    """Check what two trainers were told in a race of so many rounds against what the store holds."""
    records = commits(store)
    told = {version: (step, digest) for story in stories for version, step, digest in story["told"]}
    assert sorted(story["racer"] for story in stories) == [0, 1]
    assert sum(len(story["told"]) for story in stories) == 2 * rounds == len(told), "no version was given twice"
    # Every acknowledged push is in the log, and the log holds no other: the versions have no gap.
    assert {r.version: (r.step, r.digest) for r in records} == told
    assert sorted(told) == list(range(2 * rounds))
    refused = [step for story in stories for step, _ in story["refused"]]
    assert len(refused) > rounds // 4, "they got in each other's way"
    assert {name for story in stories for _, name in story["refused"]} <= {"Fenced", "Conflict"}
    assert not set(refused) & {record.step for record in records}, "what was refused has had no effect"
    check_store(store)
    with Registry(store, "run", Options(compute=ComputeOptions(backend="reference"))) as reader:
        worker = garbage(model_of(0))
        for version in range(0, 2 * rounds, 7):
            reader.pull(version, into=worker)
            assert bits(worker) == bits(model_of(told[version][0]))


def check_crash(open_run: Callable[[str], Store], told: Any, scenario: str) -> None:
    """Check the runs that trainers killed at these calls (before it, or after it) have left, and go on with them."""
    calls = told["calls"]
    before, keyframe_every = SCENARIOS[scenario]
    attached = scenario == "keyframe"
    records = [nth for nth, call in enumerate(calls, 1) if call.startswith("put run/log/0")]
    commit = records[-2 if attached else -1]  # the last record is the keyframe's, if one is attached
    for nth, after in told["killed"]:
        store = open_run(f"{nth}-{'after' if after else 'before'}")
        landed = before + (nth >= commit + (not after))
        assert [record.step for record in commits(store)] == list(range(landed)), (calls[nth - 1], after)
        check_store(store)
        # Nothing is repaired: the next trainer goes on from what is there.
        with registry_of(store, keyframe_every) as trainer:
            for version in range(landed, before + 3):
                assert trainer.push(version, model_of(version)).version == version
            settle(trainer)
        check_store(store)
        assert [record.step for record in commits(store)] == list(range(before + 3))
        check_versions(store, range(before + 3))
    whole = open_run(told["whole"])
    assert len(commits(whole)) == before + 1
    assert (before in [keyframe.version for keyframe in state_of(whole).keyframes]) == (attached or scenario == "first")


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [30, pytest.param(100, marks=pytest.mark.sweep)])
def test_two_trainers_that_race_commit_each_version_once_and_lose_nothing(tmp_path: Path, rounds: int) -> None:
    check_race(FileStore(tmp_path), trainers("race", tmp_path, rounds), rounds)


SWEPT = [pytest.param(scenario, 1, marks=pytest.mark.sweep) for scenario in ("first", "patch", "keyframe", "again")]


@pytest.mark.slow
@pytest.mark.parametrize(("scenario", "stride"), [("first", 3), ("patch", 5), ("keyframe", 5), ("again", 5), *SWEPT])
def test_a_trainer_killed_at_any_store_call_leaves_whole_versions_and_a_run_that_goes_on(
    tmp_path: Path, scenario: str, stride: int
) -> None:
    told = trainers("crash", tmp_path, scenario, str(stride))
    assert len(told["killed"]) >= 2 * len(told["calls"]) // stride
    check_crash(lambda name: FileStore(tmp_path / name), told, scenario)


@pytest.mark.slow
def test_a_trainer_that_never_waits_is_not_overtaken_by_itself(tmp_path: Path) -> None:
    told = trainers("overtake", tmp_path, 40)
    assert [(version, step) for version, step, _ in told] == [(n, n) for n in range(40)]
    store = FileStore(tmp_path)
    assert [[r.version, r.step, r.digest] for r in commits(store)] == told
    assert not check_store(store)
    model = model_of(0)
    with small_groups(16), Registry(store, "run", Options(compute=ComputeOptions(backend="reference"))) as reader:
        for version in range(40):
            model["a"] += 1
            if version % 8 == 3:
                into = garbage(model)
                reader.pull(version, into=into)
                assert bits(into) == bits(model)
