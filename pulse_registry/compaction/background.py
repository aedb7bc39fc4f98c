"""Background compactor in a trainer's process: its thread works between pushes, and no push waits for it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Executor

from pulse_registry.compaction.compactor import Compactor
from pulse_registry.errors import InvalidArgument, PulseError, told
from pulse_registry.events import Event, EventKind, Events
from pulse_registry.process.closing import Closing, UnderWay
from pulse_registry.results import PushResult


class Background:
    """Runs a compactor after each commit in a thread of its own, one merged patch or keyframe at a time.

    A process that ends without closing it waits for the task at hand and no longer.

    Attributes:
        idle: set while there is nothing to do.
    """

    def __init__(
        self, compactor: Compactor, thread: Executor, others: Sequence[Executor], events: Events, run: str
    ) -> None:
        """Take a compactor, the one thread that it is for, other threads that it has for itself, and who hears that it
        failed at a run.
        """
        self.idle = threading.Event()
        self.idle.set()
        self._compactor = compactor
        self._thread = thread
        self._others = others
        self._events, self._run = events, run
        self._lock = threading.Lock()
        self._busy = self._news = self._closing = False

    def committed(self, result: PushResult) -> None:
        """Look for tasks now that a version is committed; returns at once."""
        with self._lock:
            self._news = True
            if not self._busy:
                self._go_on()

    def close(self, closing: Closing) -> None:
        """Stop after the task at hand. Idempotent.

        Raises:
            StoreUnavailable: that is not done in time; it goes on, and so does a later call.
        """
        with self._lock:
            self._closing = True
        closing.wait(self._under_way)
        self._thread.shutdown(wait=True)
        self._compactor.close()
        for pool in self._others:
            pool.shutdown(wait=True)

    def _under_way(self) -> UnderWay | None:
        return None if self.idle.is_set() else ("a compaction task is not done yet", self.idle.wait)

    def _go_on(self) -> None:
        """Queue the next task, unless this is the end; the lock is held."""
        self._busy = self._news = False
        if not self._closing:
            try:
                self._thread.submit(self._step)
                self._busy = True
            except (RuntimeError, InvalidArgument):
                self._closing = True  # the process ends
        (self.idle.clear if self._busy else self.idle.set)()

    def _ended(self) -> bool:
        """Tell whether the process ends: then no executor takes anything more, and what was under way fails."""
        try:
            self._thread.submit(lambda: None)
        except (RuntimeError, InvalidArgument):
            self._closing = True
        return self._closing

    def _step(self) -> None:
        more = False
        try:
            more = self._compactor.step() is not None
        except Exception as error:  # noqa: BLE001 - the thread's outermost edge: a trainer goes on without a compactor
            if isinstance(error, PulseError) or not self._ended():
                message = f"the compactor failed, and is tried again after the next push: {told(error)}"
                self._events.tell(Event(EventKind.COMPACTION_FAILED, self._run, message), error)
        finally:
            with self._lock:
                if more or self._news:
                    self._go_on()
                else:
                    self._busy = False
                    self.idle.set()
