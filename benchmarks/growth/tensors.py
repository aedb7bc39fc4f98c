"""What a push and a pull of one changed cell cost by the number of a model's tensors: the first one, and later ones.

Later ones are held against a plain loop that reads each tensor's address, shape and dtype. What they cost for a model
of one tensor (the log, the store, the threads) is taken off: it does not grow.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np

import pulse_registry
from benchmarks.growth.curve import Curve
from pulse_registry import Registry

CELLS = 16
"""Of each tensor: so few that reading them is no part of the cost."""
REPEATS = 7
LIMIT, LINEAR = 2.0, 1.15
Model = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Costs:
    """Processor times of a model, in milliseconds: the least of several, but for the first push and pull."""

    loop: float
    first_push: float
    first_pull: float
    push: float
    pull: float


def curves(quick: bool) -> list[Curve]:
    """Return the curves for NumPy and for torch."""
    sizes = (20, 200) if quick else (100, 1_000, 10_000, 100_000)
    return [curve for name, make, loop in WAYS for curve in _curves(name, make, loop, sizes)]


def costs(make: Callable[[int], Model], loop: Callable[[Model], None], count: int) -> Costs:
    """Measure pushes and pulls of models of ``count`` tensors, in turns."""
    trained, served = make(count), make(count)
    name = next(iter(trained))
    pushes, pulls, loops = [], [], []
    with (
        tempfile.TemporaryDirectory() as folder,
        pulse_registry.open(folder, run="tensors", push=pulse_registry.PushOptions(keyframe_share=1e9)) as trainer,
        pulse_registry.open(folder, run="tensors") as worker,
    ):
        _warm_up(trainer)
        for step in range(REPEATS + 2):
            trained[name][step % CELLS] += 1
            pushes.append(_processor_ms(partial(trainer.push, step, trained)))
            pulls.append(_processor_ms(partial(worker.pull, "latest", into=served)))
            loops.append(_processor_ms(partial(loop, trained)))
    return Costs(min(loops), pushes[0], pulls[0], min(pushes[2:]), min(pulls[2:]))


def torch_model(count: int) -> Model:
    """Return small BF16 tensors."""
    import torch

    return {f"layers.{number}.weight": torch.zeros(CELLS, dtype=torch.bfloat16) for number in range(count)}


def numpy_model(count: int) -> Model:
    """Return small BF16 arrays."""
    return {f"layers.{number}.weight": np.zeros(CELLS, ml_dtypes.bfloat16) for number in range(count)}


def torch_loop(model: Model) -> None:
    """Read each tensor's address, shape and dtype."""
    for name, tensor in model.items():
        name, tensor.data_ptr(), tensor.shape, tensor.dtype


def numpy_loop(model: Model) -> None:
    """Read each array's address, shape and dtype."""
    for name, array in model.items():
        name, array.ctypes.data, array.shape, array.dtype  # noqa: B018


WAYS = (("numpy", numpy_model, numpy_loop), ("torch", torch_model, torch_loop))


def _curves(
    name: str, make: Callable[[int], Model], loop: Callable[[Model], None], sizes: tuple[int, ...]
) -> list[Curve]:
    one = costs(make, loop, 1)
    found = [(size, costs(make, loop, size)) for size in sizes]
    later = {
        "push": [(size, (cost.push - one.push) / cost.loop) for size, cost in found],
        "pull": [(size, (cost.pull - one.pull) / cost.loop) for size, cost in found],
    }
    first = {
        "push": [(size, cost.first_push) for size, cost in found],
        "pull": [(size, cost.first_pull) for size, cost in found],
    }
    made = [
        Curve(
            f"tensors.{call}.{name}",
            f"{call} of one changed cell, {name}, over a plain loop",
            "tensors",
            "x",
            tuple((size, max(0.0, cost)) for size, cost in points),
            "last",
            LIMIT,
        )
        for call, points in later.items()
    ]
    made += [
        Curve(
            f"tensors.first-{call}.{name}",
            f"first {call}, {name}",
            "tensors",
            "ms",
            tuple(points),
            "exponent",
            LINEAR,
        )
        for call, points in first.items()
    ]
    return made


def _warm_up(registry: Registry) -> None:
    """Load what the first push of a process would wait for."""
    registry.warm_up()


def _processor_ms(work: Callable[[], Any]) -> float:
    began = time.process_time()
    work()
    return 1e3 * (time.process_time() - began)
