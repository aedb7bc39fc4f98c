"""A compactor in a thread of a trainer's process: it works between pushes, and no push waits for it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from concurrent.futures import Executor

from pulse_registry.compact.compactor import Compactor
from pulse_registry.errors import PulseError

_logger = logging.getLogger(__name__)


class Background:
    """Runs a compactor after each commit; it ends with the piece of work that it is at when it is closed.

    Attributes:
        idle: set while there is nothing to do.
    """

    def __init__(self, compactor: Compactor, pools: Sequence[Executor] = ()) -> None:
        """Take a compactor, and the threads that it has for itself."""
        self._compactor = compactor
        self._pools = pools
        self.idle = threading.Event()
        self._wake = threading.Event()
        self._closing = False
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def committed(self, push: object = None) -> None:
        """Take note that a push has ended; returns at once."""
        with self._lock:
            if self._closing:
                return
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="pulse-compact")
                self._thread.start()
            self.idle.clear()
            self._wake.set()

    def close(self) -> None:
        """Stop. Idempotent."""
        with self._lock:
            self._closing = True
            thread = self._thread
            self._wake.set()
        if thread is not None:
            thread.join()
        self._compactor.close()
        for pool in self._pools:
            pool.shutdown(wait=True)

    def _run(self) -> None:
        while not self._closing:
            if not self._wake.is_set():
                self.idle.set()
            self._wake.wait()
            self._wake.clear()
            try:
                while not self._closing and self._compactor.step() is not None:
                    pass
            except PulseError as error:
                _logger.warning("the compactor is tried again after the next push: %s", error)
