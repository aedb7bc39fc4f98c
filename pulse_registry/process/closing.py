"""Closing: waits for the work that a registry has under way and logs it, up to a timeout if one is given."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final, TypeAlias

from pulse_registry.errors import StoreUnavailable

_logger = logging.getLogger(__name__)
_TELL_SECONDS: Final = 5.0
"""How often it is said what is waited for."""

UnderWay: TypeAlias = tuple[str, Callable[[float], object]]
"""What is not done yet, as a clause, and what waits for it for so many seconds at most."""


class Closing:
    """One call of ``close``: all that it waits for has the same time."""

    def __init__(self, run: str, timeout: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin; ``timeout`` counts from now, in seconds; None: as long as it takes. ``run`` is named in messages."""
        self._run, self._timeout, self._clock = run, timeout, clock
        self._began = clock()

    def wait(self, under_way: Callable[[], UnderWay | None]) -> None:
        """Wait until nothing is under way; what is, is logged: at once, and as a warning every few seconds.

        Raises:
            StoreUnavailable: the time is over. What is under way goes on.
        """
        level, told = logging.INFO, self._began
        while (left := under_way()) is not None:
            what, wait = left
            now = self._clock()
            waited = now - self._began
            if self._timeout is not None and waited >= self._timeout:
                raise StoreUnavailable(
                    f"run {self._run!r}: after {self._timeout} s, {what}. close() again to go on waiting"
                )
            if level == logging.INFO or now - told >= _TELL_SECONDS:
                _logger.log(level, "run %s: closing: %s (%.0f s)", self._run, what, waited)
                level, told = logging.WARNING, now
            wait(_TELL_SECONDS if self._timeout is None else min(_TELL_SECONDS, self._timeout - waited))
