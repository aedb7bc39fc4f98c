"""What is learnt in outer rounds, at equal inner steps: one trainer, DDP, DiLoCo, float32 values, levels; by seeds."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

from benchmarks.outer.learning import ALONE, DEFAULT_GAIN, METHODS, Plan, learn, learn_alone
from benchmarks.outer.methods import Sent
from benchmarks.outer.text import Prose, Size
from benchmarks.results import OUT, Row, machine, versions, write_result
from benchmarks.show import finish

TITLE = "Outer rounds: what is learnt at equal inner steps"
LIKE_VALUES, LIKE_DILOCO, WITHOUT_FEEDBACK = (0.99, 1.01), 0.93, 0.9


@dataclass(frozen=True, slots=True)
class Learnt:
    """One run.

    Attributes:
        regime, seed, method: which.
        losses: held out, by rounds that were made.
        density, bits, factor: of what a trainer sends, the mean of all trainers, by round: share of the cells, bits an
            entry, times less than dense float32.
    """

    regime: str
    seed: int
    method: str
    losses: dict[int, float]
    density: list[float]
    bits: list[float]
    factor: list[float]


EVERY = (*METHODS, *ALONE, "DDP")
LONG = ("DiLoCo", f"levels, gain {DEFAULT_GAIN:g}", "values, gain 1", "levels, gain 1")
"""The methods that are compared for twice as many rounds."""


@dataclass(frozen=True, slots=True)
class Regime:
    """A learning rate, and the methods that are compared at it."""

    lr: float
    methods: Sequence[str] = EVERY


REGIMES = {
    "sparse": Regime(2e-7, [*(method for method in METHODS if "feedback" not in method), "one trainer"]),
    "drift": Regime(1e-6),
}
"""One of few cells, as in reinforcement learning; and a stress test, where most of what a trainer moves is drift."""


def measure(plan: Plan, size: Size, name: str, regime: Regime, seed: int) -> list[Learnt]:
    """Train in one regime from one seed with all its methods, from the same weights and on the same batches."""
    torch.set_num_threads(1)
    task, found = Prose(seed, plan.trainers, size), []
    at = {plan.rounds * k // 4 for k in range(1, 5)}
    for method in regime.methods:
        sent = list[list[Sent]]()
        if method in METHODS:
            losses, sent = learn(plan, task, regime.lr, METHODS[method](plan, task), at)
        else:
            shards = 1 if method in ALONE else plan.trainers
            losses, _ = learn_alone(plan, task, regime.lr * ALONE.get(method, 1.0), at, shards=shards)
        density = [statistics.fmean(one.density for one in made) for made in sent]
        bits = [statistics.fmean(one.bits for one in made) for made in sent]
        factor = [statistics.fmean(one.factor for one in made) for made in sent]
        found.append(Learnt(name, seed, method, losses, density, bits, factor))
    return found


def rows(runs: Sequence[Learnt], default: float = DEFAULT_GAIN) -> list[Row]:
    """Return the figures: shares of DiLoCo's loss reduction, levels beside values, and what was sent."""
    found = []
    for regime in dict.fromkeys(run.regime for run in runs):
        of = _Regime([run for run in runs if run.regime == regime])
        for rounds in of.told:
            found += _learnt_rows(regime, of, rounds, default)
        found += _sent_rows(regime, of)
    return found


class _Regime:
    """The runs of one regime, by seed and method."""

    def __init__(self, runs: Sequence[Learnt]) -> None:
        self.runs = {(run.seed, run.method): run for run in runs}
        self.seeds = list(dict.fromkeys(run.seed for run in runs))
        self.methods = list(dict.fromkeys(run.method for run in runs))
        losses = runs[0].losses
        self.told = sorted({Plan().rounds, max(losses)} & losses.keys())  # longer runs tell the others' rounds, too

    def share(self, method: str, of: str, rounds: int) -> list[float]:
        """Of another method's loss reduction after some rounds, by seed."""
        return [self._reduction(seed, method, rounds) / self._reduction(seed, of, rounds) for seed in self.seeds]

    def _reduction(self, seed: int, method: str, rounds: int) -> float:
        losses = self.runs[seed, method].losses
        return losses[0] - losses[rounds]


