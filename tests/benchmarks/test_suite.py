"""The benchmarks run, on states too small for their times to mean anything; what is deterministic is held to limits."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from benchmarks import node_cache, routes, signatures, transfer
from benchmarks.__main__ import app
from benchmarks.report import BEGIN, END, PAGE, with_tables
from benchmarks.results import Row, read_results, rows_of
from benchmarks.service.__main__ import app as service
from benchmarks.states import save_states
from benchmarks.suite import BITS_LIMIT, Parts, run_suite
from benchmarks.synthetic import synthetic_states
from pulse_registry.format.patch_coding import CoderChoice

CODERS = ("gap", "class", "auto")
PAUSES = ("stall", "read", "apply", "touch")
MEASURED: tuple[CoderChoice, ...] = ("class",)
PEERS = ("XOR + zstd-1", "int32 + BF16", "PULSE paper", "PULSEPT1 v3 (size)")


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One run of all benchmarks on two million cells: memory of one coder; nothing is installed for it."""
    states = synthetic_states(2_000_000, steps=2, seed=3)
    parts = Parts(memory=MEASURED, home=tmp_path_factory.mktemp("peers"), install=False)
    found = run_suite(states, threads=2, repeats=5, parts=parts, say=lambda _: None)
    parsed: dict[str, Any] = json.loads(json.dumps(found))
    return parsed


@pytest.mark.parametrize("commands", [app, service, routes.app, signatures.app, transfer.app, node_cache.app])
def test_what_a_user_measures_is_written_beside_nothing_that_is_committed(commands: typer.Typer) -> None:
    command = typer.main.get_command(commands)
    every = [command, *getattr(command, "commands", {}).values()]
    outs = [Path(option.default) for one in every for option in one.params if option.name == "out"]
    assert outs
    assert all(out.parts[:2] == ("build", "benchmarks") for out in outs)


@pytest.mark.slow
def test_a_run_says_what_it_ran_on(document: dict[str, Any]) -> None:
    assert document["states"]["kind"] == "synthetic"
    assert document["states"]["seed"] == 3
    assert document["states"]["steps"] == 2
    assert document["machine"]["cores"] >= 1
    assert {"python", "numpy", "numba", "zstandard"} <= set(document["versions"])


@pytest.mark.slow
def test_each_limit_has_its_row(document: dict[str, Any]) -> None:
    limits = {row.key: (row.sense, row.limit) for row in rows_of(document) if row.limit is not None}
    expected: dict[str, tuple[str, float]] = {"diff": ("at least", 0.9), "digest": ("at least", 0.85)}
    expected |= {"digest_core": ("at least", 0.5), "stall": ("at most", 1.3), "apply_lines": ("at most", 2.0)}
    expected |= {"bits_gap": ("at most", 13.5), "bits_class": ("at most", 8.0), "entropy": ("at most", 1.06)}
    expected |= {"push_core_gap": ("at most", 0.31), "push_core_class": ("at most", 0.6)}
    expected |= {"pull_core_gap": ("at most", 0.3), "pull_core_class": ("at most", 0.8), "smallest": ("at most", 1.0)}
    if sys.platform == "linux":
        expected |= {f"memory_push_{coder}": ("at most", 0.25) for coder in MEASURED}
        expected |= {f"memory_pull_{coder}": ("at most", 0.1) for coder in MEASURED}
    assert limits == expected


@pytest.mark.slow
def test_every_measurement_is_repeated(document: dict[str, Any]) -> None:
    times = document["times"]
    for key in ("push", "push_core", "stage_apply", "stage_apply_core", "xor_zstd_encode", "xor_zstd_decode"):
        assert all(found["repeats"] >= 5 and found["min_ms"] > 0 for found in times[key].values())
    assert set(times["push"]) == set(times["stage_apply"]) == set(CODERS)
    assert all(found["repeats"] >= 5 for found in document["bandwidth"].values())
    assert {name: found["repeats"] >= 5 for name, found in document["pauses"].items()} == dict.fromkeys(PAUSES, True)


@pytest.mark.slow
def test_phases_of_pushes_and_pulls_are_told(document: dict[str, Any]) -> None:
    for coder in CODERS:
        assert {"diff", "code", "upload", "commit"} <= set(document["times"]["push_phases_ms"][coder])
        assert {"route", "fetch", "decode", "verify", "apply"} <= set(document["times"]["pull_phases_ms"][coder])


@pytest.mark.slow
def test_patches_of_synthetic_steps_stay_within_the_limits_on_bytes(document: dict[str, Any]) -> None:
    assert len(document["sizes"]) == 2
    for row in document["sizes"]:
        bits = row["bits"]
        assert bits["class"] <= BITS_LIMIT["class"]
        assert bits["class"] <= 1.1 * row["entropy_bits"]  # few changes: tables and heads weigh more than at full size
        assert bits["gap"] <= BITS_LIMIT["gap"]
        assert row["entropy_bits"] < bits["class"] < bits["gap"] < bits["xor_zstd"] < 48
        assert bits["auto"] <= bits["gap"]


@pytest.mark.slow
def test_no_wire_of_others_is_smaller_than_class(document: dict[str, Any]) -> None:
    codecs = document["peers"]["codecs"]
    assert set(codecs) == set(PEERS)
    for step, row in enumerate(document["sizes"]):
        assert all(row["bits"]["class"] < codec["bits"][step] for codec in codecs.values())
    assert codecs["int32 + BF16"]["bits"] == [48.0, 48.0]
    assert all(codecs[name]["encode_ms"] > 0 < codecs[name]["decode_ms"] for name in PEERS[:3])


@pytest.mark.slow
def test_a_package_that_is_not_there_is_skipped_with_a_plain_message(document: dict[str, Any]) -> None:
    (message,) = document["peers"]["skipped"].values()
    assert "is not installed in" in message


@pytest.mark.slow
def test_costs_of_the_coders_are_weighed(document: dict[str, Any]) -> None:
    coders = document["coders"]
    assert set(coders["ns_per_cell"]) == {"gap_encode", "gap_decode", "class_encode", "class_decode"}
    assert 0 < coders["class_saves"] < 1


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_of_pushes_and_pulls_is_measured_in_processes_of_their_own(document: dict[str, Any]) -> None:
    assert set(document["memory"]) == {f"{what} {coder}" for what in ("push", "pull") for coder in MEASURED}
    for found in document["memory"].values():
        assert found["peak"] > 0
        assert found["samples"] > 0 or found["kernel_mark"]


def test_too_few_repeats_are_refused() -> None:
    with pytest.raises(ValueError, match="too few"):
        run_suite(synthetic_states(20_000, 1), threads=1, repeats=4)


@pytest.mark.slow
def test_what_is_done_without_the_store_is_timed_by_itself(document: dict[str, Any]) -> None:
    times = document["times"]
    for coder in CODERS:
        assert times["push_core"][coder]["min_ms"] > 0 < times["push"][coder]["median_ms"]
        assert times["stage_apply_core"][coder]["min_ms"] > 0 < times["stage_apply"][coder]["median_ms"]


@pytest.mark.slow
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
        "--no-peers",
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


def test_counts_of_one_kind_stand_side_by_side_the_older_ones_first() -> None:
    page = f"{BEGIN}\n{END}"
    documents = [
        {
            "kind": "hops",
            "title": "Hops",
            "file": file,
            "rows": [{"key": "files", "what": "files", "value": value, "unit": ""}],
        }
        for file, value in (("after", 3), ("before", 5))
    ]
    assert "| what | before | after |\n| --- | ---: | ---: |\n| files | 5 | 3 |" in with_tables(page, documents)


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
