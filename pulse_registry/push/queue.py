"""Queue of a run's pending pushes: diffed, and neither committed nor failed yet.

One thread takes them in order. There are no more than a bound says, so that what they hold in memory has one too. Who
waits, waits for the thread's own futures, which tests may bring along with the thread.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from pulse_registry.errors import InvalidArgument
from pulse_registry.process.closing import Closing, UnderWay
from pulse_registry.push.future import PushFuture
from pulse_registry.results import PushResult


class Pending(Protocol):
    """What is queued: a push that was diffed; see ``PendingPush``."""

    step: int
    future: PushFuture
    replaced: list[PushFuture]


Push = TypeVar("Push", bound=Pending)


@dataclass(slots=True, eq=False)
class Turn(Generic[Push]):
    """A turn of the thread, and the push that has it; None: it was taken back, and no other has taken its place yet."""

    push: Push | None
    task: Future[None] | None = None
    begun: bool = False


class PushQueue(Generic[Push]):
    """Gives pushes their turn in a thread, one by one; knows which of their failures nobody has seen. Thread-safe."""

    def __init__(
        self,
        thread: Executor,
        limit: int,
        run: str,
    ) -> None:
        """Begin with nothing on its way.

        Args:
            thread: one, for this queue alone; ``finish`` ends it.
            limit: how many pushes may be on their way.
            run: the run's name, for messages.
        """
        self._thread = thread
        self._limit = limit
        self._run = run
        self._lock = threading.RLock()
        self._turns: list[Turn[Push]] = []  # of the pushes on their way, oldest first
        self._spare: Turn[Push] | None = None
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
    def waiting(self) -> Push | None:
        """The newest push, if it has not begun to be published."""
        with self._lock:
            newest = self._turns[-1] if self._turns else None
            return None if newest is None or newest.begun else newest.push

    def put(self, push: Push, publish: Callable[[Turn[Push]], None]) -> None:
        """Queue a push; it gets the turn of one that was taken back, if there is one.

        ``publish`` is called in the thread: it takes the turn with ``begin``, and ends it with ``done`` or ``failed``.
        """
        with self._lock:
            turn, self._spare = self._spare, None
            if turn is None:
                turn = Turn(push)
                turn.task = self._thread.submit(publish, turn)
            turn.push = push
            self._turns.append(turn)

    def take_back(self, push: Push) -> bool:
        """Take out the newest push, unless it has begun to be published; its turn is for the next one that comes."""
        with self._lock:
            if self.waiting is not push:
                return False
            self._spare = self._turns.pop()
            self._spare.push = None
            return True

    def begin(self, turn: Turn[Push]) -> Push | None:
        """Take a turn, in the thread; return its push, None if it was taken back."""
        with self._lock:
            turn.begun = True
            if self._spare is turn:
                self._spare = None
            if turn.push is not None:
                self._at_work = threading.get_ident()
            return turn.push

    def done(self, turn: Turn[Push], push: Push, result: PushResult) -> None:
        """End a turn; resolve its futures once its place is free."""
        try:
            with self._lock:
                self._turns.remove(turn)
            push.future.set_result(result)
            for future in push.replaced:
                future.set_result(dataclasses.replace(result, coalesced=True))
        finally:
            self._at_work = None

    def failed(self, turn: Turn[Push], push: Push, error: BaseException) -> None:
        """End a turn whose push failed; its futures raise the error."""
        futures = [push.future, *push.replaced]
        try:
            with self._lock:
                self._turns.remove(turn)
                self._failed += futures
            for future in futures:
                future.set_exception(error)
        finally:
            self._at_work = None

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
        """Wait until the push that is now the oldest is published, or has failed."""
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

    def unseen(self, last: int | None = None) -> BaseException | None:
        """Return the first failure that nobody has seen, with a note of what it is about; once.

        Args:
            last: number of the last push to look at; None: at all of them.
        """
        with self._lock:
            found = [future for future in self._failed if last is None or future.number <= last]
            self._failed = [future for future in self._failed if future not in found]
        unseen = [future for future in found if not future.seen]
        errors = [error for future in unseen if (error := future.exception()) is not None]
        if not errors:
            return None
        steps = _steps([future.step for future in unseen])
        errors[0].add_note(f"{steps} pushed with wait=False, and its future was never read: so it is raised here")
        return errors[0]

    def _under_way(self) -> UnderWay | None:
        """Say what is not done yet, and return what waits for the first of it."""
        with self._lock:
            waiting = [(turn.push.step, turn.task) for turn in self._turns if turn.push is not None and turn.task]
            others = [(what, task) for what, task in self._others if not task.done()]
        if waiting:
            return f"{_steps([step for step, _ in waiting])} not committed yet", _waiting(waiting[0][1])
        return (f"{others[0][0]} is not done yet", _waiting(others[0][1])) if others else None


def _waiting(task: Future[Any]) -> Callable[[float], None]:
    def wait(seconds: float) -> None:
        with suppress(TimeoutError):
            task.exception(seconds)

    return wait


def _steps(steps: list[int]) -> str:
    if len(steps) == 1:
        return f"step {steps[0]} was"
    return f"steps {', '.join(map(str, steps))} were"
