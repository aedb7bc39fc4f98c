"""The demo on an S3 store, and through the service with a token and no keys of the bucket."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.installed import needs
from tests.support.servers import S3Server
from tests.support.service import Service

needs("torch", "transformers", "accelerate", "gguf", "matplotlib")

pytestmark = pytest.mark.sweep


def run_demo(root: str, out: Path, environment: Mapping[str, str], *more: str) -> dict[str, Any]:
    arguments = ["demo", "--steps", "6", "--model", "tiny", "--root", root, "--out", str(out), "--json", *more]
    done = subprocess.run(
        [sys.executable, "-c", "import sys; from pulse_registry.cli import main; sys.exit(main())", *arguments],
        env=dict(environment),
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def without_keys() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "PULSE_"))}


def assert_equal_bits(report: dict[str, Any]) -> None:
    published = {version["version"]: version["sha256"] for version in report["versions"]}
    assert sorted(published) == list(range(7))
    assert len(report["workers"]) == 4
    for worker in report["workers"]:
        assert worker["final_sha256"] == published[6]
        assert all(pull["equal"] for pull in worker["pulls"])
    assert report["ok"]


def test_it_ends_bit_equal_on_s3(seaweedfs: S3Server, seaweedfs_url: str, tmp_path: Path) -> None:
    assert_equal_bits(run_demo(seaweedfs_url, tmp_path, {**without_keys(), **seaweedfs.environment}))


def test_it_ends_bit_equal_through_the_service_with_a_token_alone(services: dict[str, Service], tmp_path: Path) -> None:
    service = services["seaweedfs"]
    report = run_demo(service.url, tmp_path, {**without_keys(), "PULSE_TOKEN": service.token})
    assert_equal_bits(report)
    assert service.token not in json.dumps(report) + "".join(log.read_text() for log in tmp_path.rglob("*.log"))


def test_its_ranks_end_bit_equal_through_the_service(file_service: Service, tmp_path: Path) -> None:
    report = run_demo(file_service.url, tmp_path, {**without_keys(), "PULSE_TOKEN": file_service.token}, "--ranks", "3")
    assert report["ok"]
    assert {rank["process"]: rank["ranks"] for rank in report["ranks"]} == {
        "trainer-0": 3, "trainer-1": 3, "trainer-2": 3, "sharded-0": 2, "sharded-1": 2,
    }  # fmt: skip
    assert all(pull["equal"] for worker in report["workers"] for pull in worker["pulls"])
