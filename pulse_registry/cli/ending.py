"""Stop signals of long commands: SIGTERM and SIGINT end them after the current task."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType


@contextmanager
def stops_on_signals(stop: threading.Event) -> Iterator[None]:
    """Set ``stop`` on the first of these signals; a second SIGINT interrupts as ever. For the main thread alone."""
    previous = {}

    def ask(number: int, frame: FrameType | None) -> None:
        if stop.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        with suppress(ValueError):
            previous[number] = signal.signal(number, ask)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
