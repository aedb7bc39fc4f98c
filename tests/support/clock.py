"""Time for tests: it passes only while somebody sleeps."""

from __future__ import annotations

import threading


class Clock:
    """Seconds. For any number of threads; where several sleep at once, all of their sleep counts."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pauses: list[float] = []
        self._lock = threading.Lock()

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        with self._lock:
            self.pauses.append(seconds)
            self.now += seconds
