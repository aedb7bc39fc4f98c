"""``python -m benchmarks profile``: where the processor time of a push and a pull goes, kernel by kernel.

Synthetic states are pushed and pulled through memory. Each method of the backend is timed on the clock of the thread
that calls it, less the methods that it calls; what the process takes beside them (Python, hashes, log, store) is what
remains. Processor time, so that other work on the machine disturbs it less than it does real time.
"""

from __future__ import annotations

import statistics
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.results import OUT, machine, versions, write_result
from benchmarks.states import Live, States, visits
from benchmarks.synthetic import DEFAULT_CELLS, synthetic_states
from pulse_kernels.cpu.backend import NumbaBackend
from pulse_kernels.protocol import Backend
from pulse_registry import PushOptions, Registry, open
from pulse_registry.format.patch_coding import CoderChoice

TITLE = "Processor time of a push and a pull, by kernel"
CODERS: tuple[CoderChoice, ...] = ("gap", "class")
REST = "everything else"
STEPS, WARM = 4, 2
"""States after the first, between which all go back and forth, and the pushes and pulls that are not told."""
Seconds = dict[str, float]


class Stopwatch:
    """Adds up what each method of the CPU's backend takes, in all threads; what it calls of them is theirs alone."""

    def __init__(self) -> None:
        """Measure nothing yet."""
        self.taken: Counter[str] = Counter()
        self._lock, self._local = threading.Lock(), threading.local()

    @contextmanager
    def over(self, backend: type[Any]) -> Iterator[None]:
        """Time the methods of a class that are a backend's, for as long as this lasts."""
        names = [name for name in vars(Backend) if not name.startswith("_") and name in vars(backend)]
        plain = {name: getattr(backend, name) for name in names if callable(getattr(backend, name))}
        try:
            for name, method in plain.items():
                setattr(backend, name, self._timed(name, method))
            yield
        finally:
            for name, method in plain.items():
                setattr(backend, name, method)

    def _timed(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def timed(*args: Any, **kwargs: Any) -> Any:
            inner, self._local.inner = getattr(self._local, "inner", 0.0), 0.0
            began = time.thread_time()
            try:
                return method(*args, **kwargs)
            finally:
                taken = time.thread_time() - began
                with self._lock:
                    self.taken[name] += taken - self._local.inner
                self._local.inner = inner + taken

        return timed

    def measured(self, work: Callable[[], Any]) -> Seconds:
        """Return what one piece of work takes, by method, and what remains of the process' time."""
        self.taken.clear()
        began = time.process_time()
        work()
        total = time.process_time() - began
        found = {name: taken for name, taken in self.taken.items() if taken > 0}
        return found | {REST: total - sum(found.values())}


def profile(cells: int, repeats: int, seed: int, say: Callable[[str], None] = print) -> dict[str, Any]:
    """Push and pull synthetic states with each coder; return the medians of each part."""
    say(f"making synthetic states: {cells:,} cells, seed {seed}")
    states, parts = synthetic_states(cells, STEPS, seed), []
    for coder in CODERS:
        parts += _parts(coder, states, repeats)
        say(f"{coder} is measured")
    return {
        "kind": "profile",
        "title": TITLE,
        "machine": machine(),
        "versions": versions(),
        "settings": {"cells": cells, "repeats": repeats, "seed": seed, "changed": states.changed(0)},
        "parts": parts,
    }


def _parts(coder: CoderChoice, states: States, repeats: int) -> list[dict[str, Any]]:
    """Push and pull with one coder; the first ones, which load code and make what later ones keep, are not told."""
    trainer, into, watch = Live(states), Live(states), Stopwatch()
    model, live, url = trainer.model(), into.model(), f"memory://profile-{uuid.uuid4().hex}"
    found: dict[str, list[Seconds]] = {"push": [], "pull": []}
    changed = []
    with (
        open(url, run="profile", push=PushOptions(coder=coder, keyframe_share=1e9)) as pushes,
        open(url, run="profile") as pulls,
        watch.over(NumbaBackend),
    ):
        pushes.push(0, model)
        for number, state in enumerate(visits(STEPS, repeats + WARM)):
            trainer.go(state)
            push = watch.measured(partial(_push, pushes, number + 1, model, changed))
            pull = watch.measured(partial(pulls.pull, "latest", into=live))
            if number >= WARM:
                found["push"].append(push)
                found["pull"].append(pull)
    mean = statistics.mean(changed[WARM:])
    medians = {
        (call, name): statistics.median(taken.get(name, 0.0) for taken in times)
        for call, times in found.items()
        for name in dict.fromkeys(name for taken in times for name in taken)
    }
    return [
        {"coder": coder, "call": call, "part": name, "ms": round(1e3 * taken, 2), "ns": round(1e9 * taken / mean, 2)}
        for (call, name), taken in medians.items()
    ]


def _push(registry: Registry, step: int, model: dict[str, Any], changed: list[int]) -> None:
    changed.append(registry.push(step, model).changed)


def run(
    cells: Annotated[int, typer.Option(help="Size of synthetic states.", min=10_000)] = DEFAULT_CELLS,
    repeats: Annotated[int, typer.Option(help="Pushes and pulls of each coder.", min=1)] = 12,
    seed: Annotated[int, typer.Option(help="Of synthetic states.")] = 0,
    out: Annotated[Path, typer.Option(help="The result file.")] = OUT / "profile.json",
) -> None:
    """Measure the processor time of pushes and pulls, kernel by kernel; write a result file."""
    console = Console()
    document = profile(cells, repeats, seed, lambda what: console.print(f"... {what}"))
    table = Table(title=TITLE)
    for name in ("coder", "call", "part", "ms", "ns a changed cell"):
        table.add_column(name)
    for part in document["parts"]:
        table.add_row(part["coder"], part["call"], part["part"], f"{part['ms']:.1f}", f"{part['ns']:.1f}")
    console.print(table)
    write_result(out, document)
    console.print(f"written to {out}")
