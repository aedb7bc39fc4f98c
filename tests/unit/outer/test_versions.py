"""Rounds as versions of a real run: pushed by one member, compared by all, taken over where that one is gone."""

from __future__ import annotations

import uuid

import ml_dtypes
import numpy as np
import pytest

import pulse_registry
from pulse_kernels.select import outer_loops
from pulse_registry import PushOptions, Registry
from pulse_registry.errors import Diverged, Fenced, Gone, NotFound
from pulse_registry.outer.versions import RoundVersions
from pulse_registry.outer.weights import OuterWeights
from pulse_registry.retention import RetentionPolicy
from tests.unit.outer.test_member import BACKEND, GEOMETRY, Clock, version


class Run:
    """A run of a registry, as `RoundVersions` wants it."""

    def __init__(self, root: str) -> None:
        self.root, self.pushed = root, list[int]()
        self.registry = self._open()

    def digest(self, number: int) -> str | None:
        try:
            return self.registry.version(number).digest
        except Gone:
            raise
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


def settled(versions: RoundVersions, run: Run, weights: OuterWeights, round_: int) -> bool:
    return versions.settle(round_, weights.digest().hex(), "ab", lambda number: run.push(number, weights))


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
        assert not settled(versions["b"], runs["b"], held["b"], round_)
        assert settled(versions["a"], runs["a"], held["a"], round_)
        assert settled(versions["b"], runs["b"], held["b"], round_)
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
    assert not settled(versions["b"], runs["b"], held["b"], 1)
    clock.now = 31.0
    assert settled(versions["b"], runs["b"], held["b"], 1)
    assert settled(versions["a"], runs["a"], held["a"], 1)  # it wakes, and finds it there
    for weights in held.values():
        stepped(weights, 2)
    assert settled(versions["a"], runs["a"], held["a"], 2)  # it is fenced, and begins another term
    assert settled(versions["b"], runs["b"], held["b"], 2)
    assert (runs["a"].pushed, runs["b"].pushed) == ([0, 2], [1])


def test_other_weights_are_found(root: str) -> None:
    clock, runs = Clock(), {name: Run(root) for name in "ab"}
    versions = {name: RoundVersions(run, 0, name, takeover_s=30.0, clock=clock) for name, run in runs.items()}
    held = {name: outer_weights() for name in runs}
    runs["a"].push(0, held["a"])
    for weights in held.values():
        stepped(weights, 1)
    held["b"].theta[77] *= 2
    assert settled(versions["a"], runs["a"], held["a"], 1)
    with pytest.raises(Diverged, match=r"round 1: version 1 has digest [0-9a-f]{32}, and the weights of member 'b'"):
        settled(versions["b"], runs["b"], held["b"], 1)


def test_a_version_that_was_retired_meanwhile_is_not_waited_for(root: str) -> None:
    run, weights = Run(root), outer_weights()
    for number in range(3):
        run.push(number, weights)
        stepped(weights, number)
    run.registry.close()  # a keyframe may be on its way, without which version 2 needs the others
    run.registry = run._open()
    policy = RetentionPolicy(keep_last=1, keep_seconds=0, grace_seconds=0, orphan_seconds=0)
    for _ in range(3):
        run.registry.gc(policy, dry_run=False)
    with pytest.raises(Gone):
        run.digest(1)
    slow = RoundVersions(run, 0, "b", takeover_s=30.0, clock=Clock())
    assert settled(slow, run, weights, 1)


def test_a_version_that_is_retired_between_two_looks_is_not_waited_for() -> None:
    """Its member was stopped while it pushed: the others made it, and many more."""
    looks = []

    class Overtaken:
        def digest(self, number: int) -> str | None:
            looks.append(number)
            if len(looks) > 1:
                raise Gone("version 1 was retired")
            return None

        def push(self, number: int, weights: OuterWeights) -> None: ...

        def close(self) -> None: ...

    versions = RoundVersions(Overtaken(), 0, "a", takeover_s=30.0, clock=Clock())
    assert versions.settle(1, "0" * 32, "ab", lambda _: None)
    assert looks == [1, 1]
