"""What an answer of the service costs as a run grows: processor time of its event loop and of all threads, and bytes.

The service's app is called below any socket, with a run whose state is made here: one keyframe, then a patch a version.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

from benchmarks.growth.curve import Curve
from pulse_registry.log import RunState
from tests.support.apps import app_of
from tests.support.records import RUN, chain
from tests.unit.server.calling import Call, calling

SIZES: Final = (100, 1_000, 10_000, 100_000)
QUICK: Final = (10, 100)
LOOP_MS: Final = 20.0
"""Processor time of the event loop for an answer, at most: as long it answers nobody else."""
ANSWER_KB: Final = 1_100.0
"""Of an answer's body, at most."""
_CALLS: Final = 5
Cost = tuple[float, float, float]
"""Milliseconds of the loop's thread and of all threads, and kB."""

ASKED: Final[dict[str, tuple[str, str]]] = {
    "run": ("GET run", ""),
    "latest": ("GET versions/latest", "/versions/latest"),
    "version": ("GET versions/N, half way", "/versions/{middle}"),
    "step": ("GET versions/step:N, half way", "/versions/step:{step}"),
    "versions": ("GET versions, 1,000 from half way", "/versions?after={middle}&limit=1000"),
    "keyframes": ("GET versions?kind=keyframe", "/versions?kind=keyframe"),
    "patches": ("GET versions?kind=patch", "/versions?kind=patch"),
    "steps": ("GET versions?min_step, the last one", "/versions?min_step={last}"),
    "chain": ("GET chain, the first page", "/chain"),
    "window": ("GET chain, 300 versions", "/chain?after={window}"),
    "route": ("GET route from nothing, as long as the run", "/route"),
    "near": ("GET route from 10 versions before", "/route?from={near}"),
    "workers": ("GET workers", "/workers"),
}
"""What is asked for, in words and as a path behind the run's."""


def curves(quick: bool) -> list[Curve]:
    """Return three curves for every request: what the loop works for it, and all threads, and the answer's bytes."""
    costs: dict[str, list[tuple[int, Cost]]] = {name: [] for name in ASKED}
    for versions in QUICK if quick else SIZES:
        for name, cost in measured(chain(versions).state):
            costs[name].append((versions, cost))
    found = []
    for name, (what, _) in ASKED.items():
        loop, work, nbytes = (tuple((size, cost[part]) for size, cost in costs[name]) for part in range(3))
        found += [
            Curve(f"http.loop.{name}", f"{what}: the event loop", "versions", "ms", loop, "last", LOOP_MS),
            Curve(f"http.work.{name}", f"{what}: all threads", "versions", "ms", work),
            Curve(f"http.bytes.{name}", f"{what}: the answer", "versions", "kB", nbytes, "last", ANSWER_KB),
        ]
    return found


def measured(state: RunState) -> Iterator[tuple[str, Cost]]:
    """Ask for everything of a run, and yield what it costs by name."""
    newest = len(state.versions) - 1
    places = {
        "middle": newest // 2,
        "step": 10 * (newest // 2),
        "last": 10 * newest,
        "window": max(-1, newest - 300),
        "near": max(0, newest - 10),
    }
    with calling(app_of(state)) as call:
        for name, (_, path) in ASKED.items():
            yield name, _asked(call, f"/v1/runs/{RUN}{path.format(**places)}")


def _asked(call: Call, path: str) -> Cost:
    """Return the least that this thread, which has the loop, and all of them, worked for an answer, and its bytes."""
    loop = work = nbytes = float("inf")
    for _ in range(_CALLS):
        began, all_began = time.thread_time(), time.process_time()
        answer = call("GET", path)
        loop, work = min(loop, time.thread_time() - began), min(work, time.process_time() - all_began)
        if answer.status != 200:
            raise RuntimeError(f"{path} answered {answer.status}: {answer.body[:200]!r}")
        nbytes = len(answer.body)
    return 1e3 * loop, 1e3 * work, nbytes / 1000
