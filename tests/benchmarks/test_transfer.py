"""The transfer benchmark runs, at sizes whose times mean nothing, and says what it is to say."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from benchmarks.results import rows_of
from benchmarks.transfer import Taken, Way, app, rows

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("transfer") / "transfer.json"
    arguments = ["--mb", "4", "--repeats", "1", "--peak", "20", "--out", str(out)]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("os.environ", dict(os.environ))
        answer = CliRunner().invoke(app, arguments)
    assert answer.exit_code == 0, answer.output
    parsed: dict[str, Any] = json.loads(Path(out).read_text())
    return parsed


def test_every_way_has_a_rate_and_its_cpu_time(document: dict[str, Any]) -> None:
    found = {row.key: row for row in rows_of(document)}
    for verb in ("pull", "push"):
        ways = {key for key in found if key.startswith(f"{verb}.") and found[key].unit == "MB/s"}
        assert {key.split(",")[0].removeprefix(f"{verb}.") for key in ways} == {
            "the library",
            "boto3",
            "s3fs",
            "obstore",
        }
        assert all(found[f"{key}.cpu"].value >= 0 < found[key].value for key in ways)
    limits = [row.key for row in found.values() if row.limit is not None]
    assert sorted(key.rpartition(".")[2] for key in limits if "peak" not in key) == ["rate"] * 4 + ["share"] * 4


def test_a_keyframe_of_any_size_is_streamed_in_bounded_memory(document: dict[str, Any]) -> None:
    peaks = [row for row in rows_of(document) if row.key.startswith("peak.")]
    assert len(peaks) == 2
    assert all(row.holds for row in peaks), peaks


def test_the_library_is_held_against_the_fastest_of_the_others() -> None:
    ways = [Way("ours", True, list), Way("slow", False, list), Way("fast", False, list)]
    found = {"ours": [Taken(2.0, 3.0)], "slow": [Taken(4.0, 1.0)], "fast": [Taken(1.0, 2.0)]}
    by_key = {row.key: row for row in rows("pull", 10**6, ways, found)}
    assert by_key["pull.ours"].value == 0.5
    assert (by_key["pull.ours.rate"].value, by_key["pull.ours.share"].value) == (0.5, 1.5)
    assert "(fast)" in by_key["pull.ours.rate"].what
