"""The end of a demo: a report with its exit status, or a status alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pulse_registry.demo.ending import DemoFailed, to_the_end


def test_a_report_is_written_and_returned(tmp_path: Path) -> None:
    assert to_the_end("demo", tmp_path, lambda: {"ok": True}) == {"ok": True}
    assert json.loads((tmp_path / "report.json").read_text()) == {"ok": True}


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [(KeyboardInterrupt(), 130, "no process is left"), (DemoFailed("it\x1b[2J died"), 1, "demo: it")],
)
def test_what_has_no_report_ends_with_a_status_and_says_why(
    error: BaseException, status: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run() -> dict[str, Any]:
        raise error

    assert to_the_end("demo", tmp_path, run) == status
    printed = capsys.readouterr()
    assert said in printed.err
    assert "\x1b" not in printed.err
    assert not list(tmp_path.iterdir())
