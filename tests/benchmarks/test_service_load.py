"""The service's load benchmarks run, at sizes whose times mean nothing; errors, lost waiters and leaks do."""

from __future__ import annotations

import json
import os
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from benchmarks.service import fleet, fleet_page
from benchmarks.service.attacked import Attacked, run_attacked
from benchmarks.service.attackers import ATTACKS
from benchmarks.service.followed import Followed, run_followed
from benchmarks.service.soak import Soak, run_soak
from benchmarks.service.suite import Size, run_suite

pytestmark = pytest.mark.slow

needs_wrk = pytest.mark.skipif(
    shutil.which("wrk") is None and not os.environ.get("PULSE_REQUIRE_WRK"), reason="wrk is not installed"
)


def by_key(document: dict[str, Any]) -> dict[str, Any]:
    assert json.loads(json.dumps(document)) == document
    return {row["key"]: row["value"] for row in document["rows"]}


@needs_wrk
def test_load_is_answered_without_an_error_and_no_waiter_is_lost(seaweedfs_url: str, tmp_path: Path) -> None:
    size = Size(connections=4, seconds=1, waiters=100, rounds=2, versions=3)
    document = run_suite(seaweedfs_url, tmp_path, size, os.environ, say=lambda _: None)
    found = by_key(document)
    assert found["latest"] > 0 < found["route"]
    assert found["latest_failed"] == found["route_failed"] == found["wake_lost"] == 0
    assert all(round_["max_ms"] > 0 for round_ in document["wake"])


@needs_wrk
def test_a_short_soak_has_no_errors_and_leaks_no_descriptors(seaweedfs_url: str, tmp_path: Path) -> None:
    soak = Soak(minutes=0.05, connections=4, push_every_s=0.3, sample_every_s=0.3)
    found = by_key(run_soak(seaweedfs_url, tmp_path, soak, os.environ, say=lambda _: None))
    assert found["load"] > 0
    assert found["failed"] == 0
    assert found["descriptors"] <= 2


@needs_wrk
@pytest.mark.sweep
def test_a_soak_of_half_an_hour_keeps_memory_and_descriptors(seaweedfs_url: str, tmp_path: Path) -> None:
    document = run_soak(seaweedfs_url, tmp_path, Soak(), os.environ, say=lambda _: None)
    found = by_key(document)
    assert found["failed"] == 0
    assert found["rss_growth"] < 5, document["samples"]
    assert found["descriptors"] <= 2, document["samples"]


def test_of_followed_runs_each_record_reaches_its_waiter_and_each_append_its_writer() -> None:
    size = Followed(runs=5, waited=2, rounds=2, latency_s=0.0, settle_s=0.0)
    found = by_key(run_followed(size, say=lambda _: None))
    assert {key for key, value in found.items() if value > 0} == {
        f"{which}_{what}"
        for which in ("few", "all")
        for what in ("woken_p50", "woken_max", "appended_p50", "appended_max", "looks")
    }


def test_of_a_fleet_every_version_is_told_in_every_stream_and_every_worker_reports(
    seaweedfs_url: str, tmp_path: Path
) -> None:
    size = fleet.Size(
        runs=6, workers=12, trainers=2, push_every_s=0.2, streams=2, stalled=1, pace=5, seconds=8, settle_s=0
    )
    document = fleet.run_fleet(seaweedfs_url, tmp_path, size, os.environ, say=lambda _: None)
    found = by_key(document)
    assert found["failures"] == 0, document
    assert document["news"]["told"] > 0
    assert document["news"]["untold"] == 0
    assert document["crew"]["versions"] > 0
    assert found["reports"] > 0 < found["stream"]


def test_the_table_of_runs_shows_every_version_that_comes() -> None:
    names = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    path = os.environ.get("PULSE_CHROMIUM") or next(filter(None, map(shutil.which, names)), None)
    if path is None and not os.environ.get("PULSE_REQUIRE_CHROMIUM"):
        pytest.skip("no Chromium here")
    size = fleet_page.Size(runs=5, workers=2, changes=5, seconds=2)
    found = by_key(fleet_page.run_page(size, str(path), say=lambda _: None))
    assert found["wide_pushed"] > 0 < found["narrow_pushed"]
    assert found["wide_draw"] > 0 < found["narrow_share"]


def test_the_age_of_news_counts_from_each_version_to_the_first_line_that_tells_of_it_or_of_a_later_one() -> None:
    def at(second: float) -> str:
        return f"2030-01-01T00:00:{second:06.3f}Z"

    zero = datetime(2030, 1, 1, tzinfo=UTC).timestamp()
    made = [("a", 1, at(1)), ("a", 2, at(2)), ("b", 1, at(3)), ("a", 3, at(50))]
    told = [[("a", 1, zero + 1.5), ("b", 1, zero + 4), ("a", 2, zero + 5)], [("a", 2, zero + 2.25)]]
    news, untold = fleet.news_s(made, told, zero, zero + 40)
    assert [round(one, 3) for one in news] == [0.25, 0.5, 1.0, 1.25, 3.0, 40.0]
    assert untold == 1


def test_under_attack_the_service_lives_and_answers_others_without_an_error(tmp_path: Path) -> None:
    size = Attacked(seconds=2, pace=10, senders=1, stalled=8, body_bytes=1 << 20, names=20)
    document = run_attacked(tmp_path, size, say=lambda _: None)
    found = by_key(document)
    assert found["alive"] == 1
    assert found["quiet_failed"] == found["attacked_failed"] == found["attacked_push_failed"] == 0, document
    assert document["attacked"]["attacks"].keys() == {*ATTACKS}
