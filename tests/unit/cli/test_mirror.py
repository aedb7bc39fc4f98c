"""``pulse mirror``: copies the runs that match, says what became of each, and ends as the first failure does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import pulse_registry
from pulse_registry.cli.app import main
from pulse_registry.errors import InvalidArgument
from pulse_registry.mirror import parse_rate
from tests.support.registries import small_model


def _push(root: Path, run: str) -> None:
    with pulse_registry.open(str(root), run=run, push=pulse_registry.PushOptions(dtype="keep")) as registry:
        registry.push(0, small_model())


def _run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, object]]:
    code = main(["mirror", "--json", *arguments])
    return code, json.loads(capsys.readouterr().out)


def test_the_runs_that_match_are_copied_and_others_are_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    near, far = tmp_path / "near", tmp_path / "far"
    for run in ("math-1", "math-2", "chat"):
        _push(near, run)
    code, told = _run(capsys, "--runs", "math-*", "--rate", "10Gbit", str(near), str(far))
    assert code == 0
    runs = told["runs"]
    assert isinstance(runs, list)
    assert [(one["run"], one["records"], one["objects"]) for one in runs] == [("math-1", 2, 3), ("math-2", 2, 3)]
    assert sorted(path.name for path in far.iterdir()) == ["math-1", "math-2"]
    assert main(["verify", "--all", str(far)]) == 0


def test_one_run_that_can_not_be_copied_keeps_no_other_from_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    near, far = tmp_path / "near", tmp_path / "far"
    for root, run in ((near, "a"), (near, "b"), (far, "a")):
        _push(root, run)
    code, told = _run(capsys, str(near), str(far))
    assert code == 4
    runs = told["runs"]
    assert isinstance(runs, list)
    assert [(one["run"], one.get("error"), one.get("records")) for one in runs] == [
        ("a", "Conflict", None),
        ("b", None, 2),
    ]
    code, told = _run(capsys, "--runs", "none-*", str(near), str(far))
    assert (code, told["error"]) == (3, "NotFound")


def test_a_copy_takes_no_tag(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    near, far = tmp_path / "near", tmp_path / "far"
    _push(near, "a")
    _run(capsys, str(near), str(far))
    assert main(["tag", "best", "--version", "0", "--root", str(far), "--run", "a", "--json"]) == 4
    assert json.loads(capsys.readouterr().out)["error"] == "Mirrored"


def test_a_rate_is_written_in_bits() -> None:
    assert (parse_rate("2Gbit"), parse_rate("1.5Mbit"), parse_rate("800bit")) == (250e6, 187_500, 100)
    for wrong in ("2GB", "0Mbit", "fast", "-1Gbit", "1e9bit"):
        with pytest.raises(InvalidArgument, match="is no rate"):
            parse_rate(wrong)