def _learnt_rows(regime: str, of: _Regime, rounds: int, default: float) -> list[Row]:
    found, chosen = [], f"levels, gain {default:g}"
    for method in of.methods:
        share = of.share(method, "DiLoCo", rounds)
        what = f"{regime}, {rounds} rounds: {method}: loss reduction, of DiLoCo's"
        limit: dict[str, Any] = {"sense": "at least", "limit": LIKE_DILOCO} if method == chosen else {}
        found.append(Row(f"{regime}.{rounds}.{method}", what, statistics.fmean(share), "x", **limit))
    for gain in (gain for gain in ("gain 1", "gain 7") if f"values, {gain}" in of.methods):
        share = of.share(f"levels, {gain}", f"values, {gain}", rounds)
        what, (least, most) = f"{regime}, {rounds} rounds: levels at {gain}, of float32 values'", LIKE_VALUES
        key = f"{regime}.{rounds}.like values, {gain}"
        found += [
            Row(key, f"{what}: the least of the seeds", min(share), "x", "at least", least),
            Row(f"{key}, most", f"{what}: the most of the seeds", max(share), "x", "at most", most),
        ]
    if "levels, gain 1, no feedback" in of.methods:
        share = of.share("levels, gain 1, no feedback", "levels, gain 1", rounds)
        what = f"{regime}, {rounds} rounds: no error feedback, of the same with it, at gain 1: the best of the seeds"
        found.append(Row(f"{regime}.{rounds}.feedback", what, max(share), "x", "at most", WITHOUT_FEEDBACK))
    return found


def _sent_rows(regime: str, of: _Regime) -> list[Row]:
    found = []
    for method in (method for method in of.methods if method.startswith("levels") and "no feedback" not in method):
        runs = [of.runs[seed, method] for seed in of.seeds]
        density = statistics.fmean(value for run in runs for value in run.density[1:])
        bits = statistics.fmean(value for run in runs for value in run.bits[1:])
        factor = statistics.fmean(value for run in runs for value in run.factor[1:])
        found += [
            Row(f"{regime}.{method}.density", f"{regime}: {method}: cells sent, after round 1", 100 * density, "%"),
            Row(f"{regime}.{method}.bits", f"{regime}: {method}: bits an entry, after round 1", bits, "bits"),
            Row(f"{regime}.{method}.factor", f"{regime}: {method}: less than dense float32", factor, "x"),
        ]
    return found


def document(plan: Plan, size: Size, regimes: Mapping[str, Regime], runs: Sequence[Learnt]) -> dict[str, Any]:
    """Return the result document of runs."""
    listed = {name: asdict(one) for name, one in regimes.items()}
    return {
        "kind": "outer-quality",
        "title": f"{TITLE}, {plan.rounds} rounds",
        "machine": machine(),
        "versions": versions(),
        "settings": {**asdict(plan), "size": asdict(size), "regimes": listed},
        "seeds": list(dict.fromkeys(run.seed for run in runs)),
        "rows": [row.document() for row in rows(runs)],
        "runs": [asdict(run) for run in runs],
    }


def measured(
    plan: Plan, size: Size, regimes: Mapping[str, Regime], seeds: Sequence[int], processes: int
) -> Iterator[tuple[str, int, list[Learnt]]]:
    """Measure all regimes from all seeds, side by side; yield each as soon as those before it are there."""
    jobs = [(name, regime, seed) for name, regime in regimes.items() for seed in seeds]
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        made = [pool.submit(measure, plan, size, name, regime, seed) for name, regime, seed in jobs]
        for (name, _, seed), future in zip(jobs, made, strict=True):
            yield name, seed, future.result()


def run(
    seeds: Annotated[int, typer.Option(help="How many.", min=1)] = 3,
    rounds: Annotated[int, typer.Option(help="Outer rounds of a run.", min=1)] = Plan().rounds,
    long: Annotated[bool, typer.Option("--long", help="Few methods, for twice as many rounds.")] = False,
    processes: Annotated[int, typer.Option(help="Runs side by side, of one thread each.", min=1)] = 2,
    width: Annotated[int, typer.Option(help="Of the transformer: 24 for each head.", min=24)] = Size().width,
    layers: Annotated[int, typer.Option(help="Of the transformer.", min=1)] = Size().layers,
    out: Annotated[Path, typer.Option(help="Folder of result files.")] = OUT,
) -> None:
    """Compare what is learnt in outer rounds by several methods and seeds; write a result file."""
    size = Size(width=width, layers=layers, heads=width // 24)
    console, plan, path = Console(), Plan(rounds=rounds), out / "outer" / "quality.json"
    regimes, runs = REGIMES, list[Learnt]()
    if long:
        regimes = {name: Regime(regime.lr, LONG) for name, regime in REGIMES.items()}
        plan, path = Plan(rounds=2 * rounds), path.with_stem("quality-long")
    for name, seed, found in measured(plan, size, regimes, range(seeds), processes):
        console.print(f"{name}, seed {seed}")
        runs += found
        write_result(path, document(plan, size, regimes, runs))
    finish(console, document(plan, size, regimes, runs), path)
