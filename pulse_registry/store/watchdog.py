"""Watchdog of transfers: gives up one that is slower than a limit, since it holds its thread as a silent one does."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from pulse_registry.errors import InvalidArgument, StoreUnavailable


@dataclass(frozen=True, slots=True)
class LowSpeedLimit:
    """A transfer that brings fewer than ``bytes_per_s``, over a window of ``window_s``, is given up."""

    bytes_per_s: float = 64 << 10
    window_s: float = 10.0
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        """Check the bounds.

        Raises:
            InvalidArgument: one is not positive.
        """
        if min(self.bytes_per_s, self.window_s) <= 0:
            raise InvalidArgument("bytes_per_s and window_s must be positive")


class TransferWatchdog:
    """Watches one transfer."""

    def __init__(self, limit: LowSpeedLimit, what: str) -> None:
        """Begin.

        Args:
            limit: what is asked of it.
            what: the transfer, for the message.
        """
        self._limit = limit
        self.what = what
        self._since = limit.clock()
        self._bytes = 0

    def add(self, nbytes: int) -> None:
        """Count bytes that have gone through.

        Raises:
            StoreUnavailable: fewer than the limit asks for did in the last window.
        """
        self._bytes += nbytes
        now = self._limit.clock()
        passed = now - self._since
        if passed < self._limit.window_s:
            return
        if self._bytes < self._limit.bytes_per_s * passed:
            raise StoreUnavailable(
                f"{self.what}: stalled: {self._bytes} bytes in {passed:.1f} s, which is given up under "
                f"{self._limit.bytes_per_s:.0f} bytes/s; try again"
            )
        self._since, self._bytes = now, 0
