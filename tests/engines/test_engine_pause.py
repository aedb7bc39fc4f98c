"""The benchmark of the pause, small: all five ways bring a real vLLM to the version, and ours is the smallest."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.engines.support.engine import ENVIRONMENT, ROOT, START_S


def test_each_way_leads_to_the_version_and_staged_ones_take_fewest_bytes(tmp_path: Path) -> None:
    out = tmp_path / "pause.json"
    size = ("--layers", "2", "--wide", "192", "--vocabulary", "2048", "--repeats", "1", "--out", str(out))
    command = [sys.executable, "-m", "benchmarks.engine_pause", *size]
    subprocess.run(command, cwd=ROOT, env=os.environ | ENVIRONMENT, check=True, timeout=START_S * 2)
    rows = {row["key"]: row["value"] for row in json.loads(out.read_text())["rows"]}
    assert rows["bytes.staged"] < rows["bytes.patched"] < rows["bytes.reloaded"]
    assert rows["pause.staged"] > 0
