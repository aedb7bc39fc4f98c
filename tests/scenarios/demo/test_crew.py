"""How the demo's supervisor starts processes, which no Ctrl-C reaches and on which none is lost, and why one failed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from pulse_registry.demo import trainer, worker
from pulse_registry.demo.crew import Crew, interrupt_held
from pulse_registry.demo.culprit import culprit
from pulse_registry.demo.ending import DemoFailed
from pulse_registry.demo.messages import Event, Failed, Trained
from pulse_registry.demo.settings import Settings
from tests.scenarios.demo import talkers
from tests.support.waiting import HANG_S

INTERRUPTS_ITSELF = """
import os, signal
os.kill(os.getpid(), signal.SIGINT)
print("goes on")
"""


@pytest.fixture(autouse=True)
def answered() -> Iterator[None]:
    """As in a terminal: the tests may run in the background, where an interrupt is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_while_a_process_starts_is_raised_once_it_has_started():
    started = []

    def start() -> None:
        with interrupt_held():
            os.kill(os.getpid(), signal.SIGINT)
            started.append(subprocess.run([sys.executable, "-c", ""], check=True).returncode)

    with pytest.raises(KeyboardInterrupt):
        start()
    assert started == [0]
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)


def test_without_one_nothing_is_raised_and_what_was_started_is_never_interrupted():
    with interrupt_held():
        child = subprocess.run([sys.executable, "-c", INTERRUPTS_ITSELF], capture_output=True, text=True, check=True)
    assert child.stdout == "goes on\n"


def test_where_interrupts_are_ignored_they_stay_ignored():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with interrupt_held():
        os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN


LOST = Failed("trainer-0", "PeerLost: rank 1 of 2 closed the registry", "", peer_lost=True)


def told(*events: Event) -> Callable[[], Event | None]:
    """Return what hears of these, one after the other, and of nothing after them."""
    left = list(events)
    return lambda: left.pop(0) if left else None


def test_of_ranks_that_failed_the_one_that_made_the_others_fail_is_named_though_it_tells_later() -> None:
    wrong = Failed("trainer-1", "ValueError: not a number", "")
    assert culprit(LOST, lambda: None, told(Trained(0), LOST, wrong), HANG_S) is wrong


def test_a_rank_that_was_killed_is_named_and_not_those_that_miss_it() -> None:
    dead = cast("BaseProcess", SimpleNamespace(name="trainer-1", exitcode=-signal.SIGKILL))
    connection_closed = Failed("trainer-0", "RuntimeError: Connection closed by peer", "")
    for failed in (LOST, connection_closed):
        seen = iter([None, None, dead])
        assert culprit(failed, lambda seen=seen: next(seen), told(LOST), HANG_S) is dead  # type: ignore[misc]


def test_where_nothing_else_is_heard_what_was_told_first_is_the_reason() -> None:
    assert culprit(LOST, lambda: None, told(), 0) is LOST


@pytest.mark.slow
def test_a_death_ends_the_demo_though_others_tell_without_a_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer, "train", talkers.without_a_pause)
    monkeypatch.setattr(worker, "rollout", talkers.until_killed)
    monkeypatch.setattr(worker, "laggard", talkers.until_killed)
    settings = Settings.of(steps=10, model="tiny", ranks=1, root=None, out=tmp_path)
    give_up = time.monotonic() + HANG_S
    with Crew(settings) as crew, pytest.raises(DemoFailed, match="rollout-1 was killed by SIGKILL"):
        any(time.monotonic() > give_up for _ in crew.watch())
