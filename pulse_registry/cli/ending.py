"""Stop signals of long commands: SIGTERM and SIGINT end them after the current task, or at once where they may."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType


@contextmanager
def stops_on_signals(stop: threading.Event) -> Iterator[None]:
    """Set ``stop`` on the first of these signals; a second SIGINT interrupts as ever. For the main thread alone."""

    def ask(number: int, frame: FrameType | None) -> None:
        if stop.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        stop.set()

    with _handled(ask):
        yield


@contextmanager
def interrupts(stop: Callable[[], None], must_finish: Callable[[], bool]) -> Iterator[None]:
    """Call ``stop`` on these signals, and end the block at once, unless it must finish what it does first.

    For the main thread alone, which is the one that does it: so nothing comes between the question and the answer.
    """

    def ask(number: int, frame: FrameType | None) -> None:
        stop()
        if not must_finish():
            raise KeyboardInterrupt

    with suppress(KeyboardInterrupt), _handled(ask):
        yield


@contextmanager
def _handled(ask: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    previous = {}
    for number in (signal.SIGTERM, signal.SIGINT):
        with suppress(ValueError):
            previous[number] = signal.signal(number, ask)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
