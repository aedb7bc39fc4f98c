"""The demo of outer rounds, end to end, in real processes over a real S3 server: a toy model, disturbed trainers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.scenarios.demo.session import finish, left_of
from tests.support.installed import needs

needs("torch", "transformers", "accelerate", "gguf", "matplotlib", "boto3", "s3fs")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="it stops processes, and they end with their parent"),
]


def start(out: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "pulse_registry.demo.outer", "--model", "tiny", "--out", str(out), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path, str]:
    out = tmp_path_factory.mktemp("outer") / "out"
    process = start(out, "--inner-steps", "1", "--learning-rate", "1e-3", "--grace", "2")
    code, printed, errors = finish(process)
    assert code == 0, printed[-4000:] + errors[-4000:]
    assert left_of(process.pid) == []
    return json.loads((out / "report.json").read_text()), out, printed


def test_all_trainers_and_workers_end_with_the_same_bits(run: tuple[dict[str, Any], Path, str]) -> None:
    report, out, printed = run
    assert report["problems"] == []
    assert len(report["trainers"]) == 4
    for what in ("theta", "momentum", "sha256"):
        assert len({trainer[what] for trainer in report["trainers"]}) == 1
    assert len(report["workers"]) == 2
    for worker in report["workers"]:
        assert [pull["version"] for pull in worker["pulls"]] == list(range(report["rounds"] + 1))
        assert worker["pulls"][-1]["sha256"] == report["trainers"][0]["sha256"]
    assert "Bit for bit" in printed
    assert f"version {report['rounds']}" in (out / "logs" / "verify.log").read_text()
    assert (out / "logs" / "outer-verify.log").read_text()
    assert (out / "report.png").read_bytes().startswith(b"\x89PNG")


def test_one_joined_late_one_was_stopped_one_killed_and_all_were_in_rounds_again(
    run: tuple[dict[str, Any], Path, str],
) -> None:
    report = run[0]
    members = {entry["round"]: set(entry["members"]) for entry in report["by_round"]}
    names = {"trainer-1", "trainer-2", "trainer-3", "trainer-4"}
    changes = {trainer["name"]: [one["change"] for one in trainer["changes"]] for trainer in report["trainers"]}
    assert changes == {
        "trainer-1": ["started"],
        "trainer-2": ["started", "stopped", "resumed"],
        "trainer-3": ["started", "killed", "returned"],
        "trainer-4": ["started"],
    }
    assert any("trainer-2" in entry["late"] for entry in report["by_round"])
    for name in names - {"trainer-1"}:
        assert any(name not in there for there in members.values())
        assert name in members[report["rounds"]] | members[report["rounds"] - 1] | members[report["rounds"] - 2]
    assert set.union(*members.values()) == names


def test_trainers_send_less_than_dense_float32(run: tuple[dict[str, Any], Path, str]) -> None:
    report = run[0]
    assert 0 < report["sent_bytes"] < report["sent_bytes_dense"] / 4
