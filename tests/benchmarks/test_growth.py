"""The benchmark of what grows, at small sizes, whose times mean nothing."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks.__main__ import app
from benchmarks.growth.curve import Curve, curve_of, processor_ms
from benchmarks.growth.suite import SECTIONS, document_of, measured, with_others
from benchmarks.plots import plots
from benchmarks.results import rows_of


@pytest.mark.parametrize("power", [0, 0.5, 1, 2])
def test_the_exponent_is_that_of_the_last_decade(power: float) -> None:
    curve = curve_of("k", "cost", "versions", "ms", ((size, 3 * size**power) for size in (10, 100, 1_000, 3_000)))
    assert curve.exponent == pytest.approx(power)
    assert curve.spread == pytest.approx(300**power)


def test_a_curve_of_one_size_or_of_no_cost_has_no_slope() -> None:
    assert Curve("k", "cost", "runs", "calls", ((7, 2.0),)).exponent == 0
    assert Curve("k", "cost", "runs", "calls", ((1, 0.0), (10, 5.0))).exponent == 0
    assert Curve("k", "cost", "runs", "calls", ((1, 0.0), (10, 5.0))).spread == math.inf


def test_the_figure_that_counts_is_held_against_its_limit() -> None:
    flat = Curve("a", "cost", "runs", "ms", ((1, 2.0), (10, 2.8)), "spread", 1.5).row()
    steep = Curve("b", "cost", "runs", "ms", ((1, 2.0), (10, 20.0)), "exponent", 0.5).row()
    told = Curve("c", "cost", "runs", "ms", ((1, 2.0), (10, 20.0))).row()
    assert (flat.holds, steep.holds, told.holds) == (True, False, None)
    assert (steep.unit, told.unit, told.value) == ("", "ms", 20.0)


def test_processor_time_is_that_of_the_work() -> None:
    calls: list[int] = []
    assert processor_ms(lambda: calls.append(sum(range(1_000))), repeats=3) >= 0
    assert len(calls) == 3


@pytest.mark.slow
@pytest.mark.parametrize("section", SECTIONS)
def test_each_section_measures_at_small_sizes(section: str) -> None:
    document = document_of(measured([section], quick=True, say=lambda what: None))
    curves = document["curves"]
    assert curves, "it has no curve"
    assert len({curve["key"] for curve in curves}) == len(curves)
    assert {curve["key"].partition(".")[0] for curve in curves} == {section}
    for curve in curves:
        sizes = [size for size, _ in curve["points"]]
        assert sizes == sorted(set(sizes))
        assert all(cost >= 0 for _, cost in curve["points"])


@pytest.mark.slow
def test_a_result_file_has_rows_curves_and_a_plot() -> None:
    curve = Curve("a", "cost", "runs", "ms", ((1, 2.0), (10, 2.8)), "spread", 1.5)
    document = json.loads(json.dumps(document_of([curve])))
    assert [row.key for row in rows_of(document)] == ["a"]
    [plot] = [plot for plot in plots([document]) if plot.name == "growth"]
    assert b"</svg>" in plot.svg()


def test_a_section_measured_anew_leaves_the_others_as_they_were() -> None:
    def document(**costs: float) -> dict[str, object]:
        return document_of([Curve(f"{name}.a", "cost", "runs", "ms", ((1, cost),)) for name, cost in costs.items()])

    merged = with_others(document(http=2.0), document(chains=1.0, http=1.0, runs=1.0), ["http"])
    for part in ("rows", "curves"):
        assert [entry["key"] for entry in merged[part]] == ["chains.a", "http.a", "runs.a"]
    assert [curve["points"][0][1] for curve in merged["curves"]] == [1.0, 2.0, 1.0]


def test_a_section_that_is_none_is_refused(tmp_path: Path) -> None:
    ran = CliRunner().invoke(app, ["growth", "--only", "nothing", "--out", str(tmp_path / "growth.json")])
    assert ran.exit_code == 2
    assert not (tmp_path / "growth.json").exists()
