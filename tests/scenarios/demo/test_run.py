"""The demo, end to end, in real processes: a toy model, a trainer, two workers, a late one and a laggard."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.installed import needs
from tests.support.waiting import HANG_S, until

needs("torch", "transformers", "accelerate", "gguf", "matplotlib")

PROGRAM = """
import signal, sys
from pathlib import Path
from pulse_registry.demo import run_demo

signal.signal(signal.SIGINT, signal.default_int_handler)  # the tests may run in the background, where it is ignored

steps, model, root, out, as_json = sys.argv[1:]
sys.exit(run_demo(steps=int(steps), model=model, root=root or None, out=Path(out), json_output=as_json == "json"))
"""


def demo(
    out: Path, *, steps: int = 8, model: str = "tiny", root: str = "", form: str = "json"
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(steps), model, root, str(out), form],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    try:
        out, errors = process.communicate(timeout=240)
    finally:
        process.kill()
        process.wait()
    return process.returncode, out, errors


def session_of(folder: Path) -> int:
    return int((folder / "stat").read_text().rpartition(")")[2].split()[3])


def left_of(session: int, seconds: float = HANG_S) -> list[str]:
    """Return the command lines of a session's processes that do not end by themselves, as Python's own helper does."""
    left = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if session_of(folder) != session:
                continue
            ended = os.pidfd_open(int(folder.name))
            try:
                if not select.select([ended], [], [], seconds)[0]:
                    left.append((folder / "cmdline").read_text())
            finally:
                os.close(ended)
    return left


def happens(process: subprocess.Popen[str], ready: Callable[[], Any]) -> Any:
    """Wait until something is so while a process runs, and return it."""
    until(lambda: ready() or process.poll() is not None)
    if not (result := ready()):
        raise AssertionError(f"the demo ended: {process.communicate()}")
    return result


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path, str]:
    out = tmp_path_factory.mktemp("demo") / "out"
    process = demo(out)
    code, printed, errors = finish(process)
    assert code == 0, errors
    assert left_of(process.pid) == []
    return json.loads(printed), out, errors


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


def test_the_weights_did_change_and_patches_carried_them(run: tuple[dict[str, Any], Path, str]) -> None:
    versions = run[0]["versions"]
    assert versions[0]["kind"] == "keyframe"
    assert {version["kind"] for version in versions[1:]} == {"patch"}
    assert len({version["sha256"] for version in versions}) == 9
    assert all(0 < version["changed"] < version["cells"] / 10 for version in versions[1:])
    assert all(version["nbytes"] < version["full_nbytes"] / 10 for version in versions[1:])


def test_the_late_worker_joins_late_and_the_laggard_skips_versions_and_goes_back(
    run: tuple[dict[str, Any], Path, str],
) -> None:
    workers = {worker["role"]: [pull["version"] for pull in worker["pulls"]] for worker in run[0]["workers"]}
    assert workers["late"][0] >= 5
    first, newer, older, again, *_ = workers["laggard"]
    assert first == 0
    assert newer >= 5
    assert older < newer <= again


def test_rollout_workers_answered_every_prompt(run: tuple[dict[str, Any], Path, str]) -> None:
    report = run[0]
    assert sum(worker["completions"] for worker in report["workers"]) == 8 * report["completions_per_step"]
    assert sum(report["staleness"]["counts"].values()) * 8 == 8 * report["completions_per_step"]


def test_it_leaves_a_report_a_chart_and_logs(run: tuple[dict[str, Any], Path, str]) -> None:
    report, out, errors = run
    assert json.loads((out / "report.json").read_text()) == report
    assert (out / "report.png").read_bytes().startswith(b"\x89PNG")
    assert {path.stem for path in (out / "logs").iterdir()} == {
        "trainer", "rollout-1", "rollout-2", "late-joiner", "laggard",
    }  # fmt: skip
    assert "Bit for bit" in errors
    assert str(out) in errors


def test_the_death_of_a_worker_ends_the_demo_with_a_message_and_leaves_no_process(tmp_path: Path) -> None:
    process = demo(tmp_path, steps=10_000)
    victim = happens(process, lambda: child_with_log(process.pid, tmp_path / "logs" / "rollout-1.log"))
    os.kill(victim, signal.SIGKILL)
    code, _, errors = finish(process)
    assert code == 1
    assert "the process rollout-1 was killed by SIGKILL" in errors
    assert left_of(process.pid) == []


def child_with_log(session: int, log: Path) -> int | None:
    """Return the process of a session whose standard output is this file."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if session_of(folder) == session and (folder / "fd" / "1").resolve() == log.resolve():
                return int(folder.name)
    return None


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
