"""Rounds as versions of a real run: pushed by one member, compared by all, taken over where that one is gone."""

from __future__ import annotations

import uuid

import ml_dtypes
import numpy as np
import pytest

import pulse_registry
from pulse_kernels.select import outer_loops
from pulse_registry import PushOptions, Registry
from pulse_registry.errors import Diverged, Fenced, NotFound
from pulse_registry.outer.versions import RoundVersions
from pulse_registry.outer.weights import OuterWeights
from tests.unit.outer.test_member import BACKEND, GEOMETRY, Clock, version


class Run:
    """A run of a registry, as `RoundVersions` wants it."""

    def __init__(self, root: str) -> None:
        self.root, self.pushed = root, list[int]()
        self.registry = self._open()

    def digest(self, number: int) -> str | None:
        try:
            return self.registry.version(number).digest
        except NotFound:
            return None

    def push(self, number: int, weights: OuterWeights) -> None:
        [group] = GEOMETRY.groups
        cells = weights.version_cells(group).view(ml_dtypes.bfloat16).reshape(30, 50)
        for _ in range(2):
            if len(self.registry.versions()) != number:
                return  # another one was faster
            try:
                self.registry.push(number, {"w": cells})
                self.pushed.append(number)
                return
            except Fenced:
                self.registry.close()
                self.registry = self._open()

    def _open(self) -> Registry:
        return pulse_registry.open(self.root, run="run", push=PushOptions(dtype="keep"))


def outer_weights() -> OuterWeights:
    weights = OuterWeights(GEOMETRY, BACKEND, outer_loops("numba"))
    weights.begin(version().copy_of)
    return weights


def stepped(weights: OuterWeights, seed: int) -> None:
    weights.theta += (np.random.default_rng(seed).standard_normal(len(weights.theta)) * 1e-4).astype(np.float32)


@pytest.fixture
def root() -> str:
    return f"memory://{uuid.uuid4().hex}"


def test_the_first_by_name_pushes_and_the_others_compare(root: str) -> None:
    clock, runs = Clock(), {name: Run(root) for name in "ab"}
    versions = {name: RoundVersions(run, 0, name, takeover_s=30.0, clock=clock) for name, run in runs.items()}
    held = {name: outer_weights() for name in runs}
    runs["a"].push(0, held["a"])
    for round_ in (1, 2):
        for weights in held.values():
            stepped(weights, round_)
        assert not versions["b"].settle(round_, held["b"], "ab")
        assert versions["a"].settle(round_, held["a"], "ab")
        assert versions["b"].settle(round_, held["b"], "ab")
    assert (runs["a"].pushed, runs["b"].pushed) == ([0, 1, 2], [])
    found = runs["b"].registry.load(2, framework="numpy")["w"]
    assert (
        np.asarray(found).view(np.uint16).reshape(-1).tolist() == held["b"].version_cells(GEOMETRY.groups[0]).tolist()
    )


def test_who_is_gone_is_followed_by_the_next_and_may_come_back(root: str) -> None:
    clock, runs = Clock(), {name: Run(root) for name in "ab"}
    versions = {name: RoundVersions(run, 0, name, takeover_s=30.0, clock=clock) for name, run in runs.items()}
    held = {name: outer_weights() for name in runs}
    runs["a"].push(0, held["a"])
    for weights in held.values():
        stepped(weights, 1)
    assert not versions["b"].settle(1, held["b"], "ab")
    clock.now = 31.0
    assert versions["b"].settle(1, held["b"], "ab")
    assert versions["a"].settle(1, held["a"], "ab")  # it wakes, and finds it there
    for weights in held.values():
        stepped(weights, 2)
    assert versions["a"].settle(2, held["a"], "ab")  # it is fenced, and begins another term
    assert versions["b"].settle(2, held["b"], "ab")
    assert (runs["a"].pushed, runs["b"].pushed) == ([0, 2], [1])


def test_other_weights_are_found(root: str) -> None:
    clock, runs = Clock(), {name: Run(root) for name in "ab"}
    versions = {name: RoundVersions(run, 0, name, takeover_s=30.0, clock=clock) for name, run in runs.items()}
    held = {name: outer_weights() for name in runs}
    runs["a"].push(0, held["a"])
    for weights in held.values():
        stepped(weights, 1)
    held["b"].theta[77] *= 2
    assert versions["a"].settle(1, held["a"], "ab")
    with pytest.raises(Diverged, match=r"round 1: version 1 has digest [0-9a-f]{32}, and the weights of member 'b'"):
        versions["b"].settle(1, held["b"], "ab")
