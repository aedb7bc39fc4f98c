"""Who is lost, from what the ranks say of themselves in a store."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulse_registry.peers import roll_call
from pulse_registry.peers.roll_call import Entry, Finding, Presence, RollCall, poll
from tests.support.clock import Clock

THERE, CLOSED, GAVE_UP = Presence.THERE, Presence.CLOSED, Presence.GAVE_UP


class Memory:
    """A store of one process."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    def set(self, key: str, value: str) -> None:
        self.values[key] = value.encode()

    def check(self, keys: list[str]) -> bool:
        return all(key in self.values for key in keys)

    def multi_get(self, keys: list[str]) -> list[bytes]:
        return [self.values[key] for key in keys]


class Sleeper(Clock):
    """Time in which others say something: each at its second."""

    def __init__(self, *said: tuple[float, Callable[[], None]]) -> None:
        super().__init__()
        self.said = sorted(said, key=lambda one: one[0])

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        while self.said and self.said[0][0] <= self.now:
            self.said.pop(0)[1]()


def calls(size: int, *, clock: Clock | None = None) -> list[RollCall]:
    store, clock = Memory(), clock or Clock()
    every = [RollCall(store, rank, size, clock=clock, sleep=clock.sleep) for rank in range(size)]
    for one in every:
        one.say(THERE, 0)
    return every


@given(st.sampled_from(Presence), st.integers(0, 2**64 - 1), st.lists(st.integers(0, 6), max_size=9))
def test_an_entry_is_read_as_it_was_written(presence: Presence, number: int, ranks: list[int]) -> None:
    entry = Entry(presence, number, tuple(ranks))
    assert Entry.parse(entry.to_text().encode(), 7) == entry


@given(st.binary(max_size=40))
def test_any_text_is_an_entry_or_none(data: bytes) -> None:
    for text in (data, data.hex().encode()):
        entry = Entry.parse(text, 7)
        assert entry is None or all(rank < 7 for rank in entry.ranks)


def test_who_does_not_wait_in_a_call_is_missing() -> None:
    zero, one, two, three = calls(4)
    zero.say(THERE, 5)
    one.say(THERE, 5)
    two.say(THERE, 6)
    three.say(THERE, 4)
    assert zero.missing(5) == [3]
    three.say(CLOSED, 5)
    assert zero.missing(5) == [3]
    three.say(GAVE_UP, 5)
    assert zero.missing(5) == []


def test_who_alone_is_not_heard_of_is_lost_at_once() -> None:
    clock = Clock()
    zero, one, _, three = calls(4, clock=clock)
    for there in (zero, one):
        there.say(GAVE_UP, 5)
    three.say(THERE, 6)
    assert zero.lost(5) == Finding((2,))
    assert clock.pauses == []


def test_the_others_are_waited_for_until_one_is_left() -> None:
    clock = Sleeper()
    zero, one, _, three = calls(4, clock=clock)
    clock.said = [(0.1, lambda: one.say(GAVE_UP, 5)), (1.0, lambda: three.say(GAVE_UP, 5))]
    zero.say(GAVE_UP, 5)
    assert zero.lost(5) == Finding((2,))
    assert 1.0 <= clock.now < 2.0


def test_who_says_nothing_for_some_seconds_may_be_lost() -> None:
    clock = Clock()
    zero, one, _, _ = calls(4, clock=clock)
    one.say(GAVE_UP, 5)
    assert zero.lost(5) == Finding((2, 3))
    assert 5.0 <= clock.now < 6.0


def test_what_another_rank_found_is_believed_but_of_those_that_are_heard_of() -> None:
    zero, one, two, three = calls(4)
    one.say(GAVE_UP, 5, [0, 2, 3])
    three.say(GAVE_UP, 5)
    assert zero.lost(5) == Finding((2,))
    two.say(GAVE_UP, 5, [0])
    assert zero.lost(5).ranks == ()


def test_who_says_that_it_broke_off_is_lost_whoever_else_is_not_heard_of() -> None:
    zero, _, two, _ = calls(4)
    zero.say(GAVE_UP, 5)
    two.say(GAVE_UP, 5, [2])
    assert zero.lost(5) == Finding((2,))


def test_who_closed_before_the_call_is_named_and_who_closed_after_it_is_not() -> None:
    zero, one, two, three = calls(4)
    one.say(CLOSED, 4)
    two.say(CLOSED, 5)
    three.say(GAVE_UP, 5)
    assert zero.lost(5) == Finding((1,), closed=True)


@pytest.mark.parametrize("size", [2, 3])
def test_the_rank_that_was_waited_for_hears_it(size: int) -> None:
    zero, *others = calls(size)
    for other in others:
        other.say(GAVE_UP, 5, [0])
    assert zero.lost(5) == Finding((0,), late=True)


def test_of_two_it_is_the_other_whatever_the_store_says() -> None:
    zero, one = calls(2)
    assert zero.lost(5) == Finding((1,))
    one.say(GAVE_UP, 5)
    assert zero.lost(5) == Finding((1,))


@pytest.mark.parametrize("size", [2, 3])
def test_a_store_that_fails_leaves_it_open_who_is_lost(size: int) -> None:
    class Failing(Memory):
        def set(self, key: str, value: str) -> None:
            raise RuntimeError("Broken pipe")

        def check(self, keys: list[str]) -> bool:
            raise RuntimeError("Broken pipe")

    zero = RollCall(Failing(), 0, size)
    zero.say(THERE, 1)
    assert zero.missing(5) == []
    assert zero.lost(5) == Finding((1,) if size == 2 else ())


def test_a_store_that_hangs_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roll_call, "_ANSWER_S", 0.01)
    answers, asked = Event(), []

    class Hanging(Memory):
        def set(self, key: str, value: str) -> None:
            asked.append(key)
            answers.wait()

    zero = RollCall(Hanging(), 0, 3)
    try:
        zero.say(THERE, 1)
        zero.say(GAVE_UP, 1)
        assert (zero.missing(1), zero.lost(1), asked) == ([], Finding(), ["rank/0"])
    finally:
        answers.set()


def test_ranks_meet_and_the_absent_are_told_of_after_a_minute() -> None:
    store, clock = Memory(), Sleeper()
    zero, one, two = (RollCall(store, rank, 3, clock=clock, sleep=clock.sleep) for rank in range(3))
    clock.said = [(30.0, lambda: one.say(THERE, 0)), (90.0, lambda: two.say(THERE, 0))]
    zero.say(THERE, 0)
    told: list[list[int]] = []
    assert zero.meet(1800.0, told.append) is None
    assert told == [[2]]
    assert 90.0 <= clock.now < 91.0


def test_ranks_that_do_not_come_or_that_gave_up_are_found() -> None:
    store, clock = Memory(), Clock()
    zero, one, _ = (RollCall(store, rank, 3, clock=clock, sleep=clock.sleep) for rank in range(3))
    zero.say(THERE, 0)
    one.say(THERE, 0)
    assert zero.meet(10.0, lambda _: None) == Finding((2,))
    for rank in (1, 2):
        RollCall(store, rank, 3).say(GAVE_UP, 0)
    assert zero.meet(10.0, lambda _: None) == Finding((1, 2), closed=True)


def test_a_poll_looks_at_least_once() -> None:
    assert poll(lambda: True, 0.0)
    assert not poll(lambda: False, 0.0)
