"""The demo with ranks, in real processes: an FSDP2 trainer of two, and a worker of two that holds slices."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

import pulse_registry
from tests.scenarios.demo.session import child_with_log, demo, finish, happens, left_of
from tests.support.installed import needs

pytestmark = pytest.mark.slow

needs("torch", "transformers", "accelerate", "gguf", "matplotlib")

STEPS = 4
TRAINER, SHARDED = ["trainer-0", "trainer-1"], ["sharded-0", "sharded-1"]
Run = tuple[dict[str, Any], Path, str]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    out = tmp_path_factory.mktemp("demo") / "out"
    process = demo(out, steps=STEPS, ranks=2)
    code, printed, errors = finish(process)
    assert code == 0, errors
    assert left_of(process.pid) == []
    return json.loads(printed), out, errors


def test_every_rank_and_every_worker_ends_with_the_trainers_cells(run: Run) -> None:
    report = run[0]
    versions = {version["version"]: version for version in report["versions"]}
    workers = {worker["name"]: worker for worker in report["workers"]}
    assert sorted(versions) == list(range(STEPS + 1))
    assert set(workers) == {"rollout-1", "rollout-2", *SHARDED, "late-joiner", "laggard"}
    for name, worker in workers.items():
        wanted = {
            number: version["slices"][SHARDED.index(name)] if name in SHARDED else version["sha256"]
            for number, version in versions.items()
        }
        assert (worker["final_version"], worker["final_sha256"]) == (STEPS, wanted[STEPS])
        assert [wanted[pull["version"]] for pull in worker["pulls"]] == [pull["sha256"] for pull in worker["pulls"]]
    assert report["ok"]
    assert len({version["sha256"] for version in versions.values()}) == STEPS + 1
    assert len({sha256 for version in versions.values() for sha256 in version["slices"]}) == 2 * (STEPS + 1)


def test_what_the_ranks_pushed_is_whole_in_the_store_and_each_rank_pulled_its_slices_of_it(run: Run) -> None:
    from pulse_registry.demo.fingerprint import fingerprints

    report = run[0]
    with pulse_registry.open(report["root"], run=report["run"], create=False) as registry:
        for version in report["versions"]:
            stored = fingerprints(registry.load(version["version"]), 2)
            assert stored == (version["sha256"], *version["slices"])
        assert {version.metadata["ranks"] for version in registry.versions()} == {2}


def test_patches_carried_what_the_ranks_changed_together(run: Run) -> None:
    first, *later = run[0]["versions"]
    assert first["kind"] == "keyframe"
    assert {version["kind"] for version in later} == {"patch"}
    assert all(0 < version["changed"] < version["cells"] / 10 for version in later)


def test_both_ranks_learned_from_their_share_of_the_groups(run: Run) -> None:
    report = run[0]
    assert sum(worker["completions"] for worker in report["workers"]) == STEPS * report["completions_per_step"]
    assert sum(report["staleness"]["counts"].values()) * 8 == STEPS * report["completions_per_step"]


def test_the_report_tells_what_each_rank_holds_and_what_was_compared(run: Run) -> None:
    report, out, errors = run
    assert report["format"] == 2
    ranks = {rank["process"]: rank for rank in report["ranks"]}
    assert list(ranks) == [*TRAINER, *SHARDED]
    assert [(rank["rank"], rank["ranks"]) for rank in ranks.values()] == [(0, 2), (1, 2)] * 2
    cells = report["versions"][0]["cells"]
    assert sum(ranks[name]["cells"] for name in TRAINER) == cells
    for name in SHARDED:  # and vectors, whole on both
        assert cells / 2 < ranks[name]["cells"] < cells * 0.51
    sharded = [worker for worker in report["workers"] if worker["role"] == "sharded"]
    assert [worker["name"] for worker in sharded] == SHARDED
    assert {pull["checked"] for worker in sharded for pull in worker["pulls"]} == {"state"}
    assert [pull["version"] for pull in sharded[0]["pulls"]] == [pull["version"] for pull in sharded[1]["pulls"]]
    assert {path.stem for path in (out / "logs").iterdir()} >= {*TRAINER, *SHARDED}
    for name in (*TRAINER, *SHARDED):
        assert f"{name}  rank {ranks[name]['rank']} of 2" in errors
    assert "all 5 workers, one of 2 ranks," in " ".join(errors.split())


def assert_named(process: subprocess.Popen[str], name: str) -> None:
    """Look for a process that was killed in what the demo says at its end, and for processes that are left."""
    code, _, errors = finish(process)
    assert code == 1
    assert f"the process {name} was killed by SIGKILL" in errors
    assert left_of(process.pid) == []


def test_a_rank_that_is_killed_before_the_others_have_met_it_is_named_and_no_process_is_left(tmp_path: Path) -> None:
    process = demo(tmp_path, steps=10_000, ranks=2)
    os.kill(happens(process, lambda: child_with_log(process.pid, tmp_path / "logs" / "trainer-1.log")), signal.SIGKILL)
    assert_named(process, "trainer-1")


@pytest.mark.sweep
@pytest.mark.parametrize("name", [*TRAINER, *SHARDED])
def test_a_rank_that_is_killed_in_the_middle_is_named_and_not_those_that_miss_it(name: str, tmp_path: Path) -> None:
    process = demo(tmp_path, steps=10_000, ranks=2)
    victim = happens(process, lambda: child_with_log(process.pid, tmp_path / "logs" / f"{name}.log"))
    for begun in ("log/000000000001.json", "log/000000000002.json" if name in TRAINER else "leases/sharded*"):
        happens(process, lambda begun=begun: any(tmp_path.glob(f"registry/*/{begun}")))  # type: ignore[misc]
    os.kill(victim, signal.SIGKILL)
    assert_named(process, name)
