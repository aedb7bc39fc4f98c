"""Models of many tensors: after the first time, a push and a pull of one changed cell take one look at each tensor."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pulse_registry
from tests.support.counting import calls

FEW, MANY = 40, 840


def of_torch(count: int) -> dict[str, Any]:
    return {f"layers.{number}.weight": torch.zeros(12, dtype=torch.bfloat16) for number in range(count)}


def of_numpy(count: int) -> dict[str, Any]:
    return {f"layers.{number}.weight": np.zeros((3, 4), np.float16) for number in range(count)}


def masters(count: int) -> dict[str, Any]:
    return {f"layers.{number}.weight": torch.zeros(12) for number in range(count)}


def cost(root: Path, make: Callable[[int], dict[str, Any]], count: int) -> tuple[int, int]:
    """Return how many functions a push, and a pull, of one changed cell call once both were made twice."""
    trained, served = make(count), make(count)
    if make is masters:
        served = {name: value.to(torch.bfloat16) for name, value in served.items()}
    push = pulse_registry.PushOptions(keyframe_share=1e9, dtype="keep" if make is of_numpy else "bf16")
    pushed = pulled = 0
    with pulse_registry.open(root, run=f"run-{count}", push=push) as run:
        for step in range(4):
            trained["layers.7.weight"].reshape(-1)[step] = 1.5
            pushed = calls(partial(run.push, step, trained))
            pulled = calls(partial(run.pull, "latest", into=served))
            assert run.versions()[-1].changed == (1 if step else 12 * count)
    for name, value in served.items():
        assert np.array_equal(np.asarray(value.tolist()), np.asarray(trained[name].tolist()))
    return pushed, pulled


@pytest.mark.parametrize(
    ("make", "look"),
    [
        (of_torch, 3),  # data_ptr, is_contiguous, type
        (masters, 4),  # is_neg
        (of_numpy, 9),  # ctypes.data makes an object
    ],
)
def test_a_push_and_a_pull_of_one_cell_take_one_look_at_each_tensor(
    tmp_path: Path, make: Callable[[int], dict[str, Any]], look: int
):
    for few, many in zip(cost(tmp_path, make, FEW), cost(tmp_path, make, MANY), strict=True):
        assert many - few <= look * (MANY - FEW) + 100


def test_a_tensor_of_another_shape_is_seen_by_the_next_push_and_the_next_pull(tmp_path: Path):
    trained, served = of_torch(9), of_torch(9)
    with pulse_registry.open(tmp_path, run="reshaped") as run:
        for step in range(3):
            run.push(step, trained)
            run.pull("latest", into=served)
        trained["layers.3.weight"].data = torch.ones(5, dtype=torch.bfloat16)
        assert run.push(3, trained).kind == "keyframe"
        with pytest.raises(pulse_registry.LayoutMismatch, match=r"layers.3.weight.*\[12\].*\[5\]"):
            run.pull("latest", into=served)
        served["layers.3.weight"].data = torch.zeros(5, dtype=torch.bfloat16)
        run.pull("latest", into=served)
        assert served["layers.3.weight"].tolist() == [1.0] * 5
