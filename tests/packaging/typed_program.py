"""A user's program, which type checkers read: what they say of it is tested (test_types.py)."""

from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any, assert_type

import numpy as np
import numpy.typing as npt
import torch

import pulse_registry
from pulse_registry import (
    Event,
    Prefetch,
    PullResult,
    PushResult,
    Registry,
    Route,
    Staged,
    Version,
)

events: list[Event] = []
registry = pulse_registry.open("policies", run="math-7b", on_event=events.append)
assert_type(registry, Registry)


class Policy(torch.nn.Module):
    """A module of the user's own."""


def train(
    policy: Policy, state: dict[str, torch.Tensor], arrays: dict[str, npt.NDArray[np.float32]], wait: bool
) -> None:
    """Push whatever is a model."""
    assert_type(registry.push(0, policy), PushResult)
    assert_type(registry.push(1, state, metadata={"loss": 0.5}, wait=True), PushResult)
    assert_type(registry.push(np.int64(2), arrays, wait=False), Future[PushResult])
    assert_type(registry.push(2, arrays, wait=wait), PushResult | Future[PushResult])
    assert_type(registry.push(3, policy.state_dict()).version, int)
    registry.push(4, dict(policy.named_parameters()))


def work(policy: Policy, state: dict[str, torch.Tensor]) -> None:
    """Pull in each of the ways."""
    assert_type(registry.pull(into=policy), PullResult)
    assert_type(registry.pull("latest", into=state), PullResult)
    with registry.stage(3, into=policy) as staged:
        assert_type(staged, Staged)
        assert_type(staged.apply(), PullResult)
        assert_type(staged.route, Route)
    with registry.prefetch(into=policy) as prefetch:
        assert_type(prefetch, Prefetch)
        assert_type(prefetch.take(), Staged | None)
    assert_type(registry.watch(), Iterator[Version])
    assert_type(registry.versions(), list[Version])
    assert_type(registry.verify(model=policy), Version)


def look() -> None:
    """Load in each of the frameworks."""
    assert_type(registry.load(3, framework="torch"), dict[str, torch.Tensor])
    assert_type(registry.load(framework="numpy"), dict[str, npt.NDArray[Any]])
    assert_type(registry.load(), dict[str, Any])


def err(policy: Policy) -> None:
    """Do what a type checker refuses; with nothing to refuse, the comments would be refused."""
    registry.push(0, 3)  # type: ignore[call-overload]
    registry.push(0, {"w": 1.0})  # type: ignore[dict-item]
    registry.pull("latest")  # type: ignore[call-arg]
    registry.pull(into=None)  # type: ignore[arg-type]
    registry.stage(into="policy")  # type: ignore[arg-type]
    registry.load(framework="jax")  # type: ignore[call-overload]
    policy.no_such_name_of_a_module()  # type: ignore[operator]
