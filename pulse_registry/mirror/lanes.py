"""Lanes: the threads, the memory and the rate that all mirrors of a process share, however many runs there are."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final

from pulse_registry.mirror.rate import Rate

_THREADS: Final = 16
_ASKERS: Final = 16
_MEMORY: Final = 160 << 20
"""Bytes of all objects that are under way: with what the process takes besides, it stays under 256 MiB."""


class Lanes:
    """Shared between mirrors; thread-safe.

    Attributes:
        workers: copy an object each.
        readers: fetch the pieces of objects.
        askers: make small requests, which wait behind no object.
        rate: bounds what is fetched from sources.
    """

    def __init__(self, rate: Rate | None = None) -> None:
        """Make the threads, which start when they are needed. Without a rate there is no bound."""
        self.workers = ThreadPoolExecutor(_THREADS, "pulse-mirror")
        self.readers = ThreadPoolExecutor(_THREADS, "pulse-mirror-read")
        self.askers = ThreadPoolExecutor(_ASKERS, "pulse-mirror-ask")
        self.rate = rate or Rate(None)
        self._free = _MEMORY
        self._taken: set[str] = set()
        self._changed = threading.Condition()

    @contextmanager
    def memory(self, nbytes: int) -> Iterator[None]:
        """Wait for so many bytes, or all that there are, and have them during a block."""
        wanted = min(nbytes, _MEMORY)
        with self._changed:
            self._changed.wait_for(lambda: self._free >= wanted)
            self._free -= wanted
        try:
            yield
        finally:
            with self._changed:
                self._free += wanted
                self._changed.notify_all()

    @contextmanager
    def alone(self, key: str) -> Iterator[None]:
        """Have an object of a root, which several runs may need, for oneself during a block."""
        with self._changed:
            self._changed.wait_for(lambda: key not in self._taken)
            self._taken.add(key)
        try:
            yield
        finally:
            with self._changed:
                self._taken.remove(key)
                self._changed.notify_all()

    def close(self) -> None:
        """End the threads, after what is under way. Idempotent."""
        self.workers.shutdown()
        self.readers.shutdown()
        self.askers.shutdown()
