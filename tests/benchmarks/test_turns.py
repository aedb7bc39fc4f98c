"""Two commits are compared by runs that alternate: each by its own code, and by the medians of what all runs have."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks import turns
from benchmarks.report import tables
from benchmarks.results import Row

CODE = """\
import json, pathlib, sys
import pulse_registry
with open(sys.argv[0] + ".runs", "a") as runs:
    runs.write("x")
out = pathlib.Path(sys.argv[-1])
number = len(open(sys.argv[0] + ".runs").read())
figure = pulse_registry.FIGURE
rows = [
    {"key": "a", "what": "a thing", "value": figure * number, "unit": "ms", "sense": "at most", "limit": 4},
    {"key": "b" + str(figure), "what": "of one commit alone", "value": 1, "unit": "ms"},
]
for number in range(int(sys.argv[1])):
    (out / f"{number}.json").write_text(json.dumps({"rows": rows, "seed": 5}))
"""


def checkout(folder: Path, figure: int) -> Path:
    """Make a folder whose benchmark tells a figure of its own package."""
    files = {
        "pulse_registry/__init__.py": f"FIGURE = {figure}",
        "benchmarks/__init__.py": "",
        "benchmarks/__main__.py": CODE,
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_each_commit_runs_its_own_code_by_turns_and_medians_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = (checkout(tmp_path / name, figure) for name, figure in (("old", 4), ("new", 2)))
    monkeypatch.setattr(turns, "HERE", new)
    monkeypatch.setattr(turns, "commit_of", lambda tree: tree.name)
    out = tmp_path / "turns.json"
    answer = CliRunner().invoke(turns.app, [str(old), "--runs", "3", "--out", str(out), "--", "1"])
    assert answer.exit_code == 0, answer.output
    document = json.loads(out.read_text())
    assert [(row["key"], row["value"]) for row in document["rows"]] == [("a.old", 8), ("a.new", 4), ("a.ratio", 0.5)]
    assert document["rows"][1]["holds"] is True
    assert [document["runs"][name]["a"] for name in ("before", "now")] == [[4, 8, 12], [2, 4, 6]]
    assert (document["settings"]["before"], document["settings"]["now"]) == ("old", "new")
    assert document["seed"] == 5
    assert "| a thing | 8.0 ms | 4.0 ms | 0.50x | at most 4.0 ms | yes |" in tables([{**document, "file": "turns"}])


def test_several_result_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="2 result files"):
        turns.measured(checkout(tmp_path / "tree", 1), ["2"])


def test_a_figure_of_0_has_no_ratio() -> None:
    old, new = ([[Row("a", "a", value, "ms")]] for value in (0.0, 1.0))
    assert [row.key for row in turns.side_by_side(old, new)] == ["a.old", "a.new"]
