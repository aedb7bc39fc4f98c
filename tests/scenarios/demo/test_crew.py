"""How the demo's supervisor starts its processes: no Ctrl-C is lost meanwhile, and none ever reaches them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from pulse_registry.demo.crew import interrupt_held

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
