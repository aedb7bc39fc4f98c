"""One root of several: it is left alone for a while after it has failed, and then tried again."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

from pulse_registry.errors import PulseError
from pulse_registry.store import RetryPolicy, RetryStore, Store

PATIENCE_S: Final = 1.0
"""A call is repeated for so long before another root is asked."""
FIRST_REST_S: Final = 5.0
LONGEST_REST_S: Final = 60.0

_logger = logging.getLogger(__name__)


class Root:
    """A root's store, and whether it is worth asking. Thread-safe.

    Attributes:
        store: where runs lie; what it can't do for a moment is tried again, for less long than a store alone would.
        url: of the store.
    """

    def __init__(self, store: Store, *, clock: Callable[[], float], sleep: Callable[[float], None]) -> None:
        """Take a store, and monotonic time."""
        self.store: Store = RetryStore(store, RetryPolicy(total_s=PATIENCE_S, clock=clock, sleep=sleep))
        self.url = store.url
        self._clock, self._lock = clock, threading.Lock()
        self._rest_s = 0.0
        self._until = float("-inf")

    @property
    def rests(self) -> bool:
        """Whether it failed a short while ago."""
        return self._clock() < self._until

    def failed(self, error: PulseError) -> None:
        """Leave it alone for a while: each time twice as long, up to a minute."""
        with self._lock:
            if self._clock() < self._until:
                return  # by a call that was under way when another one failed
            self._rest_s = min(max(2 * self._rest_s, FIRST_REST_S), LONGEST_REST_S)
            self._until = self._clock() + self._rest_s
            rest_s = self._rest_s
        _logger.warning("%s is left alone for %.0f s, and other roots are asked: %s", self.url, rest_s, error)

    def answered(self) -> None:
        """Note that it is there."""
        if self._rest_s:
            with self._lock:
                self._rest_s, self._until = 0.0, float("-inf")
            _logger.info("%s answers again", self.url)
