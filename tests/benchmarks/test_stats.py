"""The benchmark of studies: its run is one that can be studied, and the command writes down what it took."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks.__main__ import app
from benchmarks.results import rows_of
from benchmarks.stats import RUN, make_run, measure
from benchmarks.synthetic import synthetic_states
from pulse_registry import open


def test_the_run_repeats_the_steps_of_the_states(tmp_path: Path) -> None:
    states = synthetic_states(60_000, 3, 0)
    make_run(states, tmp_path, 8)
    with open(str(tmp_path), run=RUN) as registry:
        found = registry.stats(0, weights=True)
        registry.verify()
    assert [int(step.changed.sum()) for step in found.steps] == [states.changed(k % 3) for k in range(7)]
    for what in ("decode", "patches", "weights"):
        assert measure(tmp_path, what).changed == found.total.changed


@pytest.mark.slow
def test_the_command_writes_a_result_file(tmp_path: Path) -> None:
    arguments = ["stats", "--cells", "60000", "--steps", "2", "--versions", "5", "--out", str(tmp_path)]
    answer = CliRunner().invoke(app, arguments)
    assert answer.exit_code == 0, answer.output
    document = json.loads((tmp_path / "stats" / "synthetic.json").read_text())
    assert {row.key for row in rows_of(document)} >= {"patches.wall", "patches.cpu", "weights.peak", "weights.over"}
