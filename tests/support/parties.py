"""A party: trainers in outer rounds at one store, all in one thread, where waiting lets time pass and others act."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any

import numpy as np

from pulse_registry.events import Event
from pulse_registry.options import Options
from pulse_registry.outer.result import RoundResult
from pulse_registry.outer.session import OuterSession
from pulse_registry.registry import Registry
from pulse_registry.runtime.dependencies import Dependencies, Threads
from pulse_registry.store import MemoryStore, Store
from tests.support.inline import Inline

Floats = np.ndarray[Any, np.dtype[np.float32]]
_SHAPE = (20, 30)


def drawn(seed: int) -> dict[str, Floats]:
    """Return a model of float32 masters."""
    return {"w": (np.random.default_rng(seed).standard_normal(_SHAPE) * 0.02).astype(np.float32)}


class Trainer:
    """A session, and its model."""

    def __init__(self, outer: OuterSession, model: dict[str, Floats], seed: int, registry: Registry) -> None:
        self.outer, self.model, self.registry = outer, model, registry
        self._rng = np.random.default_rng(seed)

    def train(self) -> None:
        self.model["w"] -= (self._rng.standard_normal(_SHAPE) * 1e-5 + 3e-6).astype(np.float32)

    def contribute(self) -> None:
        self.train()
        assert self.outer.contribute().counts

    def follow(self) -> RoundResult:
        self.outer.await_round()
        return self.outer.apply()

    def round(self) -> RoundResult:
        self.train()
        result = self.outer.step()
        assert result is not None
        return result


class Party:
    """A store, and trainers at it: whenever one waits, time passes, and ``meanwhile`` is called."""

    def __init__(self, **options: Any) -> None:
        self.store, self.now, self.told = MemoryStore(uuid.uuid4().hex), 0.0, list[Event]()
        self.meanwhile: Callable[[], object] = lambda: None
        self._options = {"inner_steps": 1, "quorum": 1, "grace": 0.0} | options

    def trainer(self, name: str, seed: int, store: Store | None = None) -> Trainer:
        registry = Registry(
            store or self.store,
            "run",
            Options(on_event=self.told.append),
            dependencies=Dependencies(
                monotonic=lambda: self.now, sleep=self.sleep, retrying=lambda it: it, threads=_threads
            ),
        )
        model = drawn(1)
        return Trainer(registry.outer(model, member=name, **self._options), model, seed, registry)

    def joined(self, names: str) -> list[Trainer]:
        """Return trainers that have joined, one for each letter."""
        found = [self.trainer(name, seed) for seed, name in enumerate(names, 1)]
        for one in found:
            one.outer.join()
        return found

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.meanwhile()


def same(*trainers: Trainer) -> None:
    """Assert that all hold the same bits."""
    assert len({one.model["w"].tobytes() for one in trainers}) == 1
    assert len({one.outer.weights.theta.tobytes() for one in trainers}) == 1
    assert len({one.outer.weights.momentum.tobytes() for one in trainers}) == 1


def _threads(count: int, name: str) -> Executor:
    """Work at once, so that each call of the store has its place; a publisher waits for a thread of its own."""
    return Threads(1, name) if name in ("pulse-outer", "pulse-push") else Inline()
