"""Looks at what is followed: when they are due, by as few threads as it takes, one at a time, within their budget."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from pulse_server.scheduling.looks import LATE_S, LATE_SHARE, SHARE, TICK_S, Budget, Looks
from tests.support.clock import Clock
from tests.support.waiting import HANG_S, NEVER_S, until


class Subject:
    """Is looked at; keeps how often, in which threads, and by how many at a time."""

    def __init__(self, looks: Looks, again: float | None = None, act: Callable[[], None] = lambda: None) -> None:
        self.looks, self.again, self.act = looks, again, act
        self.count = self.most = self._now = 0
        self.threads: set[int] = set()
        self._lock = threading.Lock()

    def look(self) -> float | None:
        with self._lock:
            self._now += 1
            self.most = max(self.most, self._now)
            self.threads.add(threading.get_ident())
        self.act()
        with self._lock:
            self.count += 1
            self._now -= 1
        return self.again


def test_what_is_due_is_looked_at_again_and_again_in_one_thread() -> None:
    looks = Looks(8)
    one = Subject(looks, again=0.0)
    looks.after(0.0, one)
    until(lambda: one.count >= 50)
    looks.forget(one)
    looks.close()
    assert (one.most, len(one.threads)) == (1, 1)


def test_a_look_is_made_once_where_it_does_not_ask_for_another() -> None:
    looks = Looks(8)
    one, other = Subject(looks), Subject(looks, again=0.0)
    looks.after(0.0, one)
    until(lambda: one.count == 1)
    looks.after(0.0, other)
    until(lambda: other.count >= 20)
    assert one.count == 1
    looks.after(0.0, one)
    until(lambda: one.count == 2)
    looks.close()


def test_as_many_threads_as_wait_for_the_store_and_no_more_than_the_most() -> None:
    gate = threading.Event()
    looks = Looks(3)
    held = [Subject(looks, act=lambda: gate.wait(HANG_S) and None) for _ in range(5)]
    for one in held:
        looks.after(0.0, one)
    until(lambda: sum(len(one.threads) for one in held) == 3)
    gate.set()
    until(lambda: all(one.count == 1 for one in held))
    looks.close()
    assert len({thread for one in held for thread in one.threads}) == 3


def test_others_are_looked_at_while_one_does_not_answer() -> None:
    gate = threading.Event()
    looks = Looks(2)
    slow, quick = Subject(looks, act=lambda: gate.wait(HANG_S) and None), Subject(looks, again=0.0)
    looks.after(0.0, slow)
    looks.after(0.0, quick)
    until(lambda: quick.count >= 20)
    assert slow.count == 0
    gate.set()
    looks.close()
    assert slow.count == 1


def test_nothing_is_looked_at_by_two_at_a_time_and_what_was_said_meanwhile_counts() -> None:
    looks = Looks(4)
    one = Subject(looks, again=NEVER_S)

    def more() -> None:
        if one.count < 30:
            looks.after(0.0, one)

    one.act = more
    looks.after(0.0, one)
    until(lambda: one.count == 31)
    assert one.most == 1
    looks.close()


def test_a_look_can_be_hurried_put_off_and_forgotten() -> None:
    looks = Looks(2)
    late, off, gone = (Subject(looks, again=NEVER_S) for _ in range(3))
    looks.after(NEVER_S, late)
    for one in (off, gone):
        looks.after(0.05, one)
    looks.after(NEVER_S, off)
    looks.forget(gone)
    looks.after(0.0, late)
    last = Subject(looks)
    looks.after(0.06, last)  # due after those that were put off and forgotten
    until(lambda: last.count == 1)
    looks.close()
    assert (late.count, off.count, gone.count) == (1, 0, 0)


def test_what_is_forgotten_while_it_is_looked_at_is_not_looked_at_again() -> None:
    looks = Looks(2)
    one, other = Subject(looks, again=0.0), Subject(looks, again=0.0)
    one.act = lambda: looks.forget(one)
    looks.after(0.0, one)
    looks.after(0.0, other)
    until(lambda: other.count >= 20)
    assert one.count == 1
    looks.close()


def test_the_end_waits_for_a_look_under_way_and_makes_no_other() -> None:
    began, gate = threading.Event(), threading.Event()
    looks = Looks(1)

    def act() -> None:
        began.set()
        gate.wait(HANG_S)

    one, other = Subject(looks, act=act, again=0.0), Subject(looks)
    looks.after(0.0, one)
    assert began.wait(HANG_S)
    looks.after(0.0, other)
    closing = threading.Thread(target=looks.close)
    closing.start()
    gate.set()
    closing.join(HANG_S)
    assert (one.count, other.count) == (1, 0)


@pytest.mark.parametrize("took_s", [0.0001, 0.01])
@pytest.mark.parametrize(("late_s", "share"), [(0.0, SHARE), (2 * LATE_S, LATE_SHARE)])
def test_looks_take_no_more_of_a_core_than_their_share(late_s: float, share: float, took_s: float) -> None:
    clock, budget, spent = Clock(100.0), Budget(), 0.0
    while clock.now < 200.0:
        clock.now = max(clock.now, budget.free_at)
        counted = budget.begin(clock.now, late_s)
        spent += took_s
        budget.end(counted, took_s)
    assert spent == pytest.approx(100.0 * share, rel=0.02)


@pytest.mark.parametrize("late_s", [0.0, 1000.0])
def test_looks_that_are_due_together_do_not_begin_together(late_s: float) -> None:
    budget = Budget()
    for _ in range(500):  # by now it knows what a look takes
        budget.end(budget.begin(0.0, 0.0), 0.001)
    number, now = 0, 1000.0
    while budget.free_at <= now:
        budget.begin(now, late_s)  # and none has ended
        number += 1
    share = LATE_SHARE if late_s else SHARE
    assert number == pytest.approx(TICK_S * share / 0.001, abs=2)
