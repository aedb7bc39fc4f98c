"""The follower: looks at a run and at an engine, and brings the engine to the version that it is to serve.

look -> stage -> pause -> apply -> reset caches -> resume. It asks the engine what it serves at each look, so that one
that was started anew is brought up again; and whatever fails, the engine goes on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_when_event_set, wait_random_exponential

from pulse_registry.client.reports import Reporter
from pulse_registry.errors import NotFound, PulseError
from pulse_registry.follow.engine import Engine, EngineFailed
from pulse_registry.follow.pace import Pace
from pulse_registry.follow.told import Changed, Failed
from pulse_registry.log.clock import timestamp, utc_now
from pulse_registry.registry import Registry
from pulse_registry.results import Version
from pulse_registry.store.wrappers.retry import RetryPolicy

WAIT_S: Final = 5.0
"""Between two looks at the engine, while the run has nothing new."""
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 60.0
"""A pause after a failure is drawn from 0 to the first, then twice that, and so on to the longest."""
_POLL_S: Final = 0.5


class Follower:
    """Keeps one engine at the version that a pace names. For one thread, but for ``stop``.

    Attributes:
        pausing: whether the engine is paused, or may be: nothing should interrupt the thread now.
    """

    def __init__(
        self,
        registry: Registry,
        engine: Engine,
        pace: Pace,
        tell: Callable[[Changed | Failed], None],
        *,
        reporter: Reporter | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] | None = None,
        wait: Callable[[int, float], object] | None = None,
    ) -> None:
        """Prepare; no I/O yet.

        Args:
            registry: the run.
            engine: that follows it.
            pace: which version, and how soon.
            tell: is told of each change, and of each failure before it is tried again.
            reporter: tells a service what the engine serves; None: nobody.
            clock: monotonic time in seconds.
            sleep: pauses after a failure; None: until it is stopped.
            wait: waits for versions over a number, so many seconds at most; None: watches the run.
        """
        self.pausing = False
        self._registry, self._engine, self._pace, self._tell, self._reporter = registry, engine, pace, tell, reporter
        self._clock, self._stopping = clock, threading.Event()
        self._sleep, self._wait = sleep or self._rest, wait or self._watch
        self._resuming = RetryPolicy(clock=clock, sleep=self._sleep)
        self._serves: int | None = None
        self._reported: int | None = None
        self._last_began: float | None = None

    def stop(self) -> None:
        """End ``run`` after what is under way. From any thread, or a signal's handler."""
        self._stopping.set()

    def run(self) -> None:
        """Follow until it is stopped; errors of the registry, the store and the engine are told, and tried again."""
        while not self._stopping.is_set():
            Retrying(
                retry=retry_if_exception_type(PulseError),
                wait=wait_random_exponential(FIRST_PAUSE_S, LONGEST_PAUSE_S),
                stop=stop_when_event_set(self._stopping),
                sleep=self._sleep,
                before_sleep=self._failed,
                retry_error_callback=lambda _: None,
            )(self.look)

    def look(self) -> None:
        """Bring the engine to its version if it is time, or wait a while for news; once it is stopped, do nothing.

        Raises:
            PulseError: the run can't be read, or the engine did not change: it serves what it served.
        """
        if self._stopping.is_set():
            return
        self._serves = self._asked()
        state = self._registry.state()
        newest, wait_s = len(state.versions) - 1, WAIT_S
        if newest >= 0:
            wanted = self._registry.version(self._pace.version)
            if wanted.version != self._serves:
                since = None if self._last_began is None else self._clock() - self._last_began
                wait_s = min(WAIT_S, self._pace.due_in(self._serves, wanted.version, since))
                if not wait_s:
                    self._change(wanted, newest)
                    return
        self._wait(newest, wait_s)

    def _asked(self) -> int | None:
        """Ask the engine what it serves; who does not answer is taken off the service's list."""
        try:
            serves = self._engine.version()
        except PulseError:
            self._serves = None
            self._report(None)
            raise
        self._report(serves)
        return serves

    def _change(self, wanted: Version, newest: int) -> None:
        """Bring the engine to a version."""
        version, before, began = wanted.version, self._serves, self._clock()
        self._last_began = began
        self._engine.stage(version)
        staged = self._clock()
        with self._paused():
            try:
                self._engine.apply(version)
                self._engine.reset_caches()
            except BaseException as error:
                self._undo(before, error)
                raise
        self._serves = version
        stage_s, pause_s = staged - began, self._clock() - staged if self._engine.pauses else None
        phases = {"stage": stage_s} if pause_s is None else {"stage": stage_s, "pause": pause_s}
        self._report(version, phases)
        behind, now = max(0, newest - version), timestamp(utc_now())
        self._tell(Changed(self._engine.name, version, before, behind, stage_s, pause_s, now))

    @contextmanager
    def _paused(self) -> Iterator[None]:
        """Pause the engine for a block, however that ends: what did not answer may be paused, too."""
        if not self._engine.pauses:
            yield
            return
        self.pausing = True
        try:
            self._engine.pause()
            yield
        finally:
            try:
                self._resuming(self._engine.resume)
            finally:
                self.pausing = False

    def _undo(self, before: int | None, error: BaseException) -> None:
        try:
            self._engine.undo(before)
        except PulseError as second:
            raise EngineFailed(f"{error}; and it could not be taken back: {second}") from error

    def _report(self, version: int | None, phases: dict[str, float] | None = None) -> None:
        """Tell the service what the engine serves, or that it serves nothing that is known; the same once."""
        if self._reporter is None or (version == self._reported and phases is None):
            return
        self._reported = version
        try:
            digest = None if version is None else self._registry.version(version).digest
        except NotFound:  # of another run, or retired
            digest = None
        if version is None or digest is None:
            self._reporter.leave()
            return
        from pulse_schemas.api import WorkerReport  # made by pydantic, which others spare

        self._reporter.tell(WorkerReport(version=version, digest=digest, phases=phases or {}))

    def _rest(self, seconds: float) -> None:
        self._stopping.wait(seconds)

    def _watch(self, after: int, seconds: float) -> None:
        next(self._registry.watch(after, latest_only=True, poll_seconds=_POLL_S, timeout=seconds), None)

    def _failed(self, state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome is not None else None
        pause_s = state.next_action.sleep if state.next_action is not None else 0.0
        name, message = type(error).__name__, str(error)
        self._tell(Failed(self._engine.name, self._serves, name, message, pause_s, timestamp(utc_now())))
