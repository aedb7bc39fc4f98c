"""Full pushes and pulls of every step through the public API, beside XOR + zstd-1 of the same states.

At each step all contenders take their turn on the same two states, and ratios are taken within the step. They come one
right after the other: what one thread alone does for longer, such as comparing all cells, puts the other cores to rest,
and threads that are woken then may have to wait for one. Each coder has a run of its own in a folder store: one
keyframe, then patches alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common_format import STREAMED, WHOLE, XorZstd
from benchmarks.sizes import entropy_bits, near_share
from benchmarks.states import Cells, Live, States, visits
from benchmarks.timing import seconds
from pulse_registry import PullResult, PushOptions, PushResult, open
from pulse_registry.format.patch_coding import CoderChoice

CODERS: tuple[CoderChoice, ...] = ("gap", "class", "auto")
PUSH_CORE, PULL_CORE = ("diff", "code", "hash"), ("decode", "verify", "apply")
"""The phases of a push and a pull that no store takes part in."""


@dataclass(slots=True)
class Times:
    """Seconds a repeat, by contender, and phases of pushes and pulls, by coder and phase."""

    push: dict[str, list[float]] = field(default_factory=dict)
    pull: dict[str, list[float]] = field(default_factory=dict)
    push_core: dict[str, list[float]] = field(default_factory=dict)
    pull_core: dict[str, list[float]] = field(default_factory=dict)
    apply: dict[str, list[float]] = field(default_factory=dict)
    encode: dict[str, list[float]] = field(default_factory=dict)
    decode: dict[str, list[float]] = field(default_factory=dict)
    push_phases: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    pull_phases: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    once: dict[str, float] = field(default_factory=dict)


class _Coder:
    """A trainer's and a worker's registry on one run, and the worker's weights, at the state of the newest version."""

    def __init__(self, coder: CoderChoice, root: Path, states: States, trainer: Live, times: Times) -> None:
        self.name = coder
        self._times = times
        url = str(root / coder)
        self.trainer = open(url, run="bench", push=PushOptions(coder=coder, keyframe_share=1e9))
        self.worker = open(url, run="bench")
        self.weights = _blank(states)
        times.once[f"{coder}: first push"] = seconds(lambda: self.trainer.push(0, trainer.model()))
        times.once[f"{coder}: first pull"] = seconds(lambda: self.worker.pull(into=self.weights))

    def push(self, step: int, model: dict[str, Cells]) -> PushResult:
        results: list[PushResult] = []
        taken = seconds(lambda: results.append(self.trainer.push(step, model)))
        self._times.push.setdefault(self.name, []).append(taken)
        self._times.push_core.setdefault(self.name, []).append(core_seconds(results[0], PUSH_CORE))
        _note(self._times.push_phases.setdefault(self.name, {}), results[0].phases)
        return results[0]

    def pull(self) -> None:
        with contextlib.ExitStack() as stack:
            results: list[PullResult] = []

            def work() -> None:
                staged = stack.enter_context(self.worker.stage("latest", into=self.weights))
                results.append(staged.apply())

            taken = seconds(work)
        self._times.pull.setdefault(self.name, []).append(taken)
        self._times.pull_core.setdefault(self.name, []).append(core_seconds(results[0], PULL_CORE))
        self._times.apply.setdefault(self.name, []).append(results[0].phases["apply"])
        _note(self._times.pull_phases.setdefault(self.name, {}), results[0].phases)

    def close(self) -> None:
        self.trainer.close()
        self.worker.close()


