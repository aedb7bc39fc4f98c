"""Time of what a member computes in a round, against a push of the same weights in the same turns.

Also in time of all cores, which other work on the machine disturbs less: of a push, then, all of it counts.

The weights are synthetic ones of a small policy; each trainer has moved them as eight inner steps of AdamW would, and
the push is of what one of them has moved. No store takes part in what is compared: of the push, only diff, coding and
hashing count.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import typer
from rich.console import Console

from benchmarks.outer.inner import Floats
from benchmarks.outer.methods import Levels
from benchmarks.push_pull import PUSH_CORE, core_seconds, warm_up
from benchmarks.results import OUT, Row, machine, versions
from benchmarks.show import finish
from benchmarks.synthetic import DEFAULT_CELLS, shapes
from benchmarks.timing import ratio
from pulse_kernels.protocol import OuterRates
from pulse_registry import PushOptions, open
from pulse_registry.format.contribution import Contribution
from pulse_registry.outer.exponents import chosen
from pulse_registry.outer.mean import GroupLevels, Part
from pulse_registry.process.cores import usable_cores
from pulse_registry.process.parallel import ParallelMap

TITLE = "Time of an outer round's computing, against a push of the same weights"
TRAINERS, LEARNING_RATE, STEPS = 4, 3e-6, 8
GAINS = (1.0, 7.0, 14.0)
"""The paper's rule, lr / (1 - momentum), and the default."""
LIMIT = 2.5
CODED = ("measure", "gate", "code")
"""What the limit is on: gate, levels, coding."""
Times = dict[str, list[float]]


def synthetic(cells: int, seed: int) -> tuple[list[tuple[str, tuple[int, ...]]], npt.NDArray[np.uint16]]:
    """Return the tensors of a small policy, and normal BF16 weights."""
    listed, rng = shapes(cells), np.random.default_rng(seed)
    parts = []
    for _, shape in listed:
        scale = np.float32(0.06 * np.exp(0.5 * rng.standard_normal()))
        parts.append(rng.standard_normal(int(np.prod(shape)), np.float32) * scale)
    return listed, (np.concatenate(parts).view(np.uint32) >> 16).astype(np.uint16)


def moved(theta: Floats, seed: int) -> Floats:
    """Return weights as a trainer's inner steps leave them: each step moves a cell by about the learning rate."""
    rng, size = np.random.default_rng(seed), np.float32(LEARNING_RATE * STEPS**0.5)
    found: Floats = rng.standard_normal(len(theta), np.float32)
    found *= size
    found += theta
    return found


def measure(cells: int, gain: float, repeats: int, seed: int, say: Callable[[str], None] = print) -> Times:
    """Make rounds, and pushes between them; return seconds by piece, one a repeat after one that is not told."""
    listed, start = synthetic(cells, seed)
    times: Times = {}
    with (
        tempfile.TemporaryDirectory(prefix="pulse-bench-") as folder,
        ThreadPoolExecutor(usable_cores()) as pool,  # as a session's
    ):
        method = Levels(listed, start, TRAINERS, OuterRates(0.7, 0.9), gain, each=ParallelMap(pool))
        warm_up(Path(folder) / "warm")
        options = PushOptions(coder="class", keyframe_share=1e9)
        with open(str(Path(folder) / "run"), run="bench", push=options) as registry:
            for repeat in range(repeats + 1):
                theta = method.weights()
                registry.push(2 * repeat, method.tensors(theta))
                local = moved(theta, seed + repeat + 1)
                began = time.process_time()
                result = registry.push(2 * repeat + 1, method.tensors(local))
                cores = {"push": time.process_time() - began}
                found = {"push": core_seconds(result, PUSH_CORE), **_round(method, local, gain, cores)}
                if repeat:
                    for name, taken in (found | {f"{name}, cores": taken for name, taken in cores.items()}).items():
                        times.setdefault(name, []).append(taken)
                say(f"turn {repeat}: " + ", ".join(f"{name} {1e3 * taken:.0f} ms" for name, taken in found.items()))
    return times


def _round(method: Levels, local: Floats, gain: float, cores: dict[str, float]) -> dict[str, float]:
    """Make a round of which all members send the same, and time one member's pieces of it, also in time of cores."""
    outer, times = method.outer, dict[str, float]()

    @contextmanager
    def timed(name: str) -> Any:
        began, worked = time.perf_counter(), time.process_time()
        yield
        times[name], cores[name] = time.perf_counter() - began, time.process_time() - worked

    masters = method.masters(local)
    with timed("collect"):
        outer.collect(masters)
    with timed("measure"):
        gate = outer.measured(gain)
        exponent = chosen(gate.count, gate.square, gain, method.middle)
    with timed("gate"):
        sent = outer.gated(gain, exponent, 1)
    with timed("digest"):
        base = outer.digest().hex()
    with timed("code"):
        coded = method.code(sent, exponent, base)
    with timed("settle"):
        outer.settle(sent)
    with timed("decode"):
        found = Contribution.parse(method.ref(coded), method.geometry, coded)

        def decoded(number: int) -> tuple[int, list[Part]]:
            group = method.geometry.groups[number]
            index, levels = found.decode(method.backend, group, [outer.version_cells(group)])
            return number, [GroupLevels(index, levels.view(np.int16), exponent, 1)] * TRAINERS

        parts = dict(outer.each(decoded, found.entries))
    with timed("step"):
        outer.step(parts, exponent, TRAINERS, OuterRates(0.7, 0.9))
    with timed("store"):
        outer.store(masters)
    return times


def rows(times: Times, gain: float) -> list[Row]:
    """Return the figures: medians, and ratios within a turn."""

    def coded(suffix: str) -> list[float]:
        return [sum(taken) for taken in zip(*(times[name + suffix] for name in CODED), strict=True)]

    what = f"gain {gain:g}"
    found = [
        Row(
            f"{gain:g}.ratio",
            f"{what}: gate, levels and coding, against a push's diff + code",
            ratio(coded(""), times["push"]),
            "x",
            "at most",
            LIMIT,
        ),
        Row(
            f"{gain:g}.ratio.cores",
            f"{what}: the same in time of cores, against a whole push's",
            ratio(coded(", cores"), times["push, cores"]),
            "x",
        ),
    ]
    return found + [
        Row(f"{gain:g}.{name}", f"{what}: {name}", statistics.median(taken), "s") for name, taken in times.items()
    ]


def run(
    cells: Annotated[int, typer.Option(help="Of the model; 18 bytes of memory each.", min=10_000)] = DEFAULT_CELLS,
    repeats: Annotated[int, typer.Option(help="Turns.", min=1)] = 5,
    seed: Annotated[int, typer.Option(help="Of the weights.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder of result files.")] = OUT,
) -> None:
    """Time a member's computing in a round against a push's; write a result file."""
    console = Console()
    times = {gain: measure(cells, gain, repeats, seed, console.print) for gain in GAINS}
    found = {
        "kind": "outer-speed",
        "title": TITLE,
        "machine": machine(),
        "versions": versions(),
        "settings": {"cells": cells, "repeats": repeats, "seed": seed, "trainers": TRAINERS},
        "rows": [row.document() for gain, one in times.items() for row in rows(one, gain)],
        "seconds": {f"{gain:g}": one for gain, one in times.items()},
    }
    finish(console, found, out / "outer" / "speed.json")
