"""``python -m benchmarks.node_cache``: the workers of one host, with a cache that they share and without one.

The workers are processes; between them and a local SeaweedFS lies one link, as a host has (see ``link``). A policy is
pulled by all of them at once, from nothing and then a step at a time. The time runs from the word to go until the last
worker's weights have changed; the bytes are those of the objects, as the store gives them out.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Annotated, Any

import typer
from rich.console import Console

from benchmarks.link import Link, over
from benchmarks.results import OUT, Row, machine, versions, write_result
from benchmarks.show import rows_table
from benchmarks.states import Live, States
from benchmarks.synthetic import synthetic_states
from pulse_registry.cache import CacheFolder
from pulse_registry.options import Options
from pulse_registry.push.options import PushOptions
from pulse_registry.registry import Registry
from pulse_registry.store import MOST_WHOLE_BYTES, Buffer, ByteRange, Store, WrapperStore, open_store
from pulse_registry.weights.arrays import Weights
from pulse_registry.weights.cell_space import Geometry
from pulse_registry.weights.tensors import new_tensors
from tests.support import servers
from tests.support.servers import S3Bucket, S3Server

TITLE = "Workers of one host"
LINK = Link("200 Mbit/s, 50 ms", 200, 25.0)
"""Of the host; 50 ms for a round trip."""
RUN = "bench"
PULLS = ("from nothing", "one step")
app = typer.Typer(add_completion=False)


@dataclass(frozen=True, slots=True)
class Ends:
    """Our ends of a worker's pipes."""

    lines: IO[str]
    answers: IO[str]

    def go(self) -> None:
        """Let it pull."""
        self.lines.write("go\n")
        self.lines.flush()

    def answer(self) -> str:
        """Wait for a line of its."""
        line = self.answers.readline()
        if not line:
            raise RuntimeError("a worker has died")
        return line


