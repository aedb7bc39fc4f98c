"""Allowance: how many bytes may be sent now, where so many a second are borne. Not thread-safe: one event loop asks."""

from __future__ import annotations

from collections.abc import Callable


class Allowance:
    """So many bytes at once, and so many a second from then on."""

    def __init__(self, burst: int, per_s: float, clock: Callable[[], float]) -> None:
        """Begin with all of ``burst``."""
        self._burst, self._per_s, self._clock = burst, per_s, clock
        self._left, self._at = float(burst), clock()

    @property
    def left(self) -> float:
        """Bytes that may be sent now; less than 0 where too many were."""
        now = self._clock()
        self._left = min(self._burst, self._left + (now - self._at) * self._per_s)
        self._at = now
        return self._left

    def spend(self, nbytes: int) -> None:
        """Count what is sent."""
        self._left = self.left - nbytes
