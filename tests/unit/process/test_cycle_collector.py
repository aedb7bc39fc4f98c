"""The pause of the cycle collector: over with the last that asked for it, and as it was before."""

from __future__ import annotations

import gc
import multiprocessing
import os
import threading
from collections.abc import Iterator

import pytest

from pulse_registry.process.cycle_collector import cycles_kept


@pytest.fixture(autouse=True)
def running() -> Iterator[None]:
    gc.enable()
    yield
    gc.enable()


def test_it_pauses_until_the_last_of_several_threads_is_done() -> None:
    entered, leave = threading.Event(), threading.Event()

    def other() -> None:
        with cycles_kept():
            entered.set()
            leave.wait()

    thread = threading.Thread(target=other)
    with cycles_kept():
        thread.start()
        entered.wait()
    assert not gc.isenabled()
    leave.set()
    thread.join()
    assert gc.isenabled()


def test_who_has_no_collector_has_none_afterwards() -> None:
    gc.disable()
    with cycles_kept():
        pass
    assert not gc.isenabled()


def test_an_error_ends_it_and_a_function_may_be_decorated() -> None:
    @cycles_kept()
    def fails(depth: int) -> None:
        assert not gc.isenabled()
        if depth:
            fails(depth - 1)
        raise LookupError("no more")

    for _ in range(2):
        with pytest.raises(LookupError, match="no more"):
            fails(2)
        assert gc.isenabled()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_process_that_is_forked_within_it_collects_again() -> None:
    ours, theirs = multiprocessing.Pipe()
    with cycles_kept():
        pid = os.fork()
        if pid == 0:
            try:
                with cycles_kept():
                    inside = gc.isenabled()
                theirs.send((inside, gc.isenabled()))
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
    assert ours.recv() == (False, True)
    assert gc.isenabled()
