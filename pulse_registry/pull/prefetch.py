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

from pulse_registry.errors import BaseMismatch, InvalidArgument, PulseError, told
from pulse_registry.events import Event, EventKind, Events
from pulse_registry.log import RunState
from pulse_registry.process.closing import UnderWay
from pulse_registry.process.fork import OwnerProcess
from pulse_registry.pull.apply import Staged
from pulse_registry.pull.replica import ReplicaState
from pulse_registry.results import VersionName

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
    worker has one in its hands, the next is not begun, and it is made from the new base. A version that was undone is
    not offered again: the weights stay what they are until a newer one is there.

    Attributes:
        error: whatever the last try to stage the newest version ended with; None once one has succeeded.
    """

    def __init__(
        self,
        stage: Callable[[VersionName], Staged],
        number: Callable[[VersionName], int],
        news: News,
        held: ReplicaState,
        events: Events,
        run: str,
    ) -> None:
        """Begin; ``Registry.prefetch`` does it.

        Args:
            stage: stages a version.
            number: returns a version's number.
            news: tells which one is the newest.
            held: what the weights are known to hold.
            events: hear of each try that fails.
            run: the run's name.
        """
        self.error: BaseException | None = None
        self._stage, self._number, self._news = stage, number, news
        self._held, self._events, self._run = held, events, run
        self._owner = OwnerProcess()
        self._changed = threading.Condition()
        self._woken = False
        self._skipped: set[int] = set()
        self._pinned: int | None = None
        self._ready: Staged | None = None
        self._taken: Staged | None = None
        self._state: RunState | None = None  # as of which there was nothing to do
        self._closed = threading.Event()
        self._ended: BaseException | None = None
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
            InvalidArgument: the prefetch was closed, perhaps while this waited; or this is a process that was forked
                from its own.
            PulseError: its thread has ended, which ``error``, its cause, says why; begin another prefetch.
        """
        self._owner.check(f"this prefetch of run {self._run!r}")
        ends = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            self._taken = None
            self._changed.notify_all()
            while True:
                self._check_alive()
                if (offered := self._offered()) is not None:
                    self._taken, self._ready = offered, None
                    return offered
                left = None if ends is None else ends - time.monotonic()
                if left is not None and left <= 0:
                    return None
                self._changed.wait(left)

    @property
    def ready(self) -> int | None:
        """The version that ``take`` would return now; None: there is none, or not yet."""
        with self._changed:
            offered = self._offered()
            return None if offered is None else offered.version

    def skip(self, version: int) -> None:
        """Never offer this version: while it is the newest, the weights stay what they are."""
        with self._changed:
            self._skipped.add(version)
            self._choose()

    def pin(self, version: VersionName | None) -> None:
        """Offer this version and no other, newer or not, until another is pinned; None: the newest again.

        It is staged as any other, and offered unless the weights hold it, though it was skipped or undone before.

        Args:
            version: a number, ``"latest"`` or a tag: the version that it stands for now.

        Raises:
            NotFound: there is no such version; what was pinned before stays so.
            CorruptObject, UnsupportedFormat, StoreUnavailable: the log can't be read.
        """
        number = None if version is None else self._number(version)
        with self._changed:
            self._pinned = number
            if number is not None:
                self._skipped.discard(number)
                if self._held.undone == number:
                    self._held.undone = None
            self._choose()

    def wake(self) -> None:
        """Look again: the weights were changed."""
        with self._changed:
            self._woken = True
            self._changed.notify_all()

    def stop(self) -> None:
        """Begin nothing more, and return at once. Idempotent."""
        if self._owner.is_current:
            self._closed.set()
            self.wake()

    def under_way(self) -> UnderWay | None:
        """Say that its thread has not ended, and return what waits for that; None: it has."""
        alive = self._owner.is_current and self._thread.is_alive()
        return ("a prefetch has not ended what it began", self._thread.join) if alive else None

    def close(self) -> None:
        """End it, once what is in the making is done, and discard that and what is ready. Idempotent."""
        if not self._owner.is_current:
            return
        self.stop()
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
        if self._ended is not None:
            message = (
                f"the thread of this prefetch of run {self._run!r} has ended: {told(self._ended)}. Begin another one"
            )
            raise PulseError(message) from self._ended

    def _work(self) -> None:
        try:
            self._follow()
        except BaseException as error:  # noqa: BLE001 - the thread's outermost edge: ``take`` raises it
            with self._changed:
                self.error = self._ended = error
                self._changed.notify_all()
            message = f"the newest version could not be made ready, and the prefetch has ended: {told(error)}"
            self._events.tell(Event(EventKind.PREFETCH_FAILED, self._run, message), error)

    def _follow(self) -> None:
        while not self._closed.is_set():
            Retrying(
                retry=retry_if_not_exception_type(_EXITS),
                wait=wait_random_exponential(_FIRST_PAUSE, _LONGEST_PAUSE),
                stop=stop_when_event_set(self._closed),
                sleep=self._rest,
                before_sleep=self._tell,
                retry_error_callback=lambda _: None,
            )(self._go_on)

    def _go_on(self) -> None:
        """Stage the version that is wanted, or wait for one if that is done."""
        state, self._state = self._state, None
        state = self._news(state, self._rest)
        with self._changed:
            self._changed.wait_for(lambda: self._closed.is_set() or self._taken is None or not self._taken.fits)
            self._woken = False
            if self._ready is not None and not self._ready.fits:
                self._replace(None)
            has = self._held.version if self._ready is None else self._ready.version
            pinned, newest = self._pinned, None if state.latest is None else state.latest.version
            wanted = newest if pinned is None else pinned
            done = wanted is None or wanted == has or not self._wants(wanted)
        if done:
            self._state, self.error = state, None
        elif not self._closed.is_set():
            self._make("latest" if pinned is None else pinned)

    def _offered(self) -> Staged | None:
        """Return what is ready, if it fits the weights and may be offered; the lock is held."""
        ready = self._ready
        return ready if ready is not None and ready.fits and self._wants(ready.version) else None

    def _wants(self, version: int) -> bool:
        """Tell whether a version may be offered; the lock is held."""
        chosen = self._pinned is None or version == self._pinned
        return chosen and version not in self._skipped and version != self._held.undone

    def _choose(self) -> None:
        """Let go of what is ready, if it is not to be offered any more, and look again; the lock is held."""
        if self._ready is not None and not self._wants(self._ready.version):
            self._replace(None)
        self.wake()

    def _rest(self, seconds: float) -> None:
        """Wait for so long, or until there is reason to look again."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed.is_set() or self._woken, seconds)
            self._woken = False

    def _make(self, version: VersionName) -> None:
        """Stage a version, and put it in the place of the one that is ready."""
        writes = self._held.writes
        try:
            made = self._stage(version)
        except BaseMismatch:
            if self._held.writes == writes:
                raise
            return  # the worker was faster: what is newest now follows from what the weights hold now
        with self._changed:
            self.error = None
            if self._wants(made.version):
                self._replace(made)
            else:
                made.discard()  # it was skipped, or another one pinned, meanwhile
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
