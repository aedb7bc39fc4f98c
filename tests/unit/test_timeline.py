"""The timeline: parts of phases add up, in seconds from the call's start, whatever thread noted them."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from hypothesis import given
from hypothesis import strategies as st

from pulse_registry.cli.timeline import bar
from pulse_registry.timeline import Phase, Timeline, extents, stacked


def ticking(start: int = 100) -> Timeline:
    ticks = itertools.count(start)
    return Timeline(lambda: float(next(ticks)))


def test_a_part_without_an_end_ends_now_and_was_busy():
    timeline = ticking()
    timeline.note("code", 101.0, nbytes=7)
    assert timeline.phases() == (Phase("code", 1.0, 1.0, 0.0, 7),)


def test_parts_of_a_phase_add_up_and_phases_come_in_the_order_of_their_beginnings():
    timeline = Timeline(began=10.0)
    timeline.note("hash", 12.0, 13.0, nbytes=1)
    timeline.note("code", 11.0, 12.0, nbytes=2)
    timeline.note("hash", 11.5, 12.5, nbytes=4)
    timeline.note("upload", 13.0, 15.0, busy=0.25)
    assert timeline.phases() == (
        Phase("code", 1.0, 2.0, 1.0, 2),
        Phase("hash", 1.5, 3.0, 2.0, 5),
        Phase("upload", 3.0, 5.0, 0.25, 0),
    )
    assert extents(timeline.phases()) == {"code": 1.0, "hash": 1.5, "upload": 2.0}


def test_stacked_phases_add_up_to_the_time_that_any_of_them_took():
    phases = [Phase("a", 0, 3, 3, 0), Phase("b", 1, 5, 4, 0), Phase("c", 2, 4, 2, 0), Phase("d", 7, 8, 1, 0)]
    assert stacked(phases) == {"a": 3, "b": 2, "c": 0, "d": 1}


def test_a_block_that_raises_is_no_part():
    timeline = ticking()
    with timeline.during("upload", 5):
        pass
    with suppress(KeyError), timeline.during("commit"):
        raise KeyError
    assert timeline.phases() == (Phase("upload", 1.0, 2.0, 1.0, 5),)


def test_a_copy_goes_on_alone():
    timeline = ticking()
    timeline.note("route", 100.0, 101.0)
    copy = timeline.copy()
    copy.note("apply", 101.0, 103.0)
    assert [phase.phase for phase in timeline.phases()] == ["route"]
    assert [phase.phase for phase in copy.phases()] == ["route", "apply"]


def test_no_part_that_another_thread_notes_is_lost():
    timeline = Timeline(began=0.0)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda k: timeline.note("code", k, k + 1, nbytes=1), range(2000)))
    assert timeline.phases() == (Phase("code", 0.0, 2000.0, 2000.0, 2000),)


@given(st.floats(0, 1e3), st.floats(0, 1e3), st.floats(0, 1e3))
def test_a_bar_is_as_wide_as_all_others_and_never_empty(start: float, length: float, rest: float):
    text = bar(Phase("x", start, start + length, 0.0, 0), start + length + rest)
    assert len(text) == 40
    assert "█" in text
    assert text.strip("·").strip("█") == ""
