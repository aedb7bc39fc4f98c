"""The benchmark of signatures measures what it says; no time is looked at."""

from __future__ import annotations

from pathlib import Path

from benchmarks.signatures import measure


def test_every_row_is_a_figure_and_the_limits_are_on_verification(tmp_path: Path) -> None:
    rows = {row.key: row for row in measure(tmp_path, 1, records=20)}
    assert {key.rpartition(".")[2] for key in rows} == {
        "sign", "verify", "ratio", "believed", "verified", "found", "kept",
    }  # fmt: skip
    assert all(row.value >= 0 for row in rows.values())
    assert [key for key, row in rows.items() if row.limit is not None] == [
        "commit.verify",
        "attach of 100 patches.verify",
    ]
    assert {row.limit for row in rows.values()} == {None, 1_000.0}
