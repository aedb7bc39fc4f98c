"""A trainer and workers with a bad network between them and their store: what they do, and how long it takes them."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import pytest

from pulse_registry.errors import CorruptObject, PulseError, StoreUnavailable
from pulse_registry.format.keyframe import KeyframeForm
from pulse_registry.options import ComputeOptions, Options
from pulse_registry.push import keyframe as push_keyframe
from pulse_registry.push.options import PushOptions
from pulse_registry.registry import Registry
from pulse_registry.store import PrefixStore, Store
from pulse_registry.store.s3.location import S3Location
from pulse_registry.store.s3.store import S3Store
from pulse_registry.store.watchdog import LowSpeedLimit
from tests.support.registries import Model, bits, registry_with, settle
from tests.support.servers import S3Bucket

CELLS = 150_000
PIECE = 32 << 10
T = TypeVar("T")


def s3_store(bucket: S3Bucket, endpoint: str, prefix: str, *, answer_s: float = 4.0) -> Store:
    """Return a store in a bucket that is reached by another endpoint; credentials are in the environment."""
    place = S3Location(bucket.name, endpoint_url=endpoint, region=bucket.server.region, addressing_style="path")
    return PrefixStore(S3Store(place, answer_s=answer_s, low_speed=LowSpeedLimit(window_s=answer_s)), prefix)


@contextmanager
def small_pieces() -> Iterator[None]:
    """Cut keyframes into pieces so small that a small model has several."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(push_keyframe, "KeyframeForm", functools.partial(KeyframeForm, piece_bytes=PIECE))
        yield


def model_at(step: int) -> Model:
    """Return the weights of a step: 300 KB of BF16, of which 1 % change a step."""
    cells = np.random.default_rng(0).integers(0x3000, 0x4200, CELLS, dtype=np.uint16)
    for number in range(step):
        rng = np.random.default_rng(1000 + number)
        cells[rng.integers(0, CELLS, CELLS // 100)] += rng.integers(1, 9, CELLS // 100, dtype=np.uint16)
    return {"a": cells[: CELLS // 3].copy(), "b": cells[CELLS // 3 :].copy()}


@dataclass
class Journey:
    """What became of a trainer's pushes and workers' pulls.

    Attributes:
        pushes, pulls: seconds of each that succeeded.
        errors: what the others raised; each was tried again until it succeeded.
    """

    pushes: list[float] = field(default_factory=list)
    pulls: list[float] = field(default_factory=list)
    errors: list[PulseError] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """Of all that succeeded."""
        return sum(self.pushes) + sum(self.pulls)


def travel(open_store: Callable[[], Store], versions: int, *, patience: int = 20) -> Journey:
    """Push versions, pull each into a worker and the last into one that comes late; check every bit.

    What fails with StoreUnavailable or CorruptObject has changed nothing, and is tried again, ``patience`` times.
    """
    journey = Journey()
    options = PushOptions(dtype="keep", keyframe_every=4, keyframe_share=1e9)
    with (
        small_pieces(),
        registry_with(open_store(), Options(push=options, compute=ComputeOptions(backend="reference"))) as trainer,
        Registry(open_store(), "run", Options(compute=ComputeOptions(backend="reference"))) as worker,
        Registry(open_store(), "run", Options(compute=ComputeOptions(backend="reference"))) as late,
    ):
        weights: dict[str, np.ndarray[Any, Any]] = {name: np.zeros_like(cells) for name, cells in model_at(0).items()}
        was = bits(weights)
        for step in range(versions):
            model = model_at(step)
            pushed = _tried(lambda: trainer.push(step, model), journey, journey.pushes, patience)  # noqa: B023
            assert pushed.step == step
            settle(trainer)

            def untouched() -> None:
                assert bits(weights) == was  # noqa: B023

            _tried(lambda: worker.pull(into=weights), journey, journey.pulls, patience, after_error=untouched)
            was = bits(weights)
            assert was == bits(model), f"step {step}"
        found = _tried(late.load, journey, journey.pulls, patience)
        assert bits(found) == bits(model_at(versions - 1))
        assert [version.step for version in late.versions()] == list(range(versions)), "each push landed once"
    return journey


def _tried(
    act: Callable[[], T],
    journey: Journey,
    seconds: list[float],
    patience: int,
    after_error: Callable[[], None] = lambda: None,
) -> T:
    for left in reversed(range(patience)):
        began = time.monotonic()
        try:
            result = act()
        except (StoreUnavailable, CorruptObject) as error:
            journey.errors.append(error)
            after_error()
            if not left:
                raise
        else:
            seconds.append(time.monotonic() - began)
            return result
    raise AssertionError("patience is at least 1")
