"""Rate-limited log lines of failures that hit everybody at once: one at the beginning, then a count now and then.

While a bucket is down, each request fails alike. A line for each would bury the one that says why.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

EVERY_S: Final = 10.0
Later = Callable[[float, Callable[[], None]], object]
"""Calls a function after so many seconds."""


@dataclass(slots=True)
class _Crowd:
    """What came after the last line of a kind: how many, and the last of them."""

    more: int = 0
    last: str = ""


class Crowds:
    """Logs errors by kind; for the event loop's thread alone."""

    def __init__(self, logger: logging.Logger, every_s: float = EVERY_S, later: Later | None = None) -> None:
        """Begin with none.

        Args:
            logger: where they are logged, as errors.
            every_s: from one line of a kind to the next, in seconds.
            later: calls a function after so many seconds; None: the running event loop.
        """
        self._logger = logger
        self._every_s = every_s
        self._later = later or _in_loop
        self._crowds: dict[str, _Crowd] = {}

    def tell(self, kind: str, message: str) -> None:
        """Log an error at once, or count it where one of its kind was logged just now."""
        crowd = self._crowds.get(kind)
        if crowd is not None:
            crowd.more, crowd.last = crowd.more + 1, message
            return
        self._logger.error("%s", message)
        self._begin(kind)

    def _begin(self, kind: str) -> None:
        self._crowds[kind] = _Crowd()
        self._later(self._every_s, lambda: self._end(kind))

    def _end(self, kind: str) -> None:
        crowd = self._crowds.pop(kind)
        if crowd.more:
            self._logger.error("%d more of %s in %g s, the last: %s", crowd.more, kind, self._every_s, crowd.last)
            self._begin(kind)


def _in_loop(seconds: float, call: Callable[[], None]) -> object:
    return asyncio.get_running_loop().call_later(seconds, call)
