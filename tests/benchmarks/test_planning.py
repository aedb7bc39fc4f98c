"""The benchmark of planning runs, on a small layout, whose times mean nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks.__main__ import app
from benchmarks.planning import WAYS, shapes
from benchmarks.results import rows_of


@pytest.mark.slow
def test_a_rank_of_many_is_planned_without_a_cell_of_the_model(tmp_path: Path) -> None:
    out = tmp_path / "planning.json"
    arguments = ["planning", "--layers", "2", "--experts", "6", "--ranks", "3", "--planned", "1", "--out", str(out)]
    ran = CliRunner().invoke(app, arguments)
    assert ran.exit_code == 0, ran.output
    document = json.loads(out.read_text())
    assert document["layout"]["tensors"] == len(shapes(2, 6))
    assert [rank["way"] for rank in document["ranks"]] == list(WAYS)
    rows, experts = document["ranks"]
    assert rows["tensors"] == len(shapes(2, 6))  # of each some rows
    assert experts["tensors"] == rows["tensors"] - 4 * 3  # two of six experts, of three tensors each
    assert rows["changed"] > 0
    # Of a layout this small a coarse clock may see nothing: a time may be 0.
    assert all(row.value >= 0 for row in rows_of(document) if row.unit == "s")
    of_ways = {f"{way}.{key}" for way in WAYS for key in ("first", "push", "memory_mb")}
    assert {row.key for row in rows_of(document)} == {"geometry", "parse"} | of_ways
