"""What a registry takes from the process around it: time, random ids, threads. Tests put others in their place."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass

from pulse_registry.log.clock import Clock, NewId, random_id, utc_now
from pulse_registry.store import RetryStore, Store


def _threads(count: int, name: str) -> Executor:
    return ThreadPoolExecutor(count, thread_name_prefix=name)


@dataclass(frozen=True, slots=True)
class Surroundings:
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
