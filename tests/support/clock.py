"""Time for tests: it passes only while somebody sleeps, or when a test says so."""

from __future__ import annotations

import threading


class Clock:
    """Seconds. For any number of threads; where several sleep at once, all of their sleep counts.

    Attributes:
        now: the time; a test may set it.
        pauses: how long was slept, each time.
    """

    def __init__(self, now: float = 0.0) -> None:
        self.now = now
        self.pauses: list[float] = []
        self._lock = threading.Lock()

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        with self._lock:
            self.pauses.append(seconds)
            self.now += seconds
