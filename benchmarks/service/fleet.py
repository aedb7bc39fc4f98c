"""A fleet on one service: 200 runs, 1,000 workers that wait and report, 20 trainers that push past the service.

How long GETs of the latest version take meanwhile, how old news is when streams of all runs tell it, and what memory
the service takes: some streams are never read.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks.results import Row
from benchmarks.service.process import Service, service
from benchmarks.service.steady import Steady
from benchmarks.service.suite import Say, document
from pulse_registry.store import open_store
from tests.support.apps import fill, run_of

_LAST_S = 5.0
"""Versions that are made so late in a measurement may be told after it."""
_ENDS_S = 120


@dataclass(frozen=True, slots=True)
class Size:
    """How large the fleet is.

    Attributes:
        runs: of the root.
        workers: spread over all runs; each waits for versions, and reports.
        trainers: runs into which somebody pushes.
        push_every_s: from one push of a trainer to the next.
        streams: of all runs, that are read.
        stalled: streams of all runs that are not read.
        pace: GETs of the latest version a second, of a run that is pushed into.
        seconds: of the measurement.
        settle_s: from the moment when all of it is at work to the measurement.
    """

    runs: int = 200
    workers: int = 1_000
    trainers: int = 20
    push_every_s: float = 1.0
    streams: int = 4
    stalled: int = 4
    pace: float = 100.0
    seconds: float = 60.0
    settle_s: float = 5.0


def run_fleet(root: str, folder: Path, size: Size, settings: Mapping[str, str], say: Say = print) -> dict[str, Any]:
    """Measure over an empty registry, and return the result document; see `run_suite`."""
    runs = [f"run-{number:04d}" for number in range(size.runs)]
    pushed = runs[: size.trainers]
    say(f"{size.runs} runs")
    store = open_store(root)
    for run in runs[size.trainers :]:
        fill(store, run_of(3, run))
    with service(root, folder, settings=settings) as served, ExitStack() as stack:
        at = {"url": served.url, "token": served.token}
        trainers = stack.enter_context(_Work("trainers", root=root, runs=pushed, every_s=size.push_every_s))
        say(f"{size.workers} workers")
        crew = stack.enter_context(_Work("crew", **at, runs=runs, workers=size.workers))
        say(f"{size.streams} streams, and {size.stalled} that nobody reads")
        streams = stack.enter_context(_Work("streams", **at, readers=size.streams, stalled=size.stalled))
        time.sleep(size.settle_s)
        say(f"{size.seconds:g} s")
        began, cpu_s = time.time(), served.cpu_seconds
        with _memory(served) as rss:
            latest = _latest(served, pushed[0], size)
        ended, cpu_s = time.time(), served.cpu_seconds - cpu_s
        told, made, worked = streams.end(), trainers.end(), crew.end()
    pushes = sum(began <= _born(version) < ended for version in made["made"])
    news, untold = news_s(made["made"], [one["versions"] for one in told["streams"]], began, ended)
    details = {
        "latest": {"count": len(latest.milliseconds), "failed": latest.failed}
        | {f"p{p}_ms": round(latest.at(p / 100), 1) for p in (1, 50, 90, 99, 100)},
        "news": {f"p{p}_s": round(_at(news, p / 100), 3) for p in (1, 50, 90, 99, 100)}
        | {"told": len(news) - untold, "untold": untold},
        "pushes": {"made": pushes, "failed": made["failed"][:10]},
        "crew": worked,
        "stream_kb_per_s": [round(one["nbytes"] / (ended - began) / 1e3, 2) for one in told["streams"]],
        "cores": round(cpu_s / (ended - began), 2),
        "rss_mib": [round(one, 1) for one in rss],
    }
    failures = latest.failed + worked["failed"] + len(made["failed"]) + sum(one["failed"] for one in told["streams"])
    return document("A fleet on one service", rows(size, details, latest, news, failures), details, size)


def rows(size: Size, details: dict[str, Any], latest: Steady, news: list[float], failures: int) -> list[Row]:
    """Lay the figures beside their limits."""
    rss: list[float] = details["rss_mib"]
    half = rss[len(rss) // 2 :]
    of = f"{size.runs} runs, {size.workers:,} workers"
    return [
        Row("latest_p50", f"GET latest: {of}: p50", latest.at(0.5), "ms"),
        Row("latest_p99", f"GET latest: {of}: p99", latest.at(0.99), "ms", "at most", 60),
        Row("news_p50", "from a version to its line in a stream of all runs: p50", _at(news, 0.5), "s"),
        Row(
            "news_p99", "from a version to its line in a stream of all runs: p99", _at(news, 0.99), "s", "at most", 1.5
        ),
        Row("stream", "bytes of a stream", max(details["stream_kb_per_s"]), "kB/s", "at most", 40),
        Row("reports", "reports of workers", details["crew"]["reports"] / details["crew"]["seconds"], "1/s"),
        Row("pushes", "pushes", details["pushes"]["made"] / size.seconds, "1/s"),
        Row("failures", "errors of all of them", failures, "", "at most", 0),
        Row("cores", "processor time of the service", details["cores"], "cores"),
        Row("rss", "resident memory, most", max(rss), "MiB", "at most", 512),
        Row(
            "rss_growth",
            "resident memory, growth over the second half",
            100 * (half[-1] / half[0] - 1),
            "%",
            "at most",
            5,
        ),
    ]


def news_s(
    made: list[tuple[str, int, str]], told: list[list[tuple[str, int, float]]], began: float, ended: float
) -> tuple[list[float], int]:
    """Return how old each version that was made in a stretch was when each stream told of it or of a later one, sorted.

    One that was not told at all was as old as the stretch is long; how many there are, is returned, too.
    """
    found: list[float] = []
    untold = 0
    for stream in told:
        of: dict[str, list[tuple[int, float]]] = defaultdict(list)
        for run, version, at in stream:
            of[run].append((version, at))
        for one in made:
            run, version, _ = one
            born = _born(one)
            if began <= born < ended - _LAST_S:
                place = bisect_left(of[run], (version, 0.0))
                untold += place == len(of[run])
                found.append(of[run][place][1] - born if place < len(of[run]) else ended - began)
    return sorted(found), untold


def _born(version: tuple[str, int, str]) -> float:
    return datetime.fromisoformat(version[2]).timestamp()


def _at(values: list[float], share: float) -> float:
    return values[min(len(values) - 1, int(share * len(values)))] if values else float("inf")


class _Work:
    """One process of `fleet_load`, which is at work in the block."""

    def __init__(self, what: str, **how: Any) -> None:
        command = [sys.executable, "-m", "benchmarks.service.fleet_load", what, json.dumps(how)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> _Work:
        if self._process.stdout is None or self._process.stdout.readline() != "ready\n":
            self.__exit__()
            raise RuntimeError("a process of the load did not begin")
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.communicate()

    def end(self) -> dict[str, Any]:
        """End it, and return what it saw."""
        found: dict[str, Any] = json.loads(self._process.communicate(timeout=_ENDS_S)[0])
        return found


def _latest(served: Service, run: str, size: Size) -> Steady:
    url = f"{served.url}/v1/runs/{run}/versions/latest"
    command = [sys.executable, "-m", "benchmarks.service.steady", url, served.token, str(size.pace)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as steady:
        time.sleep(size.seconds)
        found = json.loads(steady.communicate(timeout=_ENDS_S)[0])
    return Steady(tuple(found["milliseconds"]), found["failed"])


@contextmanager
def _memory(served: Service) -> Iterator[list[float]]:
    """Look at the service's memory each second, in the block, and at both its ends; in MiB."""
    found = [served.rss_bytes / 2**20]
    done = threading.Event()

    def look() -> None:
        while not done.wait(1.0):
            found.append(served.rss_bytes / 2**20)

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield found
    finally:
        done.set()
        looking.join()
        found.append(served.rss_bytes / 2**20)
