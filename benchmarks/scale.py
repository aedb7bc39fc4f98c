"""Model sizes: what a push and a pull of a step cost as the model grows, to what memory allows.

A model of n times 134.5 M cells is n copies of one synthetic policy. Trainer and worker are processes of their own, one
after the other, so that each has the machine's memory: ``python -m benchmarks.scale trainer|worker`` (for the parent
to call). XOR + zstd-1 runs in the same process and turn on one copy, its time taken n times; so does NumPy's copy. What
they allocate counts as memory here, and freed memory may stay with the process: ``memory`` has the exact figures.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from benchmarks.common_format import XorZstd
from benchmarks.memory import Extra, watched
from benchmarks.push_pull import PULL_CORE, PUSH_CORE, core_seconds, warm_up
from benchmarks.results import Row, machine, versions
from benchmarks.states import Cells, Live, States, load_states, save_states
from benchmarks.synthetic import DEFAULT_CELLS, synthetic_states
from benchmarks.timing import ratio, seconds
from pulse_registry import PullResult, PushOptions, PushResult, open
from pulse_registry.format.patch_coding import CoderChoice

COPIES = (1, 4, 8, 15, 30, 60)
"""0.13 to 8.1 billion cells."""
STEPS = 5
TITLE = "Model sizes"
Role = Literal["trainer", "worker"]
_ROOM = 1.15
"""Of what a process holds (a trainer: model and shadow; a worker: its weights), for the rest that it needs."""
_BESIDE_BYTES = 6 * 2 * DEFAULT_CELLS
"""The states of one copy, before and after, that XOR + zstd-1 works on."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What the parent and its children agree on.

    Attributes:
        folder: the states of one copy as files.
        root: of the registry.
        copies: how many of them the model has.
        coder: of the patches.
        threads: of copies and XOR + zstd-1.
    """

    folder: Path
    root: Path
    copies: int
    coder: CoderChoice
    threads: int


class Copies:
    """Several copies of a policy that take its steps together."""

    def __init__(self, states: States, copies: int) -> None:
        self._parts = [Live(states) for _ in range(copies)]

    def go(self, state: int) -> None:
        """Go to a state."""
        for part in self._parts:
            part.go(state)

    def model(self) -> dict[str, Cells]:
        """Return all tensors by name."""
        return {
            f"copy{number}.{name}": cells
            for number, part in enumerate(self._parts)
            for name, cells in part.model().items()
        }


def measure_sizes(
    cells: int,
    copies: Sequence[int],
    coder: CoderChoice,
    threads: int,
    *,
    folder: Path | None = None,
    seed: int = 0,
    say: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Measure each size that there is memory for; return the result document.

    Args:
        cells: of one copy.
        copies: how many, a size each.
        coder: of the patches.
        threads: of copies and XOR + zstd-1.
        folder: where the registry is, with room for a keyframe; None: the system's temporary folder.
        seed: of the states.
        say: told what is being measured, and which sizes are left out.
    """
    sizes, skipped = [], {}
    with tempfile.TemporaryDirectory(prefix="pulse-scale-", dir=folder) as made:
        states = synthetic_states(cells, STEPS, seed)
        (Path(made) / "states").mkdir()
        save_states(states, Path(made) / "states", STEPS + 1)
        one, nbytes, changed = states.cells, states.nbytes, states.changed(0)
        del states
        for count in copies:
            needed = int(_ROOM * 2 * count * nbytes) + min(_BESIDE_BYTES, 6 * nbytes)
            if needed > available_bytes():
                skipped[str(count * one)] = f"needs about {needed / 2**30:.0f} GiB of memory"
                say(f"{count * one / 1e9:.2f} B cells: left out, {skipped[str(count * one)]}")
                continue
            say(f"{count * one / 1e9:.2f} B cells")
            with tempfile.TemporaryDirectory(dir=made) as root:
                plan = Plan(Path(made) / "states", Path(root), count, coder, threads)
                found = {role: _child(role, plan) for role in get_args(Role)}
            sizes.append({"cells": count * one, "bytes": count * nbytes, "changed_share": changed / one, **found})
    return {
        "kind": "scale",
        "title": f"{TITLE}, {coder}",
        "machine": {**machine(), "threads": threads},
        "versions": versions(),
        "seed": seed,
        "settings": {"coder": coder, "steps": STEPS, "cells_a_copy": one},
        "rows": [row.document() for size in sizes for row in size_rows(size)],
        "sizes": sizes,
        "skipped": skipped,
    }


