"""Which segments are merged: few are left, each row is written a few times, and nothing moves without need."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulse_registry.log.segment_merges import BOUNDS, RATIO, Part, merges
from tests.support.sampling import examples

sizes = st.lists(st.tuples(st.integers(0, 20 << 20) | st.integers(0, 40 << 10), st.booleans()), max_size=60)


def after(parts: list[Part]) -> tuple[list[Part], int]:
    """What is stored once a snapshot was written, and the bytes that it wrote."""
    stored, written = [], 0
    for run in merges(parts):
        members = parts[run.start : run.stop]
        nbytes = sum(part.nbytes for part in members)
        if len(members) > 1 or members[0].fresh:
            written += nbytes
        stored.append(Part(nbytes, fresh=False))
    return stored, written


@pytest.mark.slow
@examples(200)
@given(sizes)
def test_all_parts_are_kept_in_order_and_what_is_stored_so_is_merged_no_further(found: list[tuple[int, bool]]) -> None:
    parts = [Part(*one) for one in found]
    assert [number for run in merges(parts) for number in run] == [*range(len(parts))]
    stored, _ = after(parts)
    assert after(stored) == (stored, 0)


@examples(100)
@given(st.lists(st.integers(1, 40 << 10) | st.integers(1, 3 << 20), min_size=1, max_size=400))
def test_of_a_log_that_grows_each_byte_is_written_four_times_and_few_segments_are_left(news: list[int]) -> None:
    stored: list[Part] = []
    total = 0
    for nbytes in news:
        stored, written = after([*stored, Part(nbytes, fresh=True)])
        total += written
    # Once, and once for each level; the smallest, of one level, are written again in vain, of which there are few.
    assert total <= (1 + len(BOUNDS)) * sum(news) + len(news) * BOUNDS[0] / (RATIO - 1) * 1.2
    assert len(stored) <= (RATIO - 1) * len(BOUNDS) + sum(news) // BOUNDS[-1] + 1


@pytest.mark.slow
def test_segments_of_a_run_of_many_versions() -> None:
    """64 versions and their patches are 18 KB: what 10^5 and 10^6 of them come to, is what the decision record says."""
    stored: list[Part] = []
    total = 0
    for _ in range(10**6 // 64):
        stored, written = after([*stored, Part(18_000, fresh=True)])
        total += written
    assert len(stored) <= 45
    assert total <= 4.1 * 18_000 * (10**6 // 64)


def test_a_part_without_live_neighbours_stays_where_it_is() -> None:
    final = Part(BOUNDS[-1], fresh=False)
    assert merges([final, final, final]) == [range(1), range(1, 2), range(2, 3)]
    assert merges([]) == []


def test_small_ones_left_between_large_ones_become_one() -> None:
    final, small = Part(BOUNDS[-1], fresh=False), Part(1000, fresh=True)
    assert merges([final, *[small] * RATIO, final]) == [range(1), range(1, 1 + RATIO), range(1 + RATIO, 2 + RATIO)]


def test_what_is_written_anyway_takes_smaller_ones_before_it_along() -> None:
    small, new = Part(1000, fresh=False), Part(BOUNDS[0], fresh=True)
    assert merges([small, small, new]) == [range(3)]
    assert merges([small, small, Part(BOUNDS[-1], fresh=True)]) == [range(3)]
