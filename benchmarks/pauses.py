"""What is waited for: a trainer for a push that returns after its diff, a worker while a version is applied.

Each is held against the least that memory allows, in the same turn: reading the model and as much again, as a shadow
is, once; and writing one byte of as many random cache lines as cells change, in rising order, as they are stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numba
import numpy as np

from benchmarks.bandwidth import geometry_of, read_group, weights_of
from benchmarks.results import Row
from benchmarks.states import Cells, Live, States, visits
from benchmarks.timing import ratio, seconds
from pulse_registry import PushOptions, PushResult, open

STALL_LIMIT, APPLY_LIMIT = 1.3, 2.0
_LINE = 64
"""Bytes of a cache line."""


def measure_pauses(states: States, root: Path, threads: int, repeats: int) -> dict[str, list[float]]:
    """Push with ``wait=False`` and apply through all states with ``gap``; return seconds, of the baselines, too.

    Args:
        states: to go through, there and back until there are enough repeats.
        root: of the run that this makes.
        threads: of the baselines; the library takes one a core.
        repeats: at least.
    """
    found: dict[str, list[float]] = {name: [] for name in ("stall", "read", "apply", "touch")}
    trainer, shadow, weights = Live(states), Live(states), Live(states)
    geometry = geometry_of(states)
    both = [weights_of(geometry, states, side.cells) for side in (trainer, shadow)]
    reads = [(side, group) for side in both for group in geometry.groups]
    lines = np.zeros(states.nbytes // _LINE * _LINE, np.uint8)
    rng = np.random.default_rng(0)
    touch_lines(lines, np.zeros(1, np.int64))
    with (
        ThreadPoolExecutor(threads) as pool,
        open(str(root), run="pauses", push=PushOptions(coder="gap", keyframe_share=1e9)) as registry,
        open(str(root), run="pauses") as worker,
    ):
        registry.push(0, trainer.model())
        worker.pull(into=weights.model())
        for repeat, state in enumerate(visits(len(states.steps), repeats)):
            trainer.go(state)
            pushed: list[Future[PushResult]] = []
            model = trainer.model()

            def push(repeat: int = repeat, model: dict[str, Cells] = model, pushed: list[Any] = pushed) -> None:
                pushed.append(registry.push(repeat + 1, model, wait=False))

            found["stall"].append(seconds(push))
            changed = pushed[0].result().changed
            found["read"].append(seconds(lambda: _each(pool, read_group, reads)))
            with worker.stage("latest", into=weights.model()) as staged:
                found["apply"].append(seconds(staged.apply))
            at = np.sort(rng.integers(0, len(lines) // _LINE, changed)) * _LINE
            parts = [(lines, part) for part in np.array_split(at, threads)]
            found["touch"].append(seconds(lambda parts=parts: _each(pool, touch_lines, parts)))  # type: ignore[misc]
    return found


def pause_rows(found: dict[str, list[float]]) -> list[Row]:
    """Return stall and apply against their baselines."""
    stall = "stall of a push that returns after its diff, against reading model and shadow once"
    apply = "apply, against touching as many random cache lines"
    return [
        Row("stall", stall, ratio(found["stall"], found["read"]), "x", "at most", STALL_LIMIT),
        Row("apply_lines", apply, ratio(found["apply"], found["touch"]), "x", "at most", APPLY_LIMIT),
    ]


@numba.njit(nogil=True)  # type: ignore[untyped-decorator]
def touch_lines(cells: Cells, places: Any) -> None:
    """Change one byte at each place."""
    for place in places:
        cells[place] ^= 1


def _each(pool: ThreadPoolExecutor, work: Callable[..., None], rows: Iterable[tuple[Any, ...]]) -> None:
    for _ in pool.map(work, *zip(*rows, strict=True)):
        pass
