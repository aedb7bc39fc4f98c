"""The benchmark of shared bases in a small form: its limits hold at any size that is larger than the logs."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.bases import measure
from benchmarks.results import Row


@pytest.mark.slow
def test_twenty_first_versions_store_one_keyframe_and_their_patches(tmp_path: Path) -> None:
    measured = measure(tmp_path, 5_000_000, 20, 0)
    rows = {row.key: row for row in map(Row.parse, measured["rows"])}
    assert [key for key, row in rows.items() if row.holds is False] == []
    assert rows["verified"].value == 20
    assert rows["shared"].value >= 1.0
    assert 2.0 <= rows["before"].value < 2.3
