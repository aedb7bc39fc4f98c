"""The doctor on real servers: what it says of those whose ways are known."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from pulse_registry.doctor import Examination, Level, Plan, Report
from pulse_registry.store import open_store
from tests.support.command_line import Pulse
from tests.support.servers import S3Bucket
from tests.support.service import pulse_serve

SMALL = Plan(rounds=2, racers=6, samples=4, listed=20, large_bytes=17 << 20)
FULL = Plan()


def examine(url: str, plan: Plan) -> Report:
    with Examination(open_store(url), observer=open_store(url), plan=plan, rng=random.Random(0)) as examination:
        return examination.report()


def levels(report: Report, level: Level) -> set[str]:
    return {finding.check for finding in report.findings if finding.level is level}


def left(url: str) -> list[str]:
    return [*open_store(url).list("")]


def check_seaweedfs(url: str, bucket: S3Bucket, plan: Plan) -> None:
    report = examine(url, plan)
    assert report.safe, report.document()
    # Its listings are those of a tree of folders.
    assert levels(report, Level.WARN) <= {
        "names that begin alike are listed",
        "small objects are quick",
        "large objects are quick",
    }
    assert {"signed gets are bounded", "signed puts are conditional", "clocks agree"} <= levels(report, Level.OK)
    assert left(url) == []
    assert not bucket.server.client().list_multipart_uploads(Bucket=bucket.name).get("Uploads")


def check_moto(url: str, plan: Plan) -> None:
    report = examine(url, plan)
    assert report.safe, report.document()
    # It checks no signature.
    assert {"signed gets are bounded", "signed puts are conditional"} <= levels(report, Level.WARN)
    assert left(url) == []


def check_rclone(url: str, plan: Plan) -> None:
    report = examine(url, plan)
    assert not report.safe
    unsafe = levels(report, Level.UNSAFE)
    assert unsafe >= {"creates refuse taken keys", "creates have one winner", "lost answers can be told"}
    # Its puts are not always whole, and an object that was raced for may be there again after it was deleted.
    assert unsafe <= {
        "creates refuse taken keys",
        "creates have one winner",
        "lost answers can be told",
        "puts are whole",
    }
    (race,) = (finding for finding in report.findings if finding.check == "creates have one winner")
    assert "one trainer at a time" in race.advice
    assert "through the service" in race.advice


@pytest.mark.slow
def test_rclone_is_unsafe_for_more_than_one_writer(rclone_url: str) -> None:
    check_rclone(rclone_url, SMALL)


@pytest.mark.sweep
def test_seaweedfs_is_safe_by_the_whole_examination(seaweedfs_url: str, seaweedfs_bucket: S3Bucket) -> None:
    check_seaweedfs(seaweedfs_url, seaweedfs_bucket, FULL)


@pytest.mark.sweep
def test_moto_is_safe_by_the_whole_examination_and_known_to_check_no_signatures(moto_url: str) -> None:
    check_moto(moto_url, FULL)


@pytest.mark.sweep
def test_rclone_is_unsafe_by_the_whole_examination(rclone_url: str) -> None:
    check_rclone(rclone_url, FULL)


@pytest.mark.slow
def test_a_service_is_examined_without_writing_to_it(tmp_path: Path, pulse: Pulse) -> None:
    (tmp_path / "registry").mkdir()
    with pulse_serve(str(tmp_path / "registry"), tmp_path, "--insecure-open") as served:
        answer = pulse("doctor", "--root", served.url, "--json")
    assert answer.code == 0, answer
    assert [finding["level"] for finding in answer.json["findings"]] == ["warn", "ok"]
    assert "one replica" in answer.json["findings"][0]["advice"]
    assert [*(tmp_path / "registry").iterdir()] == []
