"""The programs in examples/ do what they say."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def test_the_worker_goes_to_the_newest_version_however_many_were_pushed_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["example", str(tmp_path)])
    runpy.run_path(str(EXAMPLES / "trainer.py"), run_name="__main__")
    capsys.readouterr()
    runpy.run_path(str(EXAMPLES / "worker.py"), run_name="__main__")
    first, *others = capsys.readouterr().out.splitlines()
    assert first.startswith("version 9: ")
    assert [line.split()[0] for line in others] == ["verified"]
