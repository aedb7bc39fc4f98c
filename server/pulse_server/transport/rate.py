"""Rate limits: a token bucket for each caller. Not thread-safe: one event loop asks."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable

from pulse_registry.errors import InvalidArgument


class RateLimit:
    """Lets each caller make ``burst`` requests at once, and ``per_s`` a second from then on.

    Callers are remembered while their bucket is not full, ``max_callers`` of them at most: the one that was silent
    longest is forgotten first, and begins anew with a full bucket.
    """

    def __init__(self, per_s: float, burst: int, *, clock: Callable[[], float], max_callers: int = 10_000) -> None:
        """Make a limit; ``per_s`` 0 is no limit.

        Raises:
            InvalidArgument: a rate below 0, or a burst or a number of callers below 1.
        """
        if per_s < 0 or burst < 1 or max_callers < 1:
            raise InvalidArgument("a rate is at least 0, a burst and a number of callers at least 1")
        self._per_s, self._burst = per_s, float(burst)
        self._clock, self._max_callers = clock, max_callers
        self._buckets: OrderedDict[Hashable, tuple[float, float]] = OrderedDict()

    def take(self, caller: Hashable) -> float:
        """Count a request and return 0; or, over the limit, count nothing and return the seconds until the next one."""
        if not self._per_s:
            return 0.0
        now = self._clock()
        left, at = self._buckets.get(caller, (self._burst, now))
        left = min(self._burst, left + (now - at) * self._per_s)
        missing = 1.0 - left
        self._buckets[caller] = (left if missing > 0 else left - 1.0, now)
        self._buckets.move_to_end(caller)
        if len(self._buckets) > self._max_callers:
            self._buckets.popitem(last=False)
        return missing / self._per_s if missing > 0 else 0.0
