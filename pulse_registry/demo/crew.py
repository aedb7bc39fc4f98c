"""The demo's processes, from the outside: started, watched, and never left behind."""

from __future__ import annotations

import contextlib
import multiprocessing
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing.process import BaseProcess
from types import FrameType, TracebackType
from typing import Any, Self

from pulse_registry.demo import sharded_worker, trainer, worker
from pulse_registry.demo.culprit import culprit
from pulse_registry.demo.ending import DemoFailed
from pulse_registry.demo.messages import Checked, Event, Failed, Published, Trained
from pulse_registry.demo.place import MeetingPoint, Place, meeting_point
from pulse_registry.demo.process import Wires, enter
from pulse_registry.demo.settings import LAGGARD, LATE, Settings

_TICK_SECONDS = 0.25
_END_SECONDS = 60.0


class Crew:
    """A trainer, rollout workers, a late one and a laggard. A context manager; at its end no process is left."""

    def __init__(self, settings: Settings) -> None:
        context = _context()
        self._context = context
        self._settings = settings
        self._wires = Wires(settings, context.Queue(), context.Queue(), context.Queue(), context.Event())
        self._processes: dict[str, BaseProcess] = {}
        self._handlers: dict[int, Any] = {}
        self._stores: list[MeetingPoint] = []

    def watch(self) -> Iterator[Event | None]:
        """Start all processes and yield what they tell, until all have ended well; None from time to time between.

        Raises:
            DemoFailed: one did not.
        """
        settings = self._settings
        for name, place in zip(settings.trainer_names, self._places(settings.ranks), strict=True):
            self._start(name, partial(trainer.train, place), settings.trainer_threads)
        for name in settings.rollout_names:
            self._start(name, worker.rollout, settings.worker_threads)
        for name, place in zip(settings.sharded_names, self._places(len(settings.sharded_names)), strict=True):
            self._start(name, partial(sharded_worker.follow, place), 1)
        self._start(LAGGARD, worker.laggard, 1)
        missing = set(settings.worker_names)
        heard = time.monotonic()
        while missing:
            event = self._next()
            if event is not None:
                heard = time.monotonic()
            elif time.monotonic() - heard > settings.patience:
                raise DemoFailed(f"no process has told anything for {settings.patience:.0f} s")
            if isinstance(event, Published) and event.version >= settings.late_after and LATE not in self._processes:
                self._start(LATE, worker.late, settings.worker_threads)
            elif isinstance(event, Trained):
                self._wires.finished.set()
            elif isinstance(event, Checked):
                missing.discard(event.worker)
            yield event
        self._await_end()

    def stop(self) -> None:
        """End what still runs. Idempotent."""
        running = [process for process in self._processes.values() if process.is_alive()]
        for process in running:
            process.terminate()
        for process in running:
            process.join(5)
            if process.is_alive():
                process.kill()
                process.join()
        for line in (self._wires.prompts, self._wires.rollouts, self._wires.events):
            line.close()
            line.cancel_join_thread()

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._handlers[signal.SIGTERM] = signal.signal(signal.SIGTERM, _leave)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _places(self, ranks: int) -> list[Place]:
        """Return the places of processes that work together; a process alone needs no meeting point."""
        if ranks < 2:
            return [Place()] * ranks
        store = meeting_point()
        self._stores.append(store)
        return [Place(rank, ranks, store.port) for rank in range(ranks)]

    def _start(self, name: str, body: Callable[[Wires, str], None], threads: int) -> None:
        process = self._context.Process(target=enter, args=(body, self._wires, name, threads), name=name, daemon=True)
        self._processes[name] = process
        with interrupt_held():
            process.start()

    def _next(self) -> Event | None:
        event = self._hear()
        if isinstance(event, Failed):
            raise DemoFailed(self._cause(event))
        dead = [process for process in self._processes.values() if process.exitcode not in (None, 0)]
        # Others may go on telling without a pause. What the dead one told has been heard once the queue is empty.
        if dead and self._wires.events.empty():
            raise DemoFailed(self._obituary(self._killed() or dead[0]))
        return event

    def _killed(self) -> BaseProcess | None:
        return next((process for process in self._processes.values() if (process.exitcode or 0) < 0), None)

    def _hear(self) -> Event | None:
        try:
            event: Event = self._wires.events.get(timeout=_TICK_SECONDS)
        except queue.Empty:
            return None
        return event

    def _cause(self, failed: Failed) -> str:
        """Return what made a process fail."""
        settings = self._settings
        found: Failed | BaseProcess = failed
        if settings.ranks > 1 and failed.process in (*settings.trainer_names, *settings.sharded_names):
            found = culprit(failed, self._killed, self._hear)
        if isinstance(found, Failed):
            return f"the process {found.process} failed: {found.message}\n{found.trace.rstrip()}"
        return self._obituary(found)

    def _obituary(self, process: BaseProcess) -> str:
        code = process.exitcode or 0
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
        hint = " (out of memory?)" if code == -signal.SIGKILL else ""
        log = self._settings.out / "logs" / f"{process.name}.log"
        tail = log.read_text(errors="replace").splitlines()[-15:] if log.is_file() else []
        return "\n".join([f"the process {process.name} {how}{hint}; its log is {log}", *tail])

    def _await_end(self) -> None:
        give_up = time.monotonic() + _END_SECONDS
        for process in self._processes.values():
            process.join(max(0.0, give_up - time.monotonic()))
            if process.exitcode != 0:
                raise DemoFailed(
                    self._obituary(process)
                    if process.exitcode is not None
                    else f"the process {process.name} did not end within {_END_SECONDS:.0f} s"
                )


def _context() -> Any:
    """Return how processes begin: as forks of one that has imported what they need; on a Mac, which forbids it, alone.

    It has no threads, and holds nothing of this process.
    """
    if sys.platform != "linux":
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["pulse_registry.demo.preload"])
    return context


@contextlib.contextmanager
def interrupt_held() -> Iterator[None]:
    """Hold back Ctrl-C until the end of the block, and from processes that are started in it for good.

    It reaches the whole group, but the supervisor alone answers it.

    Raises:
        KeyboardInterrupt: at the end, if it came meanwhile.
    """
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        yield
        return
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: came.append(number))  # another thread may be given it
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # a new process inherits this
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        signal.signal(signal.SIGINT, before)
    if came:
        raise KeyboardInterrupt


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
