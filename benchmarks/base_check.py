"""``python -m benchmarks.base_check``: what it costs to check all cells before a pull, against a pull that does not.

Two workers pull the same versions from the same folder, in turn first, and the ratio is taken within the version.
"""

from __future__ import annotations

import functools
import statistics
import tempfile
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from benchmarks.push_pull import warm_up
from benchmarks.states import Live, States, visits
from benchmarks.synthetic import DEFAULT_CELLS, synthetic_states
from benchmarks.timing import ratio, seconds
from pulse_registry import open
from pulse_registry.pull.base_check import BaseCheck

CHECKS: tuple[BaseCheck, ...] = ("touched", "all")


def measure(states: States, root: Path, repeats: int) -> dict[BaseCheck, list[float]]:
    """Return the seconds of each pull, by what it checks."""
    times: dict[BaseCheck, list[float]] = {check: [] for check in CHECKS}
    trainer = Live(states)
    with open(str(root), run="bench", keyframe_share=1e9) as pushing, open(str(root), run="bench") as worker:
        pushing.push(0, trainer.model())
        into = {check: {name: np.zeros_like(cells) for name, cells in trainer.model().items()} for check in CHECKS}
        for weights in into.values():
            worker.pull(into=weights)
        for repeat, state in enumerate(visits(len(states.steps), repeats)):
            trainer.go(state)
            pushing.push(repeat + 1, trainer.model())
            for check in CHECKS[:: -1 if repeat % 2 else 1]:
                times[check].append(seconds(functools.partial(worker.pull, into=into[check], check=check)))
        for weights in into.values():
            worker.verify(model=weights)
    return times


def main(
    cells: Annotated[int, typer.Option(help="Of the synthetic policy.", min=10_000)] = DEFAULT_CELLS,
    repeats: Annotated[int, typer.Option(help="Versions to pull.", min=1)] = 9,
    seed: Annotated[int, typer.Option(help="Of synthetic states.")] = 0,
) -> None:
    """Measure, and print."""
    with tempfile.TemporaryDirectory() as folder:
        warm_up(Path(folder) / "warm")
        times = measure(synthetic_states(cells, 4, seed), Path(folder) / "run", repeats)
    for check, taken in times.items():
        print(f"check={check!r}: {statistics.median(taken) * 1e3:.1f} ms")
    print(f"all against touched: {ratio(times['all'], times['touched']):.2f}x, of {cells:,} cells")


if __name__ == "__main__":
    typer.run(main)
