"""When an engine goes to another version."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulse_registry.errors import InvalidArgument
from pulse_registry.follow import Pace

SECONDS = st.floats(0, 1e6)


def test_a_change_waits_until_the_last_one_is_long_enough_ago() -> None:
    pace = Pace(at_most_every_s=30)
    assert pace.due_in(3, 4, None) == 0
    assert pace.due_in(3, 4, 10) == 20
    assert pace.due_in(3, 4, 30) == 0
    assert pace.due_in(None, 4, 10) == 0  # nothing that may be served goes on


def test_an_engine_that_is_too_far_behind_does_not_wait() -> None:
    pace = Pace(at_most_every_s=30, max_behind=2)
    assert pace.due_in(3, 5, 10) == 20
    assert pace.due_in(3, 6, 10) == 0


@given(
    serves=st.integers(0, 50),
    wanted=st.integers(0, 50),
    since=SECONDS,
    every=SECONDS.filter(bool),
    most=st.integers(0, 9),
)
def test_a_change_is_never_too_early_but_where_it_is_too_far_behind(
    serves: int, wanted: int, since: float, every: float, most: int
) -> None:
    due = Pace(at_most_every_s=every, max_behind=most).due_in(serves, wanted, since)
    assert due >= 0
    assert since + due >= every * (1 - 1e-9) or wanted - serves > most


@pytest.mark.parametrize(
    "given",
    [
        {"max_behind": 3},
        {"max_behind": 3, "at_most_every_s": 5.0, "version": 7},
        {"max_behind": -1, "at_most_every_s": 5.0},
        {"at_most_every_s": -1.0},
    ],
)
def test_what_does_not_go_together_is_refused(given: dict[str, float]) -> None:
    with pytest.raises(InvalidArgument):
        Pace(**given)  # type: ignore[arg-type]
