"""The benchmark of exchanges measures what it says; no time is looked at."""

from __future__ import annotations

import pytest

from benchmarks.exchange import measure, rows_of


@pytest.mark.slow
def test_ranks_exchange_and_the_coordinator_tells_its_times() -> None:
    rows = {row.key: row for row in measure([2], 2_000, 1)}
    assert rows.keys() == {"exchange.2.rate", "exchange.2.ratio", "exchange.2.empty"}
    assert all(row.value > 0 for row in rows.values())


def test_the_rate_is_of_what_leaves_the_ranks() -> None:
    times = {"exchange": [0.5, 2.0, 1.0], "all_to_all": [0.25, 0.5, 1.0], "empty": [1e-3] * 3}
    rate, over, empty = rows_of(4, 4_000_000, times)
    assert rate.value == pytest.approx(4 * 3 * 1_000_000 / 1.0 / 1e9)
    assert (over.value, empty.value) == (2.0, pytest.approx(1000.0))
