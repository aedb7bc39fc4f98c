"""What the event streams of a run cost as its fleet grows: bytes of a stream for a push that all workers report.

A real service on a socket, streams that read all they are sent, and workers that report the new version together.
"""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import ExitStack
from typing import Any, Final

import httpx

from benchmarks.growth.curve import Curve
from pulse_schemas.api import WorkerReport
from pulse_server.auth.access import Principal
from tests.support.apps import LAYOUT, Running, app_over, fill, run_of, running, store_record
from tests.support.records import RUN, DictStore

SIZES: Final = (40, 400, 4_000)
QUICK: Final = (4, 8)
STREAMS: Final = 50
PUSH_KB: Final = 20.0
"""Of a stream, for a push and the reports of all workers, at most."""
_OVER_S: Final = 5.0
"""In which all workers report a push; and in which a single report is told."""
_ROUNDS: Final = 10
_PHASES: Final = {"route": 0.01, "fetch": 0.8, "decode": 0.7, "verify": 0.7, "apply": 0.02}
_WHO: Final = Principal("a" * 12, "fleet", ("read",), ("*",))


def curves(quick: bool) -> list[Curve]:
    """Return the bytes of a stream for a push with all its reports, and for one report, and the service's time."""
    pushed: list[tuple[int, float]] = []
    told: list[tuple[int, float]] = []
    worked: list[tuple[int, float]] = []
    streams, over_s = (2, 0.5) if quick else (STREAMS, _OVER_S)
    for workers in QUICK if quick else SIZES:
        push, report, seconds = measured(workers, streams, over_s)
        pushed.append((workers, push / 1000))
        told.append((workers, report / 1000))
        worked.append((workers, 1e3 * seconds))
    of = f"of {streams} streams"
    return [
        Curve("streams.push", f"a push that all report, each {of}", "workers", "kB", tuple(pushed), "last", PUSH_KB),
        Curve("streams.report", f"a report of one worker, each {of}", "workers", "kB", tuple(told), "last", 1.0),
        Curve("streams.work", f"a push that all report, service and readers {of}", "workers", "ms", tuple(worked)),
    ]


def measured(workers: int, streams: int, over_s: float) -> tuple[float, float, float]:
    """Return the bytes that a stream is sent for a push with its reports, and for one report; seconds for the push."""
    store = DictStore()
    script = fill(store, run_of(3))
    with running(app_over(store, report_seconds=600)) as served, ExitStack() as stack:
        _report(served, range(workers), 2)
        readers = [stack.enter_context(_Reader(served.url)) for _ in range(streams)]
        _quiet(readers, 4 * over_s)
        before, began = _read(readers), time.process_time()
        store_record(store, script.commit(layout=LAYOUT.id).records[-1])
        for part in range(_ROUNDS):
            _report(served, range(part, workers, _ROUNDS), 3)
            time.sleep(over_s / _ROUNDS)
        _quiet(readers, 4 * over_s)
        pushed, worked = (_read(readers) - before) / streams, time.process_time() - began
        before = _read(readers)
        _report(served, [0], 3)
        time.sleep(over_s)
        return pushed, (_read(readers) - before) / streams, worked


class _Reader:
    """A stream that is read in a thread; ``nbytes`` came so far."""

    def __init__(self, url: str) -> None:
        self.nbytes = 0
        self._url = f"{url}/v1/runs/{RUN}/events"
        self._begun = threading.Event()
        self._thread = threading.Thread(target=self._run, name="stream")

    def __enter__(self) -> _Reader:
        self._thread.start()
        self._begun.wait()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopping = True

    _stopping = False

    def _run(self) -> None:
        with httpx.stream("GET", self._url, timeout=None) as answer:
            for part in answer.iter_raw():
                self.nbytes += len(part)
                self._begun.set()
                if self._stopping:
                    return


def _read(readers: list[_Reader]) -> int:
    return sum(reader.nbytes for reader in readers)


def _quiet(readers: list[_Reader], seconds: float) -> None:
    """Wait until nothing was sent for a while; ``seconds`` at most."""
    until, pause = time.monotonic() + seconds, max(0.3, seconds / 6)
    while time.monotonic() < until:
        before = _read(readers)
        time.sleep(pause)
        if _read(readers) == before:
            return


def _report(served: Running, workers: Any, version: int) -> None:
    told = WorkerReport(version=version, digest="f" * 32, phases=_PHASES, nbytes=81_000_000)

    async def take() -> None:
        service = served.service
        feed = await service.feeds.open(RUN)
        for number in workers:
            service.workers.take(feed, _WHO, f"rollout-{number:04d}", told)

    asyncio.run_coroutine_threadsafe(take(), served.loop).result()
