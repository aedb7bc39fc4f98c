"""The benchmark of pushes by ranks measures what it says; no time is looked at."""

from __future__ import annotations

import pytest

from benchmarks.sharded_push import measure

pytestmark = pytest.mark.slow


def test_all_ways_push_and_only_changes_travel() -> None:
    rows = {row.key: row for row in measure(1, 1, 1, sizes=(2,))}
    aims = {"time", "wait", "processor", "gathered.time", "gathered.memory", "memory", "exchange", "requests"}
    assert {row.key for row in rows.values() if row.limit is not None} == {f"sharded.{aim}" for aim in aims}
    assert rows["sharded.memory"].holds
    requests = rows.pop("sharded.requests")
    assert 0 <= requests.value <= 2
    assert all(row.value > 0 for row in rows.values())
    # Of a patch in one object, all changes of the other rank leave it, in eight bytes and a head for each group.
    assert 8 < rows["sharded.exchange"].value < 9