class Counted(WrapperStore):
    """Counts the bytes of objects that a store gives out; they are no files of this host."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._lock = threading.Lock()
        self.nbytes = 0

    def get(self, key: str, byte_range: ByteRange | None = None, *, max_bytes: int = MOST_WHOLE_BYTES) -> bytes:
        data = super().get(key, byte_range, max_bytes=max_bytes)
        self._count(key, len(data))
        return data

    def get_into(self, key: str, byte_range: ByteRange, buffer: Buffer) -> None:
        self._store.get_into(key, byte_range, buffer)
        self._count(key, byte_range[1] - byte_range[0])

    def _count(self, key: str, nbytes: int) -> None:
        with self._lock:
            self.nbytes += nbytes if "/objects/" in key else 0


def work(url: str, cache: str, lines: IO[str], answers: IO[str]) -> None:
    """Pull at each line that comes in, and answer with the digest and the bytes fetched; a dash says: ready."""
    store = Counted(open_store(url))
    with Registry(store, RUN, Options(cache=CacheFolder(Path(cache)) if cache else None)) as registry:
        registry.warm_up()
        into = new_tensors(Weights.empty(Geometry(registry.layout())), "numpy")
        print("-", file=answers, flush=True)
        for _ in lines:
            before = store.nbytes
            result = registry.pull(into=into)
            print(json.dumps([result.digest, store.nbytes - before]), file=answers, flush=True)


@contextmanager
def crowd(url: str, cache: Path | None, count: int) -> Iterator[list[Ends]]:
    """Run workers, ready to pull."""
    command = [sys.executable, "-m", "benchmarks.node_cache", "worker", url, str(cache or "")]
    with ExitStack() as stack:
        workers = []
        for _ in range(count):
            worker = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1]
            )
            stack.enter_context(worker)
            if worker.stdin is None or worker.stdout is None:
                raise RuntimeError("a worker has no pipes")
            workers.append(Ends(stack.enter_context(worker.stdin), worker.stdout))
        for ends in workers:
            ends.answer()
        yield workers


def pull_all(workers: Sequence[Ends], digest: str) -> tuple[float, int]:
    """Let all workers pull; return the seconds until the last one is done, and the bytes that the store gave out.

    Raises:
        RuntimeError: a worker's weights are not the newest version.
    """
    began = time.perf_counter()
    for ends in workers:
        ends.go()
    found = [json.loads(ends.answer()) for ends in workers]
    seconds = time.perf_counter() - began
    if {told for told, _ in found} != {digest}:
        raise RuntimeError("a worker does not hold the newest version")
    return seconds, sum(nbytes for _, nbytes in found)


def measure(
    url_of: Callable[[str], str], states: States, counts: Sequence[int], folder: Path, repeats: int
) -> list[Row]:
    """Measure crowds of so many workers, in turn without and with a cache.

    Args:
        url_of: a new root by its name.
        states: what the trainer pushes.
        counts: of workers.
        folder: for the caches.
        repeats: of each; the least time counts, as other work on the machine only adds to it.
    """
    found: dict[tuple[str, int, bool], list[tuple[float, int]]] = {}
    for turn in range(repeats):
        for count in counts:
            for cached in (False, True):
                name = f"{uuid.uuid4().hex[:8]}-{turn}"
                for pull, taken in _turn(url_of(name), states, count, folder / name if cached else None).items():
                    found.setdefault((pull, count, cached), []).append(taken)
    return [row for count in counts for pull in PULLS for row in _rows(pull, count, found)]


def _turn(url: str, states: States, count: int, cache: Path | None) -> dict[str, tuple[float, int]]:
    """Push a state, pull it with workers that hold nothing, and go on a step at a time."""
    live, steps = Live(states), []
    options = PushOptions(dtype="keep", keyframe_share=1e9)
    with Registry(open_store(url), RUN, Options(push=options)) as trainer:
        pushed = trainer.push(0, live.model())
        with crowd(url, cache, count) as workers:
            first = pull_all(workers, pushed.digest)
            for step in range(1, len(states.steps) + 1):
                live.go(step)
                pushed = trainer.push(step, live.model())
                steps.append(pull_all(workers, pushed.digest))
    return {PULLS[0]: first, PULLS[1]: (min(s for s, _ in steps), round(statistics.mean(b for _, b in steps)))}


def _rows(pull: str, count: int, found: dict[tuple[str, int, bool], list[tuple[float, int]]]) -> list[Row]:
    who = f"{count} workers" if count > 1 else "1 worker"
    rows, least = [], {}
    for cached in (False, True):
        taken = found[pull, count, cached]
        least[cached] = min(seconds for seconds, _ in taken), max(nbytes for _, nbytes in taken)
        how = "with a cache" if cached else "without"
        key = f"{pull}.{count}.{'cache' if cached else 'none'}"
        rows.append(Row(f"{key}.s", f"{who}, {pull}, {how}", least[cached][0], "s"))
        rows.append(Row(f"{key}.mb", f"{who}, {pull}, {how}: from the store", least[cached][1] / 1e6, "MB"))
    ratio = least[True][0] / least[False][0]
    rows.append(Row(f"{pull}.{count}.ratio", f"{who}, {pull}: with a cache, of the time without", ratio, "x"))
    copies = least[True][1] * count / least[False][1]
    what = f"{who}, {pull}: copies that the store gives out with a cache"
    return [*rows, Row(f"{pull}.{count}.copies", what, copies, "x", "at most", 1.0)]


@app.command()
def worker(url: str, cache: str) -> None:
    """Be a worker, for the benchmark."""
    work(url, cache, sys.stdin, sys.stdout)


@app.command()
def run(
    cells: Annotated[int, typer.Option(help="Size of the synthetic policy.", min=10_000)] = 16_000_000,
    steps: Annotated[int, typer.Option(help="Of the trainer.", min=1)] = 2,
    workers: Annotated[list[int] | None, typer.Option(help="Of the host; default: 1 and 8.", min=1)] = None,
    repeats: Annotated[int, typer.Option(help="Of each measurement.", min=1)] = 2,
    seed: Annotated[int, typer.Option(help="Of the policy.")] = 0,
    out: Annotated[Path, typer.Option(help="The result file.")] = OUT / "store" / "node-cache.json",
) -> None:
    """Measure pulls of one host's workers through one link, with and without a cache; write a result file."""
    console, counts = Console(), workers or [1, 8]
    states = synthetic_states(cells, steps, seed)
    with ExitStack() as stack:
        server = stack.enter_context(servers.seaweedfs())
        os.environ.update(server.environment)
        bucket, endpoint = server.new_bucket(), stack.enter_context(over(server.endpoint, LINK))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        through = S3Bucket(S3Server(server.name, endpoint), bucket.name)
        rows = measure(through.url, states, counts, folder, repeats)
    console.print(rows_table(TITLE, rows))
    write_result(out, document(rows, states, counts, repeats))
    console.print(f"written to {out}")


def document(rows: Sequence[Row], states: States, counts: Sequence[int], repeats: int) -> dict[str, Any]:
    """Return the result file."""
    settings = {
        "link": LINK.name,
        "cells": states.cells,
        "steps": len(states.steps),
        "workers": list(counts),
        "repeats": repeats,
    }
    return {
        "kind": "node-cache",
        "title": TITLE,
        "seed": states.seed,
        "machine": machine(),
        "versions": versions(),
        "settings": settings,
        "rows": [row.document() for row in rows],
    }


if __name__ == "__main__":
    app()
