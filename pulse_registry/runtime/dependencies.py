"""Dependencies of a registry on its process: time, random ids, threads. Tests replace them."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from pulse_registry.errors import InvalidArgument
from pulse_registry.log.clock import Clock, NewId, random_id, utc_now
from pulse_registry.process.fork import OwnerProcess
from pulse_registry.store import RetryStore, Store


class Threads(ThreadPoolExecutor):
    """A pool whose end is a registry's: what comes later, or in a forked process, meets a typed error."""

    def __init__(self, count: int, name: str) -> None:
        super().__init__(count, name)
        self._owner, self._over = OwnerProcess(), False

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Queue a call.

        Raises:
            InvalidArgument: the registry was closed, or is another process's.
        """
        self._owner.check("this registry")
        try:
            return super().submit(function, *args, **kwargs)
        except RuntimeError as error:
            if self._over:
                raise InvalidArgument("the registry was closed; open it again") from error
            raise  # the process ends, or has as many threads as it may

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the threads, after what was queued; a process that was forked off has none of them."""
        self._over = True
        if self._owner.is_current:
            super().shutdown(wait, cancel_futures=cancel_futures)


def _threads(count: int, name: str) -> Executor:
    return Threads(count, name)


@dataclass(frozen=True, slots=True)
class Dependencies:
    """The real ones by default.

    Attributes:
        clock: the time of day, which records carry; nothing is decided by it.
        new_id: gives write ids, never the same twice.
        threads: makes an executor, of so many threads and their name's beginning.
        monotonic: seconds, to measure how long something takes.
        sleep: waits for so many seconds.
        retrying: wraps a store so that calls that fail for a moment are made again.
    """

    clock: Clock = utc_now
    new_id: NewId = random_id
    threads: Callable[[int, str], Executor] = _threads
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    retrying: Callable[[Store], Store] = RetryStore
