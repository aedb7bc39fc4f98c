"""``python -m benchmarks pending``: a trainer that pushes faster than its store takes, and what is held meanwhile.

All cells change at each step, and no time passes between two steps: the worst there is. In one run beside each other:
pushes that wait, pushes that take the place of one that waits, and no bound on the pushes on their way.
"""

from __future__ import annotations

import gc
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console

from benchmarks.results import OUT, Row, machine, versions, write_result
from benchmarks.show import rows_table
from pulse_registry.options import Options
from pulse_registry.push.options import PushOptions, WhenFull
from pulse_registry.registry import Registry
from pulse_registry.results import PushResult
from pulse_registry.store import FileStore
from pulse_registry.testing import LatencyStore

TITLE = "Pushes on their way"
WAYS: dict[str, tuple[int, WhenFull]] = {"wait": (2, "wait"), "coalesce": (2, "coalesce"), "unbounded": (10**9, "wait")}
"""Pushes that may be on their way, and what one more does; what holds most comes last, as memory is not given back."""


@dataclass(frozen=True, slots=True)
class Held:
    """What one way came to.

    Attributes:
        pending: pushes on their way at once, at most.
        changes: bytes of the changes that those held at once, at most.
        grown: bytes by which the process grew while it pushed, at most.
        push_s: the median and the longest time that a push took the trainer.
        versions: that were committed.
    """

    pending: int
    changes: int
    grown: int
    push_s: tuple[float, float]
    versions: int


def push_all(way: str, nbytes: int, pushes: int, latency_s: float, seed: int, folder: Path) -> Held:
    """Push a model of so many bytes so many times to a folder, as fast as can be."""
    limit, when_full = WAYS[way]
    rng = np.random.default_rng(seed)
    model = {"w": rng.integers(0, 2**16, nbytes // 2, dtype=np.uint16)}
    store = LatencyStore(FileStore(folder / way), latency_s=latency_s)
    options = PushOptions(dtype="keep", keyframe_share=1e9, max_pending=limit, when_full=when_full)
    futures: list[Future[PushResult]] = []
    pending, changes, grown, seconds = 0, 0, 0, []
    with Registry(store, "bench", Options(push=options)) as registry:
        registry.warm_up()
        registry.push(0, model)
        registry.push(1, model)  # what is allocated once is no part of it
        gc.collect()
        before = _resident()
        for step in range(2, pushes + 2):
            model["w"] ^= rng.integers(1, 128, nbytes // 2, dtype=np.uint16)
            began = time.perf_counter()
            futures.append(registry.push(step, model, wait=False))
            seconds.append(time.perf_counter() - began)
            pending = max(pending, len(registry._runtime.publisher._queue))  # type: ignore[union-attr, arg-type]
            changes = max(changes, _changes(registry))
            grown = max(grown, _resident() - before)
        found = {future.result().version for future in futures}
    return Held(pending, changes, grown, (statistics.median(seconds), max(seconds)), len(found))


def _changes(registry: Registry) -> int:
    shadow = registry._runtime.publisher._baseline.shadow  # type: ignore[union-attr]
    return sum(change.nbytes for front in shadow._fronts for _, change in front.changes)  # type: ignore[union-attr]


def _resident() -> int:
    """Return the bytes of this process that are in memory (Linux; 0 elsewhere)."""
    path = Path("/proc/self/statm")
    return int(path.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if path.exists() else 0


def rows_of_ways(found: dict[str, Held]) -> list[Row]:
    """Return the figures of each way."""
    rows = []
    for way, held in found.items():
        limit, _ = WAYS[way]
        bound: dict[str, Any] = {} if way == "unbounded" else {"sense": "at most", "limit": float(limit)}
        rows += [
            Row(f"{way}.pending", f"{way}: pushes on their way at once", float(held.pending), "", **bound),
            Row(f"{way}.changes", f"{way}: changes that they held", held.changes / 2**20, "MiB"),
            Row(f"{way}.mib", f"{way}: memory that the process grew by", held.grown / 2**20, "MiB"),
            Row(f"{way}.median", f"{way}: a push takes the trainer, median", held.push_s[0], "s"),
            Row(f"{way}.longest", f"{way}: a push takes the trainer, longest", held.push_s[1], "s"),
            Row(f"{way}.versions", f"{way}: versions committed", float(held.versions), ""),
        ]
    return rows


def run(
    mib: Annotated[int, typer.Option(help="Size of the model.", min=1)] = 4,
    pushes: Annotated[int, typer.Option(help="Of each way.", min=1)] = 45,
    latency_s: Annotated[float, typer.Option(help="Of each request.", min=0.0)] = 0.3,
    seed: Annotated[int, typer.Option(help="Of the cells.")] = 0,
    out: Annotated[Path, typer.Option(help="The result file.")] = OUT / "store" / "pending.json",
) -> None:
    """Measure what pushes on their way hold, with a bound and without; write a result file."""
    console = Console()
    with tempfile.TemporaryDirectory() as folder:
        found = {way: push_all(way, mib << 20, pushes, latency_s, seed, Path(folder)) for way in WAYS}
    rows = rows_of_ways(found)
    console.print(rows_table(TITLE, rows))
    write_result(out, document(rows, mib, pushes, latency_s, seed))
    console.print(f"written to {out}")


def document(rows: Sequence[Row], mib: int, pushes: int, latency_s: float, seed: int) -> dict[str, Any]:
    """Return the result file."""
    return {
        "kind": "pending",
        "title": f"{TITLE}: {pushes} pushes of {mib} MiB, a store that takes {latency_s} s a request",
        "seed": seed,
        "machine": machine(),
        "versions": versions(),
        "settings": {"mib": mib, "pushes": pushes, "latency_s": latency_s},
        "rows": [row.document() for row in rows],
    }
