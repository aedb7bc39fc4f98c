"""Listening: a listener hears of pushes and pulls in a thread of its own, so that no push and no pull waits for it."""

from __future__ import annotations

import logging
from collections import deque
from typing import Final

from pulse_registry.process.background_thread import BackgroundThread
from pulse_registry.results import PullResult, PushResult, ResultListener

MOST: Final = 1_000
"""Results that wait for a listener; of more, the oldest are left out."""
CLOSE_S: Final = 10.0
"""How long a registry that is closed waits until the listener has heard the rest."""

_logger = logging.getLogger(__name__)


class Listening:
    """Tells one listener of results, in their order, one at a time. What it raises is logged, and stops nobody."""

    def __init__(self, run: str, listener: ResultListener, *, most: int = MOST, close_s: float = CLOSE_S) -> None:
        """Begin with nothing to tell; no thread yet.

        Args:
            run: in messages.
            listener: that is told.
            most: results that wait for it.
            close_s: for how long ``close`` waits for it.
        """
        self._run, self._listener, self._close_s = run, listener, close_s
        self._waiting: deque[PushResult | PullResult] = deque(maxlen=most)
        self._thread = BackgroundThread("pulse-listener", self._work)
        self._left_out, self._failed = False, set[type]()

    def tell(self, result: PushResult | PullResult) -> None:
        """Tell of a result soon; it neither waits nor raises."""
        with self._thread.changed:
            if self._thread.stopping:
                return
            if len(self._waiting) == self._waiting.maxlen and not self._left_out:
                self._left_out = True
                _logger.warning("run %s: on_result is too slow: it is not told of all pushes and pulls", self._run)
            self._waiting.append(result)
            try:
                self._thread.wake()
            except RuntimeError as error:  # no more threads for this process: it is told with the next one
                _logger.warning("run %s: on_result is told later: %s", self._run, error)

    def stop(self) -> None:
        """Take no more results, and return at once. Idempotent."""
        self._thread.stop()

    def close(self) -> None:
        """Wait, not for ever, until all was told. Idempotent."""
        self._thread.close(self._close_s)
        with self._thread.changed:
            if self._waiting:
                _logger.warning("run %s: on_result was not told of %d results", self._run, len(self._waiting))
                self._waiting.clear()

    def _work(self) -> None:
        while (result := self._next()) is not None:
            try:
                self._listener(result)
            except Exception as error:
                # The edge to code that is not ours.
                if type(error) not in self._failed:
                    self._failed.add(type(error))
                    _logger.error("run %s: on_result raised", self._run, exc_info=error)

    def _next(self) -> PushResult | PullResult | None:
        """Wait for a result, and return it; None: nothing more."""
        with self._thread.changed:
            self._thread.rest(None, lambda: bool(self._waiting))
            return self._waiting.popleft() if self._waiting else None
