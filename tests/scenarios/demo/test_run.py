"""The demo, end to end, in real processes: a toy model, a trainer, two workers, a late one and a laggard."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.scenarios.demo.session import child_with_log, demo, finish, happens, left_of
from tests.support.installed import needs

needs("torch", "transformers", "accelerate", "gguf", "matplotlib")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path, str]:
    out = tmp_path_factory.mktemp("demo") / "out"
    process = demo(out)
    code, printed, errors = finish(process)
    assert code == 0, errors
    assert left_of(process.pid) == []
    return json.loads(printed), out, errors


@pytest.mark.slow
def test_every_worker_ends_with_the_trainers_weights_bit_for_bit(run: tuple[dict[str, Any], Path, str]) -> None:
    report = run[0]
    published = {version["version"]: version["sha256"] for version in report["versions"]}
    assert sorted(published) == list(range(9))
    assert {worker["name"] for worker in report["workers"]} == {"rollout-1", "rollout-2", "late-joiner", "laggard"}
    for worker in report["workers"]:
        assert worker["final_version"] == 8
        assert worker["final_sha256"] == published[8]
        assert [published[pull["version"]] for pull in worker["pulls"]] == [pull["sha256"] for pull in worker["pulls"]]
    assert report["ok"]
    assert report["checks"]["every_worker_equals_trainer"]
    assert report["checks"]["problems"] == []
    assert report["checks"]["versions_in_store"] == 9


@pytest.mark.slow
def test_the_weights_did_change_and_patches_carried_them(run: tuple[dict[str, Any], Path, str]) -> None:
    versions = run[0]["versions"]
    assert versions[0]["kind"] == "keyframe"
    assert {version["kind"] for version in versions[1:]} == {"patch"}
    assert len({version["sha256"] for version in versions}) == 9
    assert all(0 < version["changed"] < version["cells"] / 10 for version in versions[1:])
    assert all(version["nbytes"] < version["full_nbytes"] / 10 for version in versions[1:])


@pytest.mark.slow
def test_the_late_worker_joins_late_and_the_laggard_skips_versions_and_goes_back(
    run: tuple[dict[str, Any], Path, str],
) -> None:
    workers = {worker["role"]: [pull["version"] for pull in worker["pulls"]] for worker in run[0]["workers"]}
    assert workers["late"][0] >= 5
    first, newer, older, again, *_ = workers["laggard"]
    assert first == 0
    assert newer >= 5
    assert older < newer <= again


@pytest.mark.slow
def test_rollout_workers_answered_every_prompt(run: tuple[dict[str, Any], Path, str]) -> None:
    report = run[0]
    assert sum(worker["completions"] for worker in report["workers"]) == 8 * report["completions_per_step"]
    assert sum(report["staleness"]["counts"].values()) * 8 == 8 * report["completions_per_step"]


@pytest.mark.slow
def test_it_leaves_a_report_a_chart_and_logs(run: tuple[dict[str, Any], Path, str]) -> None:
    report, out, errors = run
    assert json.loads((out / "report.json").read_text()) == report
    assert (out / "report.png").read_bytes().startswith(b"\x89PNG")
    assert {path.stem for path in (out / "logs").iterdir()} == {
        "trainer", "rollout-1", "rollout-2", "late-joiner", "laggard",
    }  # fmt: skip
    assert "Bit for bit" in errors
    assert str(out) in errors


@pytest.mark.slow
def test_the_death_of_a_worker_ends_the_demo_with_a_message_and_leaves_no_process(tmp_path: Path) -> None:
    process = demo(tmp_path, steps=10_000)
    victim = happens(process, lambda: child_with_log(process.pid, tmp_path / "logs" / "rollout-1.log"))
    os.kill(victim, signal.SIGKILL)
    code, _, errors = finish(process)
    assert code == 1
    assert "the process rollout-1 was killed by SIGKILL" in errors
    assert left_of(process.pid) == []


@pytest.mark.slow
def test_an_interrupt_ends_all_processes(tmp_path: Path) -> None:
    process = demo(tmp_path, steps=10_000, form="text")
    happens(process, (tmp_path / "logs" / "trainer.log").exists)
    os.killpg(process.pid, signal.SIGINT)
    code, _, errors = finish(process)
    assert code == 130
    assert "no process is left" in errors
    assert "Traceback" not in errors
    assert left_of(process.pid) == []


@pytest.mark.parametrize(
    ("model", "root", "said"),
    [
        ("no-such-package", "", "is no folder, no file and no installed package"),
        ("tiny", "memory://x", "processes can't share"),
    ],
)
def test_what_can_not_work_is_said_at_once(tmp_path: Path, model: str, root: str, said: str) -> None:
    code, printed, errors = finish(demo(tmp_path, model=model, root=root))
    assert (code, printed) == (2, "")
    assert said in errors
