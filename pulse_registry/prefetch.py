"""Prefetching: the newest version is staged in the background, so that a worker has only to apply it.

A thread follows the run's log. It never writes the weights: ``Staged.apply`` is the worker's, in the worker's time.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self

from tenacity import RetryCallState, Retrying, retry_if_not_exception_type, stop_when_event_set, wait_random_exponential
from tenacity.nap import sleep_using_event

from pulse_registry.errors import BaseMismatch, InvalidArgument, PulseError, told
from pulse_registry.events import Event, EventKind, Events
from pulse_registry.held import Held
from pulse_registry.log import RunState
from pulse_registry.pulling import Staged

WAIT_SECONDS = 5.0
"""A service is asked for news so long at a time: no longer, as closing waits for the answer."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.25, 30.0
"""A pause after an error is drawn from 0 to the first, then twice that, and so on to the longest, in seconds."""
_EXITS = (SystemExit, KeyboardInterrupt, GeneratorExit)
"""What is not tried again: somebody wants the thread to end."""


class News(Protocol):
    """A run's log."""

    def __call__(self, state: RunState | None, sleep: Callable[[float], object]) -> RunState:
        """Return the run's state: at once for None, else after waiting a while for what follows ``state``."""
        ...


class Prefetch:
    """Keeps the newest version staged for a worker's weights, until it is closed. A context manager that closes it.

    There is at most one version ready, and one in the making. Each is staged for what the weights hold then; while the
    worker has one in its hands, the next is not begun, and it is made from the new base.

    Attributes:
        error: whatever the last try to stage the newest version ended with; None once one has succeeded.
    """

    def __init__(self, stage: Callable[[], Staged], news: News, held: Held, events: Events, run: str) -> None:
        """Begin; ``Registry.prefetch`` does it.

        Args:
            stage: stages the newest version.
            news: tells which one that is.
            held: what the weights are known to hold.
            events: hear of each try that fails.
            run: the run's name.
        """
        self.error: BaseException | None = None
        self._stage, self._news, self._held, self._events, self._run = stage, news, held, events, run
        self._changed = threading.Condition()
        self._ready: Staged | None = None
        self._taken: Staged | None = None
        self._state: RunState | None = None  # as of which there was nothing to do
        self._closed = threading.Event()
        self._ended = False
        # A daemon: who forgets to close it can end the process all the same.
        self._thread = threading.Thread(target=self._work, name="pulse-prefetch", daemon=True)
        self._thread.start()

    def take(self, timeout: float | None = 0.0) -> Staged | None:
        """Return the newest version that is ready to be applied, and give it into the caller's hands.

        It is the caller's to apply, and to discard, which a ``with`` block does. What was taken before is taken as
        done with.

        Args:
            timeout: seconds to wait until one is ready; None: for as long as it takes.

        Returns:
            None if none is ready in time: the weights hold the newest version, or ``error`` says why not.

        Raises:
            InvalidArgument: the prefetch was closed, perhaps while this waited.
            PulseError: its thread has ended, which ``error``, its cause, says why; begin another prefetch.
        """
        ends = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            self._taken = None
            self._changed.notify_all()
            while True:
                self._check_alive()
                if self._ready is not None and self._ready.fits:
                    self._taken, self._ready = self._ready, None
                    return self._taken
                left = None if ends is None else ends - time.monotonic()
                if left is not None and left <= 0:
                    return None
                self._changed.wait(left)

    def wake(self) -> None:
        """Look again: the weights were changed."""
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """End it, once what is in the making is done, and discard that and what is ready. Idempotent."""
        self._closed.set()
        self.wake()
        self._thread.join()
        with self._changed:
            self._replace(None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check_alive(self) -> None:
        if self._closed.is_set():
            raise InvalidArgument(f"this prefetch of run {self._run!r} was closed; begin another one")
        # A process that was forked from the one that began it has no such thread.
        if self._ended or not self._thread.is_alive():
            why = "it is not of this process" if self.error is None else told(self.error)
            message = f"the thread of this prefetch of run {self._run!r} has ended: {why}. Begin another one"
            raise PulseError(message) from self.error

    def _work(self) -> None:
        try:
            self._follow()
        except BaseException as error:  # noqa: BLE001 - the thread's outermost edge: ``take`` raises it
            self.error = error
            message = f"the newest version could not be made ready, and the prefetch has ended: {told(error)}"
            self._events.tell(Event(EventKind.PREFETCH_FAILED, self._run, message), error)
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def _follow(self) -> None:
        while not self._closed.is_set():
            Retrying(
                retry=retry_if_not_exception_type(_EXITS),
                wait=wait_random_exponential(_FIRST_PAUSE, _LONGEST_PAUSE),
                stop=stop_when_event_set(self._closed),
                sleep=sleep_using_event(self._closed),
                before_sleep=self._tell,
                retry_error_callback=lambda _: None,
            )(self._go_on)

    def _go_on(self) -> None:
        """Stage the newest version, or wait for one if that is done."""
        state, self._state = self._state, None
        state = self._news(state, self._closed.wait)
        with self._changed:
            self._changed.wait_for(lambda: self._closed.is_set() or self._taken is None or not self._taken.fits)
            if self._ready is not None and not self._ready.fits:
                self._replace(None)
            has = self._held.version if self._ready is None else self._ready.version
        if state.latest is None or state.latest.version == has:
            self._state, self.error = state, None
        elif not self._closed.is_set():
            self._make()

    def _make(self) -> None:
        """Stage the newest version, and put it in the place of the one that is ready."""
        writes = self._held.writes
        try:
            made = self._stage()
        except BaseMismatch:
            if self._held.writes == writes:
                raise
            return  # the worker was faster: what is newest now follows from what the weights hold now
        with self._changed:
            self.error = None
            self._replace(made)
            self._changed.notify_all()

    def _replace(self, ready: Staged | None) -> None:
        """Put another version, or none, in the place of the one that is ready."""
        if self._ready is not None:
            self._ready.discard()
        self._ready = ready

    def _tell(self, failed: RetryCallState) -> None:
        error = failed.outcome.exception() if failed.outcome is not None else None
        if error is not None:
            self.error = error
            message = f"the newest version could not be made ready, and will be tried again: {told(error)}"
            key = error.key if isinstance(error, PulseError) else None
            self._events.tell(Event(EventKind.PREFETCH_FAILED, self._run, message, key), error)
            _let_go(error)


def _let_go(error: BaseException | None) -> None:
    """Give back what the frames of an error hold: the next try may need that memory."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__
