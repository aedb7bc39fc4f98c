"""How the demo's supervisor starts processes, which no Ctrl-C reaches and on which none is lost, and why one failed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from pulse_registry.demo import crew as crew_module
from pulse_registry.demo.crew import Crew, interrupt_held
from pulse_registry.demo.messages import Failed, Trained
from pulse_registry.demo.settings import Settings
from pulse_registry.demo.source import Source
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


@pytest.fixture
def crew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Crew]:
    """A supervisor that has not begun, and has all the time that it needs to find out why ranks failed."""
    monkeypatch.setattr(crew_module, "_SETTLE_SECONDS", HANG_S)
    crew = Crew(Settings(Source("tiny", "tiny"), 1, str(tmp_path), "run", tmp_path, ranks=2))
    yield crew
    crew.stop()


def test_of_ranks_that_failed_the_one_that_made_the_others_fail_is_named_though_it_tells_later(crew: Crew) -> None:
    for event in (Trained(0), LOST, Failed("trainer-1", "ValueError: not a number", "")):
        crew._wires.events.put(event)
    assert crew._cause(LOST).startswith("the process trainer-1 failed: ValueError: not a number")


def test_a_rank_that_was_killed_is_named_and_not_those_that_miss_it(crew: Crew) -> None:
    dead = SimpleNamespace(name="trainer-1", exitcode=-signal.SIGKILL, is_alive=lambda: False)
    crew._processes["trainer-1"] = cast("BaseProcess", dead)
    connection_closed = Failed("trainer-0", "RuntimeError: Connection closed by peer", "")
    for failed in (LOST, connection_closed):
        assert crew._cause(failed).startswith("the process trainer-1 was killed by SIGKILL")
