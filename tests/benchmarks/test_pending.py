"""The benchmark of pushes on their way runs, at a size whose times mean nothing, and says what it is to say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks.__main__ import app
from benchmarks.pending import WAYS
from benchmarks.results import rows_of

pytestmark = pytest.mark.slow


def test_no_more_pushes_are_on_their_way_than_may_be(tmp_path: Path) -> None:
    out = tmp_path / "pending.json"
    arguments = ["pending", "--mib", "1", "--pushes", "4", "--latency-s", "0.001", "--out", str(out)]
    ran = CliRunner().invoke(app, arguments)
    assert ran.exit_code == 0, ran.output
    rows = {row.key: row for row in rows_of(json.loads(out.read_text()))}
    assert all(rows[f"{way}.pending"].holds for way in ("wait", "coalesce"))
    one = (1 << 20) // 2 * 8 / 2**20
    assert all(0 < rows[f"{way}.changes"].value <= 2 * one for way in ("wait", "coalesce"))
    assert rows["wait.versions"].value == rows["unbounded.versions"].value == 4
    assert 1 <= rows["coalesce.versions"].value <= 4
    assert all(rows[f"{way}.longest"].value >= rows[f"{way}.median"].value > 0 for way in WAYS)
