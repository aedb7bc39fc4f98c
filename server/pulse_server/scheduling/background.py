"""Background work of the service: it goes on after whatever one turn of it raises, which is logged.

A task that ends all the same is told loudly, and shows in the metrics: nobody else would notice before what it did is
missed.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Final

from pulse_server.telemetry.metrics import Metrics

_TOLD_EVERY_S: Final = 60.0
logger = logging.getLogger(__name__)


class Background:
    """Watches over tasks by their kind, of which there are few. Thread-safe, but for `begin`."""

    def __init__(self, metrics: Metrics, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin with none; ``metrics`` are told."""
        self._metrics, self._clock = metrics, clock
        self._lock = threading.Lock()
        self._told: dict[tuple[str, type], float] = {}

    def begin(self, kind: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task that is to go on until it is cancelled."""
        alive = self._metrics.background.labels(kind)
        self._metrics.background_failures.labels(kind)  # at 0: what rises from nothing is no rise to Prometheus
        task = asyncio.get_running_loop().create_task(work, name=kind)
        alive.set(1)

        def ended(task: asyncio.Task[None]) -> None:
            alive.set(0)
            if not task.cancelled():
                message = "%s: has ended, and does not begin again: restart this replica"
                logger.critical(message, kind, exc_info=task.exception())

        task.add_done_callback(ended)
        return task

    async def repeat(
        self, kind: str, pause_s: float, turn: Callable[[], Awaitable[None]], *, first_s: float | None = None
    ) -> None:
        """Pause, take a turn, and so on, whatever a turn raises; ``first_s``: the first pause, if it is another one."""
        await asyncio.sleep(pause_s if first_s is None else first_s)
        while True:
            with self.surviving(kind):
                await turn()
            await asyncio.sleep(pause_s)

    @contextmanager
    def surviving(self, kind: str, but: type[Exception] | tuple[()] = ()) -> Iterator[None]:
        """Go on after the block whatever it raised, and tell of it; errors of the type ``but`` pass."""
        try:
            yield
        except but:
            raise
        except Exception as error:  # noqa: BLE001 - a task's outermost edge
            self.tell(kind, error)

    def tell(self, kind: str, error: Exception) -> None:
        """Count what a turn of a kind of task raised, and log it with its traceback.

        The same type of error of a kind of task is logged once a minute: what fails each turn would bury all else.
        """
        self._metrics.background_failures.labels(kind).inc()
        if self._is_new(kind, type(error)):
            logger.error("%s: failed; it is tried again at its next turn", kind, exc_info=error)

    def _is_new(self, kind: str, error: type) -> bool:
        with self._lock:
            now = self._clock()
            if now - self._told.get((kind, error), float("-inf")) < _TOLD_EVERY_S:
                return False
            self._told[kind, error] = now
            return True
