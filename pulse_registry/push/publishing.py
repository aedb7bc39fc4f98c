"""Publishing: what the trainer's sides of whole and of sharded models share. One thread publishes pushes, in order."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Generic

from pulse_registry.context import Context
from pulse_registry.errors import InvalidArgument
from pulse_registry.log import LogWriter
from pulse_registry.process.closing import Closing
from pulse_registry.push.carried_files import FilesToCarry
from pulse_registry.push.failure import tell_failed
from pulse_registry.push.options import PushOptions
from pulse_registry.push.queue import Push, PushQueue, Turn
from pulse_registry.results import PushResult


class Publishing(ABC, Generic[Push]):
    """The pushes of one run: each was diffed while its caller waited, and is published when its turn comes."""

    def __init__(
        self,
        context: Context,
        writer: LogWriter,
        options: PushOptions,
        thread: Executor,
        committed: Sequence[Callable[[PushResult], None]],
    ) -> None:
        """Begin with no push.

        Args:
            context: store, threads, and who hears of events.
            writer: of the run's log.
            options: how to push.
            thread: one, for these pushes alone; ``close`` ends it.
            committed: are called with each version's result, in that thread; they neither wait nor raise.
        """
        self._context, self._options, self._thread, self._committed = context, options, thread, committed
        self._queue: PushQueue[Push] = PushQueue(thread, options.max_pending, writer.reader.run)
        self._tell_failed = partial(tell_failed, context.events, writer.reader.run)
        self._lock = threading.RLock()  # of what pushes are diffed against
        self._files = FilesToCarry(options.dtype)
        self._closed = False

    def close(self, closing: Closing) -> None:
        """Refuse new pushes, and wait for those on their way. Idempotent.

        Raises:
            StoreUnavailable: they are not done in time.
        """
        self._closed = True
        with self._lock:
            pass  # a push that had begun is queued now
        self._queue.finish(closing)

    def unseen(self) -> BaseException | None:
        """Return the first failure that nobody has seen; once."""
        return self._queue.unseen()

    def _check_open(self) -> None:
        if self._closed:
            raise InvalidArgument("the registry was closed; open it again")

    def _publish_next(self, turn: Turn[Push]) -> None:
        """Publish the push whose turn it is, in the background thread."""
        push = self._queue.begin(turn)
        if push is None:
            return
        try:
            try:
                result = self._publish(push)
            except BaseException as error:
                self._take_back(push, error)
                self._tell_failed(push.step, error)
                raise
            for tell in self._committed:
                tell(result)
        except BaseException as error:
            self._queue.failed(turn, push, error)
            raise
        self._queue.done(turn, push, result)

    @abstractmethod
    def _publish(self, push: Push) -> PushResult:
        """Store and commit what was diffed."""

    @abstractmethod
    def _take_back(self, push: Push, error: BaseException) -> None:
        """Go back to the version before a push that failed, for the next one to carry its changes."""
