"""All load on one service, one worker process, with the load beside it on the same cores."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np

import pulse_registry
from benchmarks.results import Row, machine, versions
from benchmarks.service.process import Service, service
from benchmarks.service.waiters import wake
from benchmarks.service.wrk import get

RUN = "load"
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Size:
    """How much load: connections, seconds of each GET load, parked waiters, pushes that wake them, versions before."""

    connections: int = 32
    seconds: int = 15
    waiters: int = 4000
    rounds: int = 3
    versions: int = 64


def run_suite(root: str, folder: Path, size: Size, settings: Mapping[str, str], say: Say = print) -> dict[str, Any]:
    """Measure, and return the result document.

    Args:
        root: an empty registry that can presign: an S3 URL.
        folder: for the token file and the service's log.
        size: of the load.
        settings: of the service: its environment.
        say: told what is being measured.
    """
    details: dict[str, Any] = {}
    newest = size.versions - 1
    with pulse_registry.open(root, run=RUN, compute=pulse_registry.ComputeOptions(backend="reference")) as registry:
        push = _pusher(registry)
        for _ in range(size.versions):
            push()
        with service(root, folder, settings=settings) as served:
            base = f"{served.url}/v1/runs/{RUN}"
            for name, path in (
                ("latest", "versions/latest"),
                ("route", f"route?from={newest - 1}&to={newest}"),
            ):
                say(f"GET {path}")
                get(f"{base}/{path}", served.token, connections=size.connections, seconds=1)  # warm
                before = served.cpu_seconds
                load = get(f"{base}/{path}", served.token, connections=size.connections, seconds=size.seconds)
                details[name] = asdict(load) | {"cpu_seconds": round(served.cpu_seconds - before, 2)}
            say(f"{size.waiters} waiters")
            details["wake"] = [
                asdict(
                    wake(f"{base}/versions/latest", served.token, size.waiters, number, push, lambda: parked(served))
                )
                for number in range(newest, newest + size.rounds)
            ]
            details["rss_mib"] = round(served.rss_bytes / 2**20, 1)
    return document("The service under load", rows(details), details, size)


def parked(served: Service) -> int:
    """Return how many requests wait in the service for something new."""
    text = httpx.get(f"{served.url}/metrics", headers={"Authorization": f"Bearer {served.token}"}, timeout=30).text
    found = re.search(r"^pulse_waiters(?:\{[^}]*\})? ([0-9.e+]+)$", text, re.MULTILINE)
    return int(float(found.group(1))) if found else 0


def rows(details: dict[str, Any]) -> list[Row]:
    """Lay the figures beside their limits."""
    out = []
    for name, what, least in (("latest", "GET latest", 2000), ("route", "presigned routes", 1500)):
        found = details[name]
        failed = found["not_2xx"] + found["broken"]
        out.append(Row(name, what, found["requests"] / found["seconds"], "req/s", "at least", least))
        out.append(Row(f"{name}_p99", f"{what}: p99", found["p99_ms"], "ms", *_limit(name)))
        out.append(Row(f"{name}_failed", f"{what}: errors", failed, "", "at most", 0))
    times = [sorted(round_["milliseconds"]) for round_ in details["wake"]]
    worst = max(found[min(len(found) - 1, int(0.99 * len(found)))] if found else float("inf") for found in times)
    count = max(len(found) + round_["lost"] for found, round_ in zip(times, details["wake"], strict=True))
    out.append(
        Row("wake_p99", f"{count} waiters woken by one push: p99, worst round", worst / 1e3, "s", "at most", 1.5)
    )
    lost = sum(round_["lost"] for round_ in details["wake"])
    out.append(Row("wake_lost", f"{count} waiters: lost", lost, "", "at most", 0))
    for round_ in details["wake"]:  # thousands of figures a round: the result file keeps the percentiles
        found = round_.pop("milliseconds")
        if found:
            round_ |= {f"p{p}_ms": round(found[min(len(found) - 1, p * len(found) // 100)], 1) for p in (1, 50, 90, 99)}
            round_["max_ms"] = round(found[-1], 1)
    return out


def document(title: str, found: list[Row], details: dict[str, Any], size: Any) -> dict[str, Any]:
    """Return a result document: where it ran, what was asked for, what came out."""
    return {
        "kind": "service",
        "title": title,
        "machine": machine(),
        "versions": versions() | _versions(),
        "size": asdict(size),
        "rows": [row.document() for row in found],
        **details,
    }


def _versions() -> dict[str, str]:
    import importlib.metadata as metadata

    return {
        name: metadata.version(name) for name in ("fastapi", "uvicorn", "starlette", "uvloop", "httptools", "boto3")
    }


def _limit(name: str) -> tuple[Any, ...]:
    return ("at most", 60) if name == "latest" else ()


def _pusher(registry: pulse_registry.Registry) -> Callable[[], None]:
    weights = {"w": np.zeros((64, 64), np.uint16)}
    steps = iter(range(10**9))

    def push() -> None:
        step = next(steps)
        weights["w"][step % 64, :3] += np.uint16(1 + step)
        registry.push(step, weights)

    return push
