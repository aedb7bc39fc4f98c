"""Log lines leave the caller at once, come out in order, and are dropped only where nobody takes them."""

from __future__ import annotations

import io
import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from pulse_server.telemetry import log_queue
from pulse_server.telemetry.log_queue import LogQueue
from tests.support.waiting import HANG_S

FORM = logging.Formatter("%(message)s")


class Pipe(io.StringIO):
    """A stream that takes lines while it is open, and counts its writes."""

    def __init__(self) -> None:
        super().__init__()
        self.open, self.asked, self.writes = threading.Event(), threading.Event(), 0
        self.open.set()

    def write(self, text: str) -> int:
        self.asked.set()
        self.open.wait(HANG_S)
        self.writes += 1
        return super().write(text)


@pytest.fixture(autouse=True)
def _written_on_a_busy_machine_too(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_FLUSH_S", "_CLOSE_S"):
        monkeypatch.setattr(log_queue, name, HANG_S)


@contextmanager
def logging_to(pipe: Pipe, max_waiting: int = 1_000) -> Iterator[logging.Logger]:
    handler = LogQueue(pipe, FORM, max_waiting=max_waiting)
    logger = logging.Logger("test")
    logger.addHandler(handler)
    try:
        yield logger
    finally:
        pipe.open.set()
        handler.close()


def test_lines_of_all_threads_come_out_and_each_threads_in_order() -> None:
    pipe = Pipe()
    with logging_to(pipe, 100_000) as logger:

        def log(name: str) -> None:
            for number in range(500):
                logger.info("%s %d", name, number)

        threads = [threading.Thread(target=log, args=(name,)) for name in "abcd"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    lines = pipe.getvalue().splitlines()
    assert len(lines) == 2_000
    for name in "abcd":
        assert [line for line in lines if line.startswith(name)] == [f"{name} {number}" for number in range(500)]


def test_a_stream_that_takes_nothing_stops_nobody_and_gets_what_waits_in_few_writes() -> None:
    pipe = Pipe()
    with logging_to(pipe) as logger:
        pipe.open.clear()
        logger.info("first")
        assert pipe.asked.wait(HANG_S)
        for number in range(500):
            logger.info("line %d", number)
        assert pipe.writes == 0
    assert pipe.getvalue().splitlines() == ["first", *(f"line {number}" for number in range(500))]
    assert pipe.writes == 2


def test_lines_over_the_bound_are_dropped_and_that_is_said() -> None:
    pipe = Pipe()
    with logging_to(pipe, max_waiting=3) as logger:
        pipe.open.clear()
        logger.info("first")
        assert pipe.asked.wait(HANG_S)
        for number in range(10):
            logger.info("line %d", number)
        pipe.open.set()
        logger.handlers[0].flush()
        logger.info("last")
    assert pipe.getvalue().splitlines() == ["first", "line 0", "line 1", "line 2", "7 log lines were dropped", "last"]


def test_a_flush_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_queue, "_FLUSH_S", 0.01)
    pipe = Pipe()
    with logging_to(pipe) as logger:
        pipe.open.clear()
        logger.info("first")
        logger.handlers[0].flush()
        assert pipe.getvalue() == ""


def test_a_line_that_can_not_be_formatted_does_not_end_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    pipe = Pipe()
    with logging_to(pipe) as logger:
        logger.info("%d", "x")
        logger.info("good")
    assert pipe.getvalue() == "good\n"
    assert "Logging error" in capsys.readouterr().err


@pytest.mark.slow
def test_what_was_logged_is_written_when_python_ends() -> None:
    script = (
        "import logging\n"
        "from pulse_server.telemetry import log_queue\n"
        "from pulse_server.telemetry.logs import configure\n"
        "from pulse_server.settings import Settings\n"
        f"log_queue._CLOSE_S = {HANG_S}\n"
        "configure(Settings.read(root='memory://x'))\n"
        "for number in range(5000): logging.info('line %d', number)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=HANG_S, check=True)
    assert done.stderr.count("\n") == 5000
