"""The programs of a demo: started, watched, listened to, and all ended with it."""

from __future__ import annotations

import os
import queue
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Generic, TypeVar

from pulse_registry.demo.bucket import Bucket, start_bucket
from pulse_registry.demo.ending import DemoFailed
from pulse_registry.demo.program import Program

Event = TypeVar("Event")
_TICK_S = 0.25


class Programs(Generic[Event]):
    """A context manager: at its end no program is left.

    Attributes:
        events: what happens, from any thread; an error ends the demo.
        at_end: is unwound at the end.
    """

    def __init__(self, out: Path, patience: float) -> None:
        """Prepare.

        Args:
            out: folder of the demo; logs are in ``logs``, which is there.
            patience: seconds for anything to happen, after which the demo is given up.
        """
        self.events: queue.SimpleQueue[Event | Exception] = queue.SimpleQueue()
        self.at_end = ExitStack()
        self._out, self._patience = out, patience
        self._programs: list[Program] = []

    def __enter__(self) -> Programs[Event]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all. Idempotent."""
        self.at_end.close()

    def start(
        self,
        name: str,
        command: Sequence[object],
        environment: Mapping[str, str],
        tell: Callable[[dict[str, Any]], None] | None = None,
    ) -> Program:
        """Start a program; see ``Program``."""
        program = Program(name, command, self._out / "logs", environment, tell)
        self.at_end.callback(program.stop)
        self._programs.append(program)
        return program

    def bucket(self) -> Bucket:
        """Start a bucket, and let this process have its keys; it is not ready yet."""
        short = self.at_end.enter_context(tempfile.TemporaryDirectory(prefix="pulse-", ignore_cleanup_errors=True))
        bucket = start_bucket(self.start, self._out / "bucket", short)
        os.environ.update(bucket.environment)
        return bucket

    def kill(self, program: Program) -> None:
        """End a program at once, as a machine does that loses its power; that it has ended is no error."""
        self._programs.remove(program)
        program.kill()

    def told(self) -> Iterator[Event]:
        """Yield what was told by now, after a moment where there is nothing.

        Raises:
            DemoFailed: an error was told.
        """
        wait = True
        while True:
            try:
                event = self.events.get(timeout=_TICK_S) if wait else self.events.get_nowait()
            except queue.Empty:
                return
            wait = False
            if isinstance(event, Exception):
                raise DemoFailed(f"{type(event).__name__}: {event}") from event
            yield event

    def until(self, ready: Callable[[], bool]) -> None:
        """Look again and again until something is so.

        Raises:
            DemoFailed: it was not, for long, or a program has ended with an error.
        """
        give_up = time.monotonic() + self._patience
        while not ready():
            self.check(give_up - self._patience)
            time.sleep(_TICK_S)

    def check(self, heard: float) -> None:
        """Look whether all programs are well: some end, but none with an error.

        Args:
            heard: when something happened last, by the monotonic clock.

        Raises:
            DemoFailed: one has, or nothing has happened for long.
        """
        for program in self._programs:
            if program.status:
                raise DemoFailed(f"{program.name} has ended with {program.status}: {program.last_lines()}")
        if time.monotonic() - heard > self._patience:
            raise DemoFailed(f"nothing has happened for {self._patience:.0f} s; see {self._out / 'logs'}")
