"""The benchmark of model sizes runs, at sizes whose times mean nothing, and leaves out what does not fit."""

from __future__ import annotations

import sys

import pytest

from benchmarks import scale
from benchmarks.results import rows_of

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")]


def test_each_size_has_its_figures_and_one_too_large_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale, "available_bytes", lambda: 50_000_000)
    said: list[str] = []
    document = scale.measure_sizes(300_000, (2, 1000), "gap", 1, say=said.append)
    (size,) = document["sizes"]
    assert size["cells"] == 2 * document["settings"]["cells_a_copy"]
    assert list(document["skipped"]) == [str(1000 * document["settings"]["cells_a_copy"])]
    assert any("left out" in line for line in said)
    rows = {row.key.rpartition(".")[2]: row for row in rows_of(document)}
    assert set(rows) >= {"diff", "push", "pull", "push_s", "pull_s", "push_rss", "pull_rss"}
    assert all(row.value > 0 for row in rows.values() if not row.key.endswith("extra"))
    assert rows["push_rss"].value * 1e9 > 2 * size["bytes"]
