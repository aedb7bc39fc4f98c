"""Small policies as bit patterns, a version after the other."""

from __future__ import annotations

from typing import Any

import numpy as np

from pulse_registry import Registry
from pulse_registry.client.store import ServiceStore
from pulse_registry.options import ComputeOptions, Options
from pulse_registry.push.options import PushOptions
from pulse_registry.runtime.dependencies import Dependencies
from pulse_registry.store import RetryStore
from pulse_registry.store.wrappers.retry import TOTAL_S, RetryPolicy
from tests.support.service import Service

Policy = dict[str, np.ndarray[Any, Any]]


def policy(version: int, cells: int = 40_000) -> Policy:
    """Return a version's cells: those of the version before, a hundred of them changed; every bit pattern is there."""
    rng = np.random.default_rng(7)
    weights = rng.integers(0, 2**16, cells, dtype=np.uint16)
    for number in range(1, version + 1):
        step = np.random.default_rng(number)
        weights[step.integers(0, cells, 100)] += step.integers(1, 5, 100).astype(np.uint16)
    return {"a.weight": weights[: cells // 2].reshape(-1, 100), "b.weight": weights[cells // 2 :]}


def blank(like: Policy) -> Policy:
    return {name: np.zeros_like(cells) for name, cells in like.items()}


def equal(one: Policy, other: Policy) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


def opened(
    service: Service, run: str, token: str | None = None, *, retry_s: float = TOTAL_S, **options: Any
) -> Registry:
    """Open a run through a service, with kernels that need no compiling."""
    store = ServiceStore(service.url, token or service.token)
    made = PushOptions(**({"dtype": "keep", "keyframe_share": 1e9} | options))
    around = Dependencies(retrying=lambda store: RetryStore(store, RetryPolicy(total_s=retry_s)))
    return Registry(
        store,
        run,
        Options(push=made, owns_store=True, compute=ComputeOptions(backend="reference")),
        dependencies=around,
    )
