"""The benchmark of slices runs, at a size whose times mean nothing, and fetches exactly what the geometry says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks.__main__ import app
from benchmarks.results import rows_of
from benchmarks.slices import WAYS


@pytest.mark.slow
def test_of_a_patch_the_head_and_the_groups_that_meet_a_slice_are_read_and_nothing_else(tmp_path: Path) -> None:
    out = tmp_path / "slices.json"
    arguments = ["slices", "--cells", "300000", "--group-kib", "4", "--repeats", "1", "--out", str(out)]
    ran = CliRunner().invoke(app, arguments)
    assert ran.exit_code == 0, ran.output
    document = json.loads(out.read_text())
    rows = {row.key: row for row in rows_of(document)}
    for way in WAYS[1:]:
        assert rows[f"patch.{way}.exact"].value == 1.0
        assert abs(document["shares"][way] - 1 / 8) < 0.01
        assert 0 < document["changed_shares"][way] < 0.3
        assert all(rows[f"{route}.{way}.seconds"].value > 0 for route in ("patch", "keyframe"))
    assert document["changed_shares"]["whole"] == 1.0
