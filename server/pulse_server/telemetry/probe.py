"""Health probe of the store: a background thread asks it now and then, and knows when it last answered.

Readiness must not hang with the store: each question has a thread of its own, which may stay away as long as it likes.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from pulse_registry.errors import AccessDenied, CorruptObject, NotFound, PulseError
from pulse_registry.log.documents import SMALL
from pulse_registry.store.base import Store

PROBE_KEY: Final = "pulse-probe"
"""Never written: that it is not there is an answer, too."""

_MAX_OUT: Final = 8
logger = logging.getLogger(__name__)


class StoreProbe:
    """Asks the store every ``every_s`` seconds; `ready` while its last answer is younger than ``limit_s``.

    Give it the store beneath any retries. An answer is whatever the store itself says: no such object, or no leave to
    read it, as well (a service that may not list gets 403 for what is not there).
    """

    def __init__(
        self,
        store: Store,
        *,
        every_s: float = 1.5,
        limit_s: float = 4.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Probe a store, from `start` on."""
        self._store = store
        self._every_s, self._limit_s = every_s, limit_s
        self._clock = clock
        self._lock = threading.Lock()
        self._started = clock()
        self._last: float | None = None
        self._out = 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.problem: str | None = None
        """Why the last question failed; for logs, not for callers."""

    def start(self) -> None:
        """Begin to ask, in the background. Again is no error."""
        if self._thread is None:
            self._stop.clear()
            self._thread = threading.Thread(target=self._run, name="store-probe", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Stop asking; questions under way are left to themselves."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    @property
    def age_s(self) -> float:
        """Seconds since the store last answered; since the probe was made, where it never has."""
        return self._clock() - (self._started if self._last is None else self._last)

    @property
    def ready(self) -> bool:
        """Whether the store has answered of late."""
        return self._last is not None and self.age_s <= self._limit_s

    def ask(self) -> None:
        """Ask the store once, and wait for it."""
        try:
            self._store.get(PROBE_KEY, max_bytes=SMALL)
        except (NotFound, AccessDenied, CorruptObject):
            pass
        except PulseError as error:
            self.problem = str(error)
            return
        except Exception as error:
            # A thread's outermost edge.
            self.problem = f"{type(error).__name__}: a defect, which the log shows"
            logger.exception("the store %s could not be asked", self._store.url)
            return
        with self._lock:
            self.problem = None
            self._last = self._clock()

    def _run(self) -> None:
        was_ready = False
        while not self._stop.is_set():
            if self.ready != was_ready:
                was_ready = not was_ready
                self._tell(was_ready)
            with self._lock:
                free = self._out < _MAX_OUT
                self._out += free
            if free:
                self._begin_question()
            self._stop.wait(self._every_s)

    def _tell(self, ready: bool) -> None:
        if ready:
            logger.info("the store %s answers", self._store.url)
        else:
            logger.error("the store %s has not answered for %.1f s: %s", self._store.url, self.age_s, self.problem)

    def _begin_question(self) -> None:
        try:
            threading.Thread(target=self._ask_apart, name="store-probe-question", daemon=True).start()
        except RuntimeError as error:  # no more threads for this process, for now
            self.problem = str(error)
            with self._lock:
                self._out -= 1

    def _ask_apart(self) -> None:
        try:
            self.ask()
        finally:
            with self._lock:
                self._out -= 1