def measure_push_pull(states: States, root: Path, threads: int, repeats: int) -> tuple[Times, list[dict[str, Any]]]:
    """Push and pull through all states, at least ``repeats`` times; return the times and a row of sizes a step.

    Leaves a run in ``root`` for each coder, its version k being state k up to the last state.
    """
    times, rows = Times(), []
    trainer, before, receiver = Live(states), Live(states), Live(states)
    formats = {"whole": XorZstd(threads, WHOLE), "streamed": XorZstd(threads, STREAMED)}
    coders = [_Coder(coder, root, states, trainer, times) for coder in CODERS]
    for repeat, state in enumerate(visits(len(states.steps), repeats)):
        trainer.go(state)
        row: dict[str, Any] = {}
        sizes = {name: _common(times, name, format_, before, trainer, receiver) for name, format_ in formats.items()}
        row["xor_zstd"] = sizes["whole"]
        model = trainer.model()
        for coder in coders:
            row[coder.name] = coder.push(repeat + 1, model).nbytes
            coder.pull()
        for coder in coders:
            _check(coder, model)
        receiver.go(state)
        if repeat < len(states.steps):
            rows.append(_row(states, repeat, before, row))
        before.go(state)
    for coder in coders:
        coder.close()
    for format_ in formats.values():
        format_.close()
    return times, rows


def core_seconds(result: PushResult | PullResult, phases: Sequence[str]) -> float:
    """Return the wall time in which at least one of some phases of a push or a pull was under way."""
    total = until = 0.0
    for phase in sorted(result.timeline, key=lambda phase: phase.start):
        if phase.phase in phases and phase.end > until:
            total += phase.end - max(phase.start, until)
            until = phase.end
    return total


def warm_up(root: Path) -> None:
    """Push and pull something small with every coder, so that no measured call loads or compiles code."""
    rng = np.random.default_rng(0)
    weights = {"w": rng.integers(0, 1 << 16, 4096, np.uint16).view("bfloat16")}
    masters = {"w": rng.standard_normal(4096, np.float32)}
    for coder in CODERS:
        for name, model in (("cells", weights), ("masters", masters)):
            with open(str(root / coder), run=name, push=PushOptions(coder=coder)) as registry:
                into = {"w": np.zeros(4096, "bfloat16")}
                for step in range(3):
                    model["w"][step::7] = step + 1
                    registry.push(step, model)
                    registry.pull(into=into)
                registry.verify(model=into)


def _common(times: Times, name: str, format_: XorZstd, before: Live, trainer: Live, receiver: Live) -> int:
    """Time one encoding and one decoding in place; ``receiver`` is left as it was. Return the bytes."""
    frames: list[list[bytes]] = []
    taken = seconds(lambda: frames.append(format_.encode(before.cells, trainer.cells)))
    times.encode.setdefault(name, []).append(taken)
    times.decode.setdefault(name, []).append(seconds(lambda: format_.decode(frames[0], receiver.cells)))
    if not all(np.array_equal(a, b) for a, b in zip(receiver.cells, trainer.cells, strict=True)):
        raise AssertionError("XOR + zstd-1 does not give the new state")
    format_.decode(frames[0], receiver.cells)
    return sum(map(len, frames[0]))


def _row(states: States, step: int, before: Live, nbytes: dict[str, int]) -> dict[str, Any]:
    changed = states.changed(step)
    return {
        "step": step,
        "changed": changed,
        "changed_share": round(changed / states.cells, 6),
        "neighbour_share": round(near_share(states, step), 4),
        "bytes": nbytes,
        "bits": {name: round(8 * size / changed, 3) for name, size in nbytes.items()},
        "entropy_bits": round(entropy_bits(before.cells, states, step), 3),
    }


def _blank(states: States) -> dict[str, Cells]:
    blank = Live(states)
    for cells in blank.cells:
        cells[:] = 0
    return blank.model()


def _check(coder: _Coder, model: dict[str, Cells]) -> None:
    for name, cells in model.items():
        if not np.array_equal(cells.view(np.uint8), coder.weights[name].view(np.uint8)):
            raise AssertionError(f"{coder.name}: tensor {name!r} of the worker differs from the trainer's")


def _note(phases: dict[str, list[float]], found: Any) -> None:
    for name, taken in found.items():
        phases.setdefault(name, []).append(taken)
