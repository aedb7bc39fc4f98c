"""The pushes of a run that are on their way: diffed, and neither committed nor failed yet.

One thread takes them in order. There are no more than a bound says, so that what they hold in memory has one too. Who
waits, waits for the thread's own futures, which tests may bring along with the thread.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from pulse_registry.errors import InvalidArgument
from pulse_registry.process.closing import Closing, UnderWay
from pulse_registry.push.future import PushFuture
from pulse_registry.push.shadow import Advance, Shadow
from pulse_registry.results import PushResult
from pulse_registry.timeline import Timeline
from pulse_registry.weights.digest import Digest


@dataclass(slots=True, eq=False)
class Job:
    """One push on its way; ``advance`` is None for a version that is held by a keyframe alone.

    Attributes:
        future: of the push.
        replaced: the futures of the pushes whose place it took.
    """

    version: int
    step: int
    shadow: Shadow
    advance: Advance | None
    digest: Digest
    metadata: Mapping[str, Any]
    generation: int
    timeline: Timeline
    future: PushFuture
    replaced: list[PushFuture] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class _Turn:
    """A turn of the thread, and who has it; None: who had it was taken back, and nobody has taken the place yet."""

    job: Job | None
    task: Future[None] | None = None
    begun: bool = False


class PushQueue:
    """Publishes jobs one by one in a thread, and knows which of their failures nobody has seen. Thread-safe."""

    def __init__(
        self,
        thread: Executor,
        publish: Callable[[Job], PushResult],
        limit: int,
        run: str,
    ) -> None:
        """Prepare to publish.

        Args:
            thread: one, for this queue alone; ``finish`` ends it.
            publish: publishes a job, in that thread.
            limit: how many pushes may be on their way.
            run: the run's name, for messages.
        """
        self._thread = thread
        self._publish = publish
        self._limit = limit
        self._run = run
        self._lock = threading.RLock()
        self._turns: list[_Turn] = []  # of the jobs on their way, oldest first
        self._spare: _Turn | None = None
        self._others: list[tuple[str, Future[Any]]] = []
        self._failed: list[PushFuture] = []
        self._at_work: int | None = None

    def __len__(self) -> int:
        with self._lock:
            return len(self._turns)

    @property
    def full(self) -> bool:
        """Whether one more push would be too many; never for the queue's own thread, which nobody else could help."""
        with self._lock:
            return len(self._turns) >= self._limit and self._at_work != threading.get_ident()

    @property
    def busy(self) -> bool:
        """Whether any push is on its way, as seen from another thread than the queue's own."""
        with self._lock:
            return bool(self._turns) and self._at_work != threading.get_ident()

    @property
    def waiting(self) -> Job | None:
        """The newest job, if it has not begun to be published."""
        with self._lock:
            newest = self._turns[-1] if self._turns else None
            return None if newest is None or newest.begun else newest.job

    def put(self, job: Job) -> None:
        """Queue a job; it gets the turn of one that was taken back, if there is one."""
        with self._lock:
            turn, self._spare = self._spare, None
            if turn is None:
                turn = _Turn(job)
                turn.task = self._thread.submit(self._take_turn, turn)
            turn.job = job
            self._turns.append(turn)

    def take_back(self, job: Job) -> bool:
        """Take out the newest job, unless it has begun to be published; its turn is for the next one that comes."""
        with self._lock:
            if self.waiting is not job:
                return False
            self._spare = self._turns.pop()
            self._spare.job = None
            return True

    def fail(self, future: PushFuture, error: BaseException) -> None:
        """Fail a push that was taken back."""
        with self._lock:
            self._failed.append(future)
        future.set_exception(error)

    def then(self, what: str, work: Callable[[], None]) -> None:
        """Queue other work for the thread, by a name for messages.

        Raises:
            RuntimeError: the process ends, and the thread takes nothing more.
        """
        with self._lock:
            self._others = [(name, task) for name, task in self._others if not task.done()]
            self._others.append((what, self._thread.submit(work)))

    def wait(self) -> None:
        """Wait until the job that is now the oldest is published, or has failed."""
        with self._lock:
            task = self._turns[0].task if self.busy else None
        if task is not None:
            task.exception()

    def finish(self, closing: Closing) -> None:
        """Wait for all that was queued, and end the thread. Idempotent.

        Raises:
            StoreUnavailable: it is not done in time; the thread goes on, and so does a later call.
            InvalidArgument: a push's own callback called it, which the thread would wait for.
        """
        if self._at_work == threading.get_ident():
            raise InvalidArgument(
                f"run {self._run!r}: a callback of a push can't close its registry, which waits for it"
            )
        closing.wait(self._under_way)
        self._thread.shutdown(wait=True)

    def unseen(self) -> BaseException | None:
        """Return the first failure that nobody has seen, with a note of what it is about; once."""
        with self._lock:
            unseen, self._failed = [future for future in self._failed if not future.seen], []
        errors = [error for future in unseen if (error := future.exception()) is not None]
        if not errors:
            return None
        steps = _steps([future.step for future in unseen])
        errors[0].add_note(f"{steps} pushed with wait=False, and nobody has looked at the future: so it is raised here")
        return errors[0]

    def _under_way(self) -> UnderWay | None:
        """Say what is not done yet, and return what waits for the first of it."""
        with self._lock:
            waiting = [(turn.job.step, turn.task) for turn in self._turns if turn.job is not None and turn.task]
            others = [(what, task) for what, task in self._others if not task.done()]
        if waiting:
            return f"{_steps([step for step, _ in waiting])} not committed yet", _waiting(waiting[0][1])
        return (f"{others[0][0]} is not done yet", _waiting(others[0][1])) if others else None

    def _take_turn(self, turn: _Turn) -> None:
        with self._lock:
            turn.begun = True
            if self._spare is turn:
                self._spare = None
            job = turn.job
        if job is None:
            return
        self._at_work = threading.get_ident()
        try:
            self._end(turn, job)
        finally:
            self._at_work = None

    def _end(self, turn: _Turn, job: Job) -> None:
        """Publish a job, and resolve its futures once its place is free."""
        futures = [job.future, *job.replaced]
        try:
            result = self._publish(job)
        except BaseException as error:
            with self._lock:
                self._turns.remove(turn)
                self._failed += futures
            for future in futures:
                future.set_exception(error)
            raise
        with self._lock:
            self._turns.remove(turn)
        job.future.set_result(result)
        for future in job.replaced:
            future.set_result(dataclasses.replace(result, coalesced=True))


def _waiting(task: Future[Any]) -> Callable[[float], None]:
    def wait(seconds: float) -> None:
        with suppress(TimeoutError):
            task.exception(seconds)

    return wait


def _steps(steps: list[int]) -> str:
    if len(steps) == 1:
        return f"step {steps[0]} was"
    return f"steps {', '.join(map(str, steps))} were"
