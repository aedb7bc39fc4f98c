"""What the processes of a soak agree on: where things are, how long they last, and which states the trainer makes."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

import ml_dtypes
import numpy as np

from pulse_registry.log.clock import utc_now
from pulse_registry.retention import RetentionPolicy
from pulse_registry.runtime.dependencies import Dependencies

RUN = "soak"
CELLS = 200_000
CHANGED = 2_000
Model = dict[str, np.ndarray[Any, Any]]


@dataclass(frozen=True, slots=True)
class Plan:
    """One soak. ``skew_seconds``: how far the clock of each process is off, by its role's name."""

    url: str
    folder: str
    seconds: float
    push_every: float
    keep_last: int
    keep_every: int
    grace_seconds: float
    orphan_seconds: float
    lease_seconds: float
    skew_seconds: Mapping[str, float]

    @classmethod
    def read(cls, folder: Path) -> Self:
        return cls(**json.loads((folder / "plan.json").read_text()))

    def write(self) -> None:
        (Path(self.folder) / "plan.json").write_text(json.dumps(asdict(self)))

    def path(self, name: str) -> Path:
        return Path(self.folder) / name

    @property
    def policy(self) -> RetentionPolicy:
        return RetentionPolicy(
            keep_last=self.keep_last,
            keep_every=self.keep_every,
            keep_seconds=0,
            grace_seconds=self.grace_seconds,
            orphan_seconds=self.orphan_seconds,
        )

    def surroundings(self, role: str) -> Dependencies:
        """Return a process's surroundings; its clock is off in all that Python code asks it for."""
        off = self.skew_seconds.get(role, 0.0)
        true = time.time
        time.time = lambda: true() + off
        return Dependencies(clock=lambda: utc_now() + timedelta(seconds=off))


def first_model() -> Model:
    rng = np.random.default_rng(0)
    return {
        "weight": rng.normal(0, 0.02, (CELLS // 100, 100)).astype(ml_dtypes.bfloat16),
        "bias": rng.integers(0, 1 << 16, CELLS // 100, np.uint16).view(ml_dtypes.bfloat16),
    }


def advance(model: Model, step: int) -> None:
    """Change the model as a step does, in place: neighbouring bit patterns, here and there any pattern at all."""
    rng = np.random.default_rng(step)
    for array in model.values():
        cells = array.reshape(-1).view(np.uint16)
        at = rng.integers(0, len(cells), max(1, CHANGED * len(cells) // CELLS))
        cells[at] += rng.choice(np.array([1, 0xFFFF], np.uint16), len(at))
        cells[at[:3]] = rng.integers(0, 1 << 16, 3, np.uint16)


def empty_model() -> Model:
    """Return tensors to pull into."""
    return {name: np.zeros_like(array) for name, array in first_model().items()}


def mark(model: Mapping[str, Any]) -> str:
    """Return a hash of all bits, which nothing of the library has a part in."""
    hashed = hashlib.sha256()
    for name in sorted(model):
        hashed.update(np.ascontiguousarray(model[name]).tobytes())
    return hashed.hexdigest()


class Ledger:
    """What each step's weights are: written by the trainer before it pushes, read by all others."""

    def __init__(self, plan: Plan) -> None:
        self._path = plan.path("ledger.jsonl")
        self._marks: dict[int, str] = {}

    def note(self, step: int, found: str) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps([step, found]) + "\n")

    def of(self, step: int) -> str:
        if step not in self._marks:
            self._marks = dict(map(json.loads, self._path.read_text().splitlines()))
        return self._marks[step]


class Report:
    """Counts what a process did; written whole after each change, so that it is there however the process ends."""

    def __init__(self, plan: Plan, role: str) -> None:
        self._path = plan.path(f"report-{role}.json")
        self.counts: dict[str, int] = {}
        self.failures: list[str] = []

    def count(self, what: str, number: int = 1) -> None:
        self.counts[what] = self.counts.get(what, 0) + number
        self._write()

    def fail(self, why: str) -> None:
        self.failures.append(why)
        self._write()

    def _write(self) -> None:
        aside = self._path.with_suffix(".new")
        aside.write_text(json.dumps({"counts": self.counts, "failures": self.failures}))
        os.replace(aside, self._path)


def until_stopped(plan: Plan, pause: float = 0.0) -> Iterator[None]:
    """Yield until the conductor says stop, with a pause after each turn."""
    stop = plan.path("stop")
    while not stop.exists():
        yield
        end = time.monotonic() + pause
        while time.monotonic() < end and not stop.exists():
            time.sleep(min(0.1, pause))
