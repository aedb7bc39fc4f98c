"""The future of a push: it knows whether anybody has looked at how the push ended.

A failure that nobody has seen must not be lost: the next push, or ``close``, raises it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager

from pulse_registry.process.fork import OwnerProcess
from pulse_registry.results import PushResult


class PushFuture(Future[PushResult]):
    """Holds a push's result, or what went wrong. The push is under way already, and can't be cancelled.

    Attributes:
        step: the trainer's label.
        number: of the push, where ranks count them; 0 elsewhere.
    """

    def __init__(self, step: int, number: int = 0) -> None:
        super().__init__()
        self.set_running_or_notify_cancel()
        self.step, self.number = step, number
        self._owner = OwnerProcess()
        self._looking = threading.Lock()
        self._lookers = 0
        self._seen = False

    @property
    def seen(self) -> bool:
        """Whether somebody has seen the end, or is waiting to see it. ``asyncio.wrap_future`` and its like count."""
        with self._looking:
            return self._seen or self._lookers > 0

    def result(self, timeout: float | None = None) -> PushResult:
        """Return the result, or raise what went wrong; InvalidArgument in a process forked off before the end."""
        with self._look():
            return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return what went wrong; None: the version is committed. Raises InvalidArgument as ``result``."""
        with self._look():
            return super().exception(timeout)

    @contextmanager
    def _look(self) -> Iterator[None]:
        if not self.done():
            self._owner.check(f"the push of step {self.step}")  # the thread that would end it is not here
        with self._looking:
            self._lookers += 1
        try:
            yield
        finally:
            with self._looking:
                self._lookers -= 1
                self._seen |= self.done()
