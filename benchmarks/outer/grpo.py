"""What GRPO learns in outer rounds, at equal inner steps: one trainer, DiLoCo, levels; held-out rewards, by seeds.

Sampling, rewards, advantages and the clipped loss are real; the policy is small, and what it sorts are a few digits.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

from benchmarks.outer.learning import ALONE, DEFAULT_GAIN, METHODS, Plan, learn, learn_alone
from benchmarks.outer.sorting import Recipe, Sorting
from benchmarks.results import OUT, Row, machine, versions, write_result
from benchmarks.show import finish

TITLE = "Outer rounds: GRPO at equal inner steps"
COMPARED = (
    "DiLoCo",
    f"levels, gain {DEFAULT_GAIN:g}",
    "levels, gain 1",
    "values, gain 1",
    "levels, gain 1, no feedback",
    *ALONE,
)
TOLD = 2
"""Rounds from one held-out reward to the next."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Of all runs of a comparison; ``lr`` is of the inner optimizers."""

    plan: Plan = field(default_factory=lambda: Plan(rounds=40))
    recipe: Recipe = field(default_factory=Recipe)
    lr: float = 1e-6


@dataclass(frozen=True, slots=True)
class Learnt:
    """One run.

    Attributes:
        seed, method: which.
        rewards: held out, by rounds that were made.
        spread: share of the sampled groups whose rewards differ.
        changed: of one trainer, the share of the cells whose BF16 value an inner step changes, the mean of all steps.
        density, nbytes: of what a trainer sends, the mean of all trainers, by round.
        seconds: that it took, on a machine that does other work, too.
    """

    seed: int
    method: str
    rewards: dict[int, float]
    spread: float
    changed: float | None
    density: list[float]
    nbytes: list[float]
    seconds: float

    @property
    def rise(self) -> float:
        """By how much the reward is higher after the last round."""
        return self.rewards[max(self.rewards)] - self.rewards[0]


def measure(settings: Settings, task: Sorting, seed: int, method: str) -> Learnt:
    """Train by one method, from the weights that the task begins with."""
    plan, began = settings.plan, time.perf_counter()
    at, changed, sent = range(0, plan.rounds + 1, TOLD), None, []
    task.spread.clear()
    if method in ALONE:
        rewards, steps = learn_alone(plan, task, settings.lr * ALONE[method], at, shards=1)
        changed = fmean(steps)
    else:
        rewards, sent = learn(plan, task, settings.lr, METHODS[method](plan, task), at)
    return Learnt(
        seed=seed,
        method=method,
        rewards=rewards,
        spread=fmean(task.spread),
        changed=changed,
        density=[fmean(one.density for one in made) for made in sent],
        nbytes=[fmean(one.nbytes for one in made) for made in sent],
        seconds=round(time.perf_counter() - began, 1),
    )


def rows(runs: Sequence[Learnt], cells: int) -> list[Row]:
    """Return the figures of the seeds from which all methods have run; none has a limit."""
    found = {(run.seed, run.method): run for run in runs}
    seeds = [seed for seed in dict.fromkeys(run.seed for run in runs) if all((seed, one) in found for one in COMPARED)]
    if not seeds:
        return []
    dense = [found[seed, "DiLoCo"] for seed in seeds]
    start = 100 * fmean(run.rewards[0] for run in dense)
    told = [Row("start", "held-out reward that all begin with", start, "%")]
    for method in COMPARED:
        told += _rows(method, [found[seed, method] for seed in seeds], dense, cells)
    return told


def _rows(method: str, made: Sequence[Learnt], dense: Sequence[Learnt], cells: int) -> list[Row]:
    """Return the figures of one method, whose runs are of the same seeds as DiLoCo's."""
    last = max(made[0].rewards)
    shares = [run.rise / other.rise for run, other in zip(made, dense, strict=True)]
    told = [
        ("reward", f"held-out reward after {last} rounds", 100 * fmean(run.rewards[last] for run in made), "%"),
        ("share", "its rise, of DiLoCo's", fmean(shares), "x"),
        ("least", "its rise, of DiLoCo's: the least of the seeds", min(shares), "x"),
    ]
    if changed := [run.changed for run in made if run.changed is not None]:
        told.append(("changed", "cells whose BF16 value an inner step changes", 100 * fmean(changed), "%"))
    if made[0].nbytes:
        nbytes = fmean(value for run in made for value in run.nbytes)
        density = fmean(value for run in made for value in run.density)
        told += [
            ("density", "cells that a trainer sends a round", 100 * density, "%"),
            ("bytes", "what a trainer sends a round", nbytes / 1e3, "kB"),
            ("factor", "less than dense float32", 4 * cells / nbytes, "x"),
        ]
    return [Row(f"{method}.{key}", f"{method}: {what}", value, unit) for key, what, value, unit in told]


def document(settings: Settings, cells: int, runs: Sequence[Learnt]) -> dict[str, Any]:
    """Return the result document of runs."""
    return {
        "kind": "outer-grpo",
        "title": TITLE,
        "machine": machine(),
        "versions": versions(),
        "settings": {**asdict(settings), "cells": cells},
        "seeds": list(dict.fromkeys(run.seed for run in runs)),
        "rows": [row.document() for row in rows(runs, cells)],
        "runs": [asdict(run) for run in runs],
    }


def made_before(path: Path, settings: Settings) -> list[Learnt]:
    """Return the runs that a result file has, if it is of the same settings."""
    if not path.exists():
        return []
    told = json.loads(path.read_text())
    if {**told["settings"], "cells": 0} != {**asdict(settings), "cells": 0}:
        return []
    return [Learnt(**{**run, "rewards": {int(at): one for at, one in run["rewards"].items()}}) for run in told["runs"]]


def run(
    seeds: Annotated[int, typer.Option(help="How many.", min=1)] = 3,
    rounds: Annotated[int, typer.Option(help="Outer rounds of a run.", min=TOLD)] = Settings().plan.rounds,
    lr: Annotated[float, typer.Option(help="Of the inner optimizers.")] = Settings().lr,
    out: Annotated[Path, typer.Option(help="Folder of result files.")] = OUT,
) -> None:
    """Compare what GRPO learns in outer rounds; write a result file after each run, and go on from it."""
    torch.set_num_threads(1)
    console, path = Console(), out / "outer" / "grpo.json"
    settings = Settings(Plan(rounds=rounds), lr=lr)
    runs, cells = made_before(path, settings), 0
    for seed in range(seeds):
        task = Sorting(seed, settings.plan.inner_steps, settings.recipe)
        cells = task.model.cells
        for method in COMPARED:
            if all((one.seed, one.method) != (seed, method) for one in runs):
                runs.append(measure(settings, task, seed, method))
                rewards = runs[-1].rewards
                told = f"{100 * rewards[0]:.1f} to {100 * rewards[max(rewards)]:.1f} %, {runs[-1].seconds:.0f} s"
                console.print(f"seed {seed}, {method}: {told}")
                write_result(path, document(settings, cells, runs))
    finish(console, document(settings, cells, runs), path)
