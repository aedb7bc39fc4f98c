"""The service's load benchmarks run, at sizes whose times mean nothing; errors, lost waiters and leaks do."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from benchmarks.service.soak import Soak, run_soak
from benchmarks.service.suite import Size, run_suite

pytestmark = pytest.mark.skipif(
    shutil.which("wrk") is None and not os.environ.get("PULSE_REQUIRE_WRK"), reason="wrk is not installed"
)


def by_key(document: dict[str, Any]) -> dict[str, Any]:
    assert json.loads(json.dumps(document)) == document
    return {row["key"]: row["value"] for row in document["rows"]}


def test_load_is_answered_without_an_error_and_no_waiter_is_lost(seaweedfs_url: str, tmp_path: Path) -> None:
    size = Size(connections=4, seconds=1, waiters=100, rounds=2, versions=3)
    document = run_suite(seaweedfs_url, tmp_path, size, os.environ, say=lambda _: None)
    found = by_key(document)
    assert found["latest"] > 0 < found["route"]
    assert found["latest_failed"] == found["route_failed"] == found["wake_lost"] == 0
    assert all(round_["max_ms"] > 0 for round_ in document["wake"])


def test_a_short_soak_has_no_errors_and_leaks_no_descriptors(seaweedfs_url: str, tmp_path: Path) -> None:
    soak = Soak(minutes=0.05, connections=4, push_every_s=0.3, sample_every_s=0.3)
    found = by_key(run_soak(seaweedfs_url, tmp_path, soak, os.environ, say=lambda _: None))
    assert found["load"] > 0
    assert found["failed"] == 0
    assert found["descriptors"] <= 2


@pytest.mark.sweep
def test_a_soak_of_half_an_hour_keeps_memory_and_descriptors(seaweedfs_url: str, tmp_path: Path) -> None:
    document = run_soak(seaweedfs_url, tmp_path, Soak(), os.environ, say=lambda _: None)
    found = by_key(document)
    assert found["failed"] == 0
    assert found["rss_growth"] < 5, document["samples"]
    assert found["descriptors"] <= 2, document["samples"]
