"""One root of several: it is left alone for a while after it has failed, and then tried again by one call."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final, TypeVar

from pulse_registry.errors import AccessDenied, InvalidArgument, NotFound, StoreUnavailable
from pulse_registry.store import RetryPolicy, RetryStore, Store
from pulse_registry.store.wrappers.retry import retrying_at_most

PATIENCE_S: Final = 1.0
"""What a root can't do for a moment is tried again for so long before another root is asked."""
Failure = StoreUnavailable | AccessDenied | InvalidArgument
FAILURES: Final = (StoreUnavailable, AccessDenied, InvalidArgument)
"""What a root that is away says, or locked, or a bucket that is no more."""
FIRST_REST_S: Final = 5.0
LONGEST_REST_S: Final = 60.0

_logger = logging.getLogger(__name__)
T = TypeVar("T")


class Root:
    """A root's store, and whether it is worth asking. Thread-safe.

    Attributes:
        store: where runs lie.
        url: of the store.
    """

    def __init__(self, store: Store, *, clock: Callable[[], float], sleep: Callable[[float], None]) -> None:
        """Take a store, and monotonic time."""
        self.store: Store = RetryStore(store, RetryPolicy(clock=clock, sleep=sleep))
        self.url = store.url
        self._clock, self._lock = clock, threading.Lock()
        self._rest_s = 0.0  # 0: the last call that is over was answered
        self._until = float("-inf")

    @property
    def rests(self) -> bool:
        """Whether it failed a short while ago, or somebody finds out just now whether it is back."""
        return self._clock() < self._until

    def ask(self, call: Callable[[Store], T]) -> T:
        """Make a call of its store: once, where it has failed before; others leave it alone meanwhile.

        Raises:
            StoreUnavailable, AccessDenied, InvalidArgument: it fails, and is left alone: each time twice as long, up to
                a minute.
            Other errors of the call are answers.
        """
        with self._lock:
            doubtful = self._rest_s > 0
            if doubtful:
                self._until = self._clock() + self._rest_s
        try:
            with retrying_at_most(0.0 if doubtful else PATIENCE_S):
                answer = call(self.store)
        except FAILURES as error:
            self._rest(error, again=doubtful)
            raise
        except NotFound:
            self._answered()
            raise
        self._answered()
        return answer

    def _rest(self, error: Failure, *, again: bool) -> None:
        with self._lock:
            if self._rest_s and not again:
                return  # it was under way when another call failed
            self._rest_s = min(max(2 * self._rest_s, FIRST_REST_S), LONGEST_REST_S)
            self._until = self._clock() + self._rest_s
            rest_s = self._rest_s
        _logger.warning("%s is left alone for %.0f s, and other roots are asked: %s", self.url, rest_s, error)

    def _answered(self) -> None:
        if self._rest_s:
            with self._lock:
                self._rest_s, self._until = 0.0, float("-inf")
            _logger.info("%s answers again", self.url)
