"""One run of outer rounds: its programs started, stopped, killed, started again, and never left behind."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pulse_registry.demo.bucket import Bucket
from pulse_registry.demo.outer.board import Board
from pulse_registry.demo.outer.events import Change, Changed, Event, now, read
from pulse_registry.demo.outer.settings import BACK, KILLED, LATE, STOPPED, TRAINERS, WORKERS, Settings
from pulse_registry.demo.program import Program
from pulse_registry.demo.programs import Programs

_NOTICE = 3
"""Rounds from the decision which is the last one to its end: no trainer may be past it when it reads of it."""


class Session:
    """The programs of one run. A context manager: at its end none is left.

    Attributes:
        board: what has happened.
    """

    def __init__(self, settings: Settings) -> None:
        self.board = Board()
        self._settings = settings
        self._programs = Programs[Event](settings.out, settings.patience)
        self._trainers: dict[str, Program] = {}
        board = self.board
        self._due: list[tuple[Callable[[], bool], str, Change]] = [
            (lambda: board.round >= 1, LATE, "started"),
            (lambda: board.round >= 2, STOPPED, "stopped"),
            (lambda: board.missed(STOPPED) >= 2, STOPPED, "resumed"),
            (lambda: board.is_back(STOPPED, "resumed") and board.has_just_ended(KILLED), KILLED, "killed"),
            (lambda: board.missed(KILLED) >= 1, KILLED, "returned"),
        ]

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self._programs.close()

    def watch(self) -> Iterator[Event]:
        """Run all of it, and yield what happens.

        Raises:
            DemoFailed: it can't go on.
        """
        bucket = self._programs.bucket()
        self._programs.until(bucket.ready)
        for name in TRAINERS:
            if name != LATE:
                yield self._change(bucket, name, "started")
        for name in WORKERS:
            self._start(bucket, "worker", name)
        heard = time.monotonic()
        while not self._done():
            for event in self._programs.told():
                heard = time.monotonic()
                self.board.add(event)
                yield event
            while self._due and self._due[0][0]():
                _, name, change = self._due.pop(0)
                yield self._change(bucket, name, change)
            self._end()
            self._programs.check(heard)
        self.board.ended = now()
        self._verify(bucket)

    def _change(self, bucket: Bucket, name: str, change: Change) -> Changed:
        match change:
            case "started" | "returned":
                self._trainers[name] = self._start(bucket, "trainer", name, again=change == "returned")
            case "stopped":
                self._trainers[name].pause()
            case "resumed":
                self._trainers[name].resume()
            case "killed":
                self._programs.kill(self._trainers[name])
        event = Changed(name, change, now())
        self.board.add(event)
        return event

    def _start(self, bucket: Bucket, role: str, name: str, *, again: bool = False) -> Program:
        def told(document: dict[str, Any]) -> None:
            if (event := read(document)) is not None:
                self._programs.events.put(event)

        command = [sys.executable, "-m", f"{__package__}.{role}", name, bucket.url, self._settings.to_json()]
        environment = {**bucket.environment, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
        return self._programs.start(f"{name}-again" if again else name, command, environment, told)

    def _end(self) -> None:
        """Say which round is the last one, once all that is to be shown has happened; trainers are one round ahead."""
        back = not self._due and all(self.board.is_back(*one) for one in BACK)
        if back and self._settings.last is None:
            self._settings.end_at(max(self._settings.rounds, self.board.round + _NOTICE))

    def _done(self) -> bool:
        last, board = self._settings.last, self.board
        pulled = all(name in board.pulls and board.pulls[name][-1].version == last for name in WORKERS)
        return pulled and board.trained.keys() == {*TRAINERS}

    def _verify(self, bucket: Bucket) -> None:
        """Let the library check the last version in the store, and make all rounds anew from it; see the log."""
        run = ["--root", bucket.url, "--run", self._settings.run]
        for name, command in (("verify", ["verify"]), ("outer-verify", ["outer", "verify"])):
            program = Path(sys.executable).with_name("pulse")
            check = self._programs.start(name, [program, *command, *run], bucket.environment)
            self._programs.until(lambda check=check: check.status == 0)  # type: ignore[misc]
