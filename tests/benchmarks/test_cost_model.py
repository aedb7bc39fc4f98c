"""The cost model of sharded pushes says what a push by ranks stores and sends; no time is looked at."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from benchmarks.cost_model import WITHIN, app


def test_each_piece_that_is_bytes_or_objects_is_as_the_model_says(tmp_path: Path) -> None:
    out = tmp_path / "cost_model.json"
    arguments = ["--cells", "1048576", "--group-kib", "16", "--experts", "2", "--repeats", "1", "--out", str(out)]
    ran = CliRunner().invoke(app, arguments)
    assert ran.exit_code == 0, ran.output
    pieces = json.loads(out.read_text())["pieces"]
    ratios = {piece["name"]: piece["ratio"] for piece in pieces if piece["unit"] != "s"}
    assert len(ratios) == 9
    assert all(abs(ratio - 1) <= WITHIN for ratio in ratios.values()), ratios
    assert all(piece["measured"] > 0 for piece in pieces)
