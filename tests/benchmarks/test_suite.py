"""The benchmarks run, on states too small for their times to mean anything; what is deterministic is held to limits."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from benchmarks.__main__ import app
from benchmarks.report import PAGE, with_tables
from benchmarks.results import Row, read_results, rows_of
from benchmarks.states import save_states
from benchmarks.suite import BITS_LIMIT, run_suite
from benchmarks.synthetic import synthetic_states

CODERS = ("gap", "class", "auto")


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    """One run of all benchmarks, memory included, on two million cells."""
    states = synthetic_states(2_000_000, steps=2, seed=3)
    found = run_suite(states, threads=2, repeats=5, say=lambda _: None)
    parsed: dict[str, Any] = json.loads(json.dumps(found))
    return parsed


def test_a_run_says_what_it_ran_on(document: dict[str, Any]) -> None:
    assert document["states"]["kind"] == "synthetic"
    assert document["states"]["seed"] == 3
    assert document["states"]["steps"] == 2
    assert document["machine"]["cores"] >= 1
    assert {"python", "numpy", "numba", "zstandard"} <= set(document["versions"])


def test_each_limit_has_its_row(document: dict[str, Any]) -> None:
    limits = {row.key: (row.sense, row.limit) for row in rows_of(document) if row.limit is not None}
    expected: dict[str, tuple[str, float]] = {"diff": ("at least", 0.6)}
    expected |= {f"bits_{coder}": ("at most", limit) for coder, limit in BITS_LIMIT.items()}
    expected |= {f"{what}_{coder}": ("at most", 1.0) for what in ("push", "pull") for coder in CODERS}
    if sys.platform == "linux":
        expected |= {f"memory_push_{coder}": ("at most", 0.25) for coder in CODERS}
        expected |= {f"memory_pull_{coder}": ("at most", 0.1) for coder in CODERS}
    assert limits == expected


def test_every_measurement_is_repeated(document: dict[str, Any]) -> None:
    times = document["times"]
    for key in ("push", "stage_apply", "xor_zstd_encode", "xor_zstd_decode"):
        assert all(found["repeats"] >= 5 and found["min_ms"] > 0 for found in times[key].values())
    assert set(times["push"]) == set(times["stage_apply"]) == set(CODERS)
    assert all(found["repeats"] >= 5 for found in document["bandwidth"].values())


def test_phases_of_pushes_and_pulls_are_told(document: dict[str, Any]) -> None:
    for coder in CODERS:
        assert {"diff", "code", "upload", "commit"} <= set(document["times"]["push_phases_ms"][coder])
        assert {"route", "fetch", "decode", "verify", "apply"} <= set(document["times"]["pull_phases_ms"][coder])


def test_patches_of_synthetic_steps_stay_within_the_limits_on_bytes(document: dict[str, Any]) -> None:
    assert len(document["sizes"]) == 2
    for row in document["sizes"]:
        bits = row["bits"]
        assert bits["class"] <= BITS_LIMIT["class"]
        assert bits["gap"] <= BITS_LIMIT["gap"]
        assert row["entropy_bits"] < bits["class"] < bits["gap"] < bits["xor_zstd"] < 48
        assert bits["auto"] <= bits["gap"]


def test_costs_of_the_coders_are_weighed(document: dict[str, Any]) -> None:
    coders = document["coders"]
    assert set(coders["ns_per_cell"]) == {"gap_encode", "gap_decode", "class_encode", "class_decode"}
    assert 0 < coders["class_saves"] < 1


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_of_pushes_and_pulls_is_measured_in_processes_of_their_own(document: dict[str, Any]) -> None:
    assert set(document["memory"]) == {f"{what} {coder}" for what in ("push", "pull") for coder in CODERS}
    for found in document["memory"].values():
        assert found["peak"] > 0
        assert found["samples"] > 0 or found["kernel_mark"]


def test_too_few_repeats_are_refused() -> None:
    with pytest.raises(ValueError, match="too few"):
        run_suite(synthetic_states(20_000, 1), threads=1, repeats=4)


def test_the_command_runs_on_a_folder_of_states_and_writes_its_result(tmp_path: Path) -> None:
    folder = tmp_path / "states"
    folder.mkdir()
    save_states(synthetic_states(50_000, 1), folder, 2)
    arguments = [
        "--states",
        str(folder),
        "--title",
        "a folder",
        "--repeats",
        "5",
        "--no-memory",
        "--out",
        str(tmp_path),
    ]
    ran = CliRunner().invoke(app, arguments)
    assert ran.exit_code == 0, ran.output
    assert "a folder (recorded)" in ran.output
    written = json.loads((tmp_path / "a-folder.json").read_text())
    assert (written["states"]["kind"], written["states"]["seed"], written["memory"]) == ("recorded", None, {})


def test_the_command_says_what_is_wrong_with_a_folder(tmp_path: Path) -> None:
    ran = CliRunner().invoke(app, ["--states", str(tmp_path)])
    assert ran.exit_code == 2
    assert "at least two states" in ran.output


def test_the_tables_of_the_page_are_those_of_the_result_files() -> None:
    page = PAGE.read_text()
    assert with_tables(page, read_results()) == page, "run python -m benchmarks report"


def test_a_page_without_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="once each"):
        with_tables("nothing here", [])


@pytest.mark.parametrize(
    ("sense", "limit", "value", "holds"),
    [
        ("at most", 1.0, 1.0, True),
        ("at most", 1.0, 1.01, False),
        ("at least", 0.6, 0.6, True),
        ("at least", 0.6, 0.5, False),
    ],
)
def test_a_row_tells_whether_its_limit_holds(sense: Any, limit: float, value: float, holds: bool) -> None:
    row = Row("key", "what", value, "x", sense, limit)
    assert row.holds is holds
    assert Row.parse(row.document()) == row
    assert Row("key", "what", value, "x").holds is None
