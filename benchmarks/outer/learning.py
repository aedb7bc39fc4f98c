"""How trainers learn a task in outer rounds by a method, or one trainer alone, at equal inner steps."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
import torch

from benchmarks.outer.inner import FlatModel, Inner, Loss
from benchmarks.outer.methods import Dense, Levels, Method, Sent, Values
from pulse_kernels.protocol import OuterRates
from pulse_registry.outer.options import OuterOptions

DEFAULT_GAIN = float(OuterOptions(member="any").gain or np.inf)
"""Of ``registry.outer``."""


class Task(Protocol):
    """What is learnt. What it gives out is the same for the same seed, arguments and weights."""

    @property
    def model(self) -> FlatModel:
        """Shared by all trainers; ``model.start`` is what all begin with."""

    def loss(self, trainer: int, step: int) -> Loss:
        """Return the loss of an inner step of a trainer; it is called once, and before the next step's."""

    def evaluate(self, weights: torch.Tensor) -> float:
        """Return how good float32 weights, seen as BF16, are at what is held out."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What all runs of a comparison have in common.

    Attributes:
        trainers, rounds, inner_steps: how many.
        rate, momentum: of the outer optimizer.
    """

    trainers: int = 4
    rounds: int = 12
    inner_steps: int = 8
    rate: float = 0.7
    momentum: float = 0.9

    @property
    def rates(self) -> OuterRates:
        """Of the outer optimizer."""
        return OuterRates(self.rate, self.momentum)


Make = Callable[[Plan, Task], Method]


def _dense(plan: Plan, task: Task) -> Method:
    return Dense(task.model.start.numpy(), plan.trainers, plan.rates)


def _values(plan: Plan, task: Task, gain: float = 1.0, *, feedback: bool = True) -> Method:
    return Values(task.model.start.numpy(), plan.trainers, plan.rates, gain, feedback=feedback)


def _levels(plan: Plan, task: Task, gain: float = 1.0, *, feedback: bool = True) -> Method:
    start = (task.model.start.numpy().view(np.uint32) >> 16).astype(np.uint16)
    return Levels(task.model.shapes, start, plan.trainers, plan.rates, gain, feedback=feedback)


METHODS: dict[str, Make] = {
    "DiLoCo": _dense,
    "values, gain 1": _values,
    "values, gain 7": partial(_values, gain=7.0),
    "levels, gain 1": _levels,
    "levels, gain 3": partial(_levels, gain=3.0),
    "levels, gain 7": partial(_levels, gain=7.0),
    "levels, gain 14": partial(_levels, gain=14.0),
    "levels, gain 1, no feedback": partial(_levels, feedback=False),
    "levels, gain 7, no feedback": partial(_levels, gain=7.0, feedback=False),
}
ALONE = {"one trainer": 1.0, "one trainer, 7 x lr": 7.0}
"""Their learning rates, of the others'."""


def learn(
    plan: Plan, task: Task, lr: float, method: Method, at: Collection[int]
) -> tuple[dict[int, float], list[list[Sent]]]:
    """Train in rounds; return how good the weights are after some of them, and what was sent to each."""
    weights = torch.nn.Parameter(task.model.start.clone())
    inner = [Inner(task.model, weights, lr) for _ in range(plan.trainers)]
    found, sent = {0: task.evaluate(task.model.start)}, []
    for round_ in range(plan.rounds):
        common = torch.from_numpy(method.weights().copy())
        made = []
        for k in range(plan.trainers):
            weights.data.copy_(common)
            for step in range(plan.inner_steps):
                inner[k].step(task.loss(k, round_ * plan.inner_steps + step))
            made.append(method.contribute(k, weights.detach().numpy()))
        method.step()
        sent.append(made)
        if round_ + 1 in at:
            found[round_ + 1] = task.evaluate(torch.from_numpy(method.weights()))
    return found, sent


def learn_alone(
    plan: Plan, task: Task, lr: float, at: Collection[int], *, shards: int
) -> tuple[dict[int, float], list[float]]:
    """Train one model for as many inner steps, on the mean gradient of so many trainers' shards: 1, or all (DDP).

    Returns:
        How good the weights are after as many steps as some rounds have, and the share of the cells whose BF16 value
        each step changed.
    """
    weights = torch.nn.Parameter(task.model.start.clone())
    inner = Inner(task.model, weights, lr)
    found, changed = {0: task.evaluate(task.model.start)}, list[float]()
    for step in range(plan.rounds * plan.inner_steps):
        each, before = [task.loss(k, step) for k in range(shards)], weights.detach().bfloat16()
        inner.step(lambda module, each=each: torch.stack([loss(module) for loss in each]).mean())  # type: ignore[misc]
        changed.append(float((weights.detach().bfloat16() != before).double().mean()))
        done, rest = divmod(step + 1, plan.inner_steps)
        if not rest and done in at:
            found[done] = task.evaluate(weights.detach())
    return found, changed
