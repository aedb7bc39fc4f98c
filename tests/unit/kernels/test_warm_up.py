"""Work ahead of its need: neither an exit nor a fork waits for more than the step at hand."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable

from pulse_kernels.cpu.compile_lock import Turn
from pulse_kernels.warm_up import Ahead

GUARD_S = 60


class Steps:
    """Work of a number of steps, each of which waits until the test lets it go."""

    def __init__(self, count: int) -> None:
        self.left = count
        self.begun, self.go = threading.Event(), threading.Event()
        self.threads: list[threading.Thread] = []
        self.stopped: Callable[[], bool] = lambda: False

    def __call__(self, stopped: Callable[[], bool]) -> None:
        self.threads.append(threading.current_thread())
        self.stopped = stopped
        while self.left and not stopped():
            self.begun.set()
            assert self.go.wait(GUARD_S)
            self.left -= 1


def test_work_is_done_once_however_often_it_is_begun():
    work = Steps(2)
    ahead = Ahead(work)
    ahead.begin()
    ahead.begin()
    work.go.set()
    ahead.join()
    ahead.begin()
    assert work.left == 0
    assert len(work.threads) == 1


def test_a_fork_waits_for_the_step_at_hand_alone_and_the_parent_goes_on_afterwards():
    work = Steps(3)
    ahead = Ahead(work)
    ahead.begin()
    assert work.begun.wait(GUARD_S)
    fork = threading.Thread(target=ahead.before_fork)
    fork.start()
    while not work.stopped():
        pass
    work.go.set()
    fork.join(GUARD_S)
    assert not any(thread.is_alive() for thread in work.threads)
    assert work.left == 2
    ahead.after_fork_in_parent()
    ahead.join()
    assert work.left == 0
    assert len(work.threads) == 2


def test_a_forked_child_begins_when_it_needs_it():
    work = Steps(2)
    work.go.set()
    ahead = Ahead(work)
    ahead.before_fork()
    ahead.after_fork_in_child()
    assert work.threads == []
    ahead.begin()
    ahead.join()
    assert work.left == 0


def test_a_failure_is_left_to_whoever_needs_it():
    def fail(stopped: Callable[[], bool]) -> None:
        raise ZeroDivisionError

    ahead = Ahead(fail)
    ahead.begin()
    ahead.join()


def test_a_process_that_ends_waits_for_the_step_at_hand_alone():
    code = """
from pulse_kernels.warm_up import Ahead
def work(stopped):
    while not stopped():
        pass
    print("stopped", flush=True)
Ahead(work).begin()
print("ended", flush=True)
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=GUARD_S, check=False
    )
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, ["ended", "stopped"], "")


def test_whoever_waits_for_its_turn_gets_it_before_the_one_who_had_it():
    turn, order = Turn(), []
    waiting = threading.Event()

    def wait() -> None:
        waiting.set()
        with turn:
            order.append("other")

    other = threading.Thread(target=wait)
    with turn:
        other.start()
        assert waiting.wait(GUARD_S)
        while not turn.awaited:
            pass
    with turn:
        order.append("again")
    other.join(GUARD_S)
    assert order == ["other", "again"]
