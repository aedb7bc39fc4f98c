"""A soak: half the load for a long time, while versions are pushed; memory and descriptors must not grow."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pulse_registry
from benchmarks.results import Row
from benchmarks.service.process import service
from benchmarks.service.suite import RUN, Say, _pusher, document
from benchmarks.service.wrk import get


@dataclass(frozen=True, slots=True)
class Soak:
    """How long, and how much: 32 connections that pause so long after each answer make about half the full load."""

    minutes: float = 30.0
    connections: int = 32
    pause_ms: int = 30
    push_every_s: float = 5.0
    sample_every_s: float = 5.0
    warm_minutes: float = 3.0


def run_soak(root: str, folder: Path, soak: Soak, settings: Mapping[str, str], say: Say = print) -> dict[str, Any]:
    """Run the load and return the result document; the first minutes, in which caches fill, do not count."""
    samples: list[tuple[float, int, int]] = []
    done = threading.Event()
    with pulse_registry.open(root, run=RUN, compute=pulse_registry.ComputeOptions(backend="reference")) as registry:
        push = _pusher(registry)
        push()
        with service(root, folder, settings=settings) as served:
            began = time.monotonic()

            def sample() -> None:
                while not done.wait(soak.sample_every_s):
                    samples.append((time.monotonic() - began, served.rss_bytes, served.descriptors))

            def train() -> None:
                while not done.wait(soak.push_every_s):
                    push()

            helpers = [threading.Thread(target=sample), threading.Thread(target=train)]
            for helper in helpers:
                helper.start()
            say(f"half load for {soak.minutes:g} minutes")
            try:
                load = get(
                    f"{served.url}/v1/runs/{RUN}/versions/latest",
                    served.token,
                    connections=soak.connections,
                    seconds=max(1, int(60 * soak.minutes)),
                    pause_ms=soak.pause_ms,
                )
            finally:
                done.set()
                for helper in helpers:
                    helper.join()
    return document("The service, a soak at half load", rows(samples, load, soak), _details(samples, load), soak)


def rows(samples: list[tuple[float, int, int]], load: Any, soak: Soak) -> list[Row]:
    """Compare the first and the last fifth of the samples that count."""
    counted = [s for s in samples if s[0] > 60 * min(soak.warm_minutes, soak.minutes / 3)] or samples
    fifth = max(1, len(counted) // 5)
    first, last = counted[:fifth], counted[-fifth:]
    growth = statistics.median(s[1] for s in last) / statistics.median(s[1] for s in first) - 1
    descriptors = statistics.median(s[2] for s in last) - statistics.median(s[2] for s in first)
    return [
        Row("rss_growth", f"growth of resident memory over {soak.minutes:g} minutes", 100 * growth, "%", "at most", 5),
        Row("descriptors", "growth of open file descriptors", descriptors, "", "at most", 2),
        Row("load", "GET latest", load.per_second, "req/s"),
        Row("p99", "GET latest: p99", load.p99_ms, "ms"),
        Row("failed", "errors", load.not_2xx + load.broken, "", "at most", 0),
    ]


def _details(samples: list[tuple[float, int, int]], load: Any) -> dict[str, Any]:
    every = max(1, len(samples) // 60)
    return {
        "load": asdict(load),
        "samples": [{"s": round(t), "rss_mib": round(rss / 2**20, 2), "fds": fds} for t, rss, fds in samples[::every]],
    }