def size_rows(size: dict[str, Any]) -> list[Row]:
    """Return the figures of one size."""
    name, trainer, worker = f"{size['cells'] / 1e9:.2f} B cells", size["trainer"], size["worker"]
    return [
        Row(f"{name}.diff", f"{name}: a push's diff, against copy bandwidth", trainer["diff"], "x"),
        Row(f"{name}.push", f"{name}: push, diff + code, against XOR + zstd-1 encoding", trainer["core"], "x"),
        Row(f"{name}.pull", f"{name}: pull, decode + verify + apply, against its decoding", worker["core"], "x"),
        Row(f"{name}.push_s", f"{name}: whole push", trainer["whole_ms"], "ms"),
        Row(f"{name}.pull_s", f"{name}: whole pull", worker["whole_ms"], "ms"),
        Row(f"{name}.push_rss", f"{name}: trainer, peak resident memory", trainer["peak_gb"], "GB"),
        Row(f"{name}.pull_rss", f"{name}: worker, peak resident memory", worker["peak_gb"], "GB"),
        Row(f"{name}.push_extra", f"{name}: of it beyond model and shadow", trainer["extra"], "x"),
        Row(f"{name}.pull_extra", f"{name}: of it beyond the weights", worker["extra"], "x"),
    ]


def available_bytes() -> int:
    """Return the memory that a new process can have; all of the machine's where that is not told."""
    info = Path("/proc/meminfo")
    if info.exists():
        lines = dict(line.split(":", 1) for line in info.read_text().splitlines())
        return int(lines["MemAvailable"].split()[0]) << 10
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def trainer(plan: Plan) -> dict[str, float]:
    """Push all steps; the first does not count."""
    states = load_states(plan.folder)
    format_, before, after = XorZstd(plan.threads), Live(states), Live(states)
    live = Copies(states, plan.copies)
    model = live.model()
    core, whole, diff, encode, copy = (list[float]() for _ in range(5))
    with (
        open(str(plan.root), run="scale", push=PushOptions(coder=plan.coder, keyframe_share=1e9)) as registry,
        ThreadPoolExecutor(plan.threads) as pool,
    ):
        registry.push(0, model)
        with watched() as extra:
            for state in range(1, STEPS + 1):
                live.go(state)
                results: list[PushResult] = []
                whole.append(seconds(lambda: results.append(registry.push(state, model))))  # noqa: B023
                core.append(core_seconds(results[0], PUSH_CORE))
                diff.append(core_seconds(results[0], ("diff",)))
                after.go(state)
                encode.append(plan.copies * seconds(lambda: format_.encode(before.cells, after.cells)))
                before.go(state)
                copy.append(plan.copies * seconds(lambda: list(pool.map(np.copyto, before.cells, after.cells))))
    format_.close()
    # A copy reads and writes its bytes, a diff reads two arrays of as many.
    found = _summary(core, encode, whole, extra, plan.copies * states.nbytes)
    return {"diff": ratio(copy[1:], diff[1:]), **found}


def worker(plan: Plan) -> dict[str, float]:
    """Pull all steps in place; the first does not count."""
    states = load_states(plan.folder)
    format_, before, after = XorZstd(plan.threads), Live(states), Live(states)
    weights = Copies(states, plan.copies).model()
    core, whole, decode = (list[float]() for _ in range(3))
    with open(str(plan.root), run="scale", create=False) as registry:
        registry.verify(0, model=weights)
        with watched() as extra:
            for version in range(1, STEPS + 1):
                results: list[PullResult] = []
                whole.append(seconds(lambda: results.append(registry.pull(version, into=weights))))  # noqa: B023
                core.append(core_seconds(results[0], PULL_CORE))
                after.go(version)
                frames = format_.encode(before.cells, after.cells)
                decode.append(plan.copies * seconds(lambda: format_.decode(frames, before.cells)))  # noqa: B023
                before.at = version
    format_.close()
    for name, cells in after.model().items():
        if not np.array_equal(weights[f"copy{plan.copies - 1}.{name}"].view(np.uint8), cells.view(np.uint8)):
            raise AssertionError(f"tensor {name!r} of the worker differs from the trainer's")
    return _summary(core, decode, whole, extra, plan.copies * states.nbytes)


def _summary(
    core: Sequence[float], against: Sequence[float], whole: Sequence[float], extra: Extra, nbytes: int
) -> dict[str, float]:
    return {
        "core": ratio(core[1:], against[1:]),
        "core_ms": statistics.median(core[1:]) * 1e3,
        "whole_ms": statistics.median(whole[1:]) * 1e3,
        "extra": extra.peak / nbytes,
        "peak_gb": (extra.before + extra.peak) / 1e9,
    }


def _child(role: Role, plan: Plan) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.scale", role, str(plan.folder), str(plan.root)]
    command += ["--copies", str(plan.copies), "--coder", plan.coder, "--threads", str(plan.threads)]
    ran = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1])
    found: dict[str, float] = json.loads(ran.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure one size in this process.")
    parser.add_argument("role", choices=get_args(Role))
    parser.add_argument("folder", type=Path)
    parser.add_argument("root", type=Path)
    parser.add_argument("--copies", type=int, required=True)
    parser.add_argument("--coder", required=True)
    parser.add_argument("--threads", type=int, required=True)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as small:
        warm_up(Path(small))
    plan = Plan(args.folder, args.root, args.copies, args.coder, args.threads)
    json.dump((trainer if args.role == "trainer" else worker)(plan), sys.stdout)


if __name__ == "__main__":
    main()
