"""Members that never talk to each other train one model through a store, and hold the same bits."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulse_kernels import get_backend
from pulse_kernels.select import outer_loops
from pulse_registry.errors import CorruptObject, Diverged, Fenced, InvalidArgument, StoreUnavailable
from pulse_registry.outer.contributions import Contributions
from pulse_registry.outer.log import OuterLog
from pulse_registry.outer.masters import WholeMasters
from pulse_registry.outer.member import Member
from pulse_registry.outer.weights import OuterWeights
from pulse_registry.store import MemoryStore, Store
from pulse_registry.testing import Fault, FaultStore
from pulse_registry.weights.arrays import Weights
from pulse_registry.weights.cell_space import Geometry
from pulse_schemas import Layout, Tensor
from pulse_schemas.outer import Rates, StartRecord

BACKEND = get_backend("reference")
GEOMETRY = Geometry(Layout(tensors=(Tensor(name="w", dtype="BF16", shape=(30, 50)),)))
LIVE = Geometry(Layout(tensors=(Tensor(name="w", dtype="F32", shape=(30, 50)),)))
RATES = Rates(inner_steps=8, rate=0.7, momentum=0.9)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def version() -> Weights:
    cells = (np.random.default_rng(1).standard_normal(GEOMETRY.cells) * 0.02).astype(np.float32)
    return Weights(GEOMETRY, [(cells.view(np.uint32) >> 16).astype(np.uint16).reshape(30, 50)])


@dataclass
class Trainer:
    """A member with its model."""

    member: Member
    weights: OuterWeights
    model: Weights
    seed: int
    rounds: int = 0

    def train(self) -> None:
        """Make the inner steps of a round."""
        self.rounds += 1
        rng = np.random.default_rng(1000 * self.seed + self.rounds)
        tensor = self.model.arrays[0].view(np.float32)
        tensor -= (rng.standard_normal(tensor.shape) * 1e-5 + 3e-6).astype(np.float32)

    def contribute(self) -> bool:
        return self.member.contribute(WholeMasters(GEOMETRY, self.model), 8).counts

    def follow(self) -> int:
        """Make the outer steps of what has ended; return how many."""
        self.member.poll()
        done = self.member.catch_up()
        if done:
            self.weights.store(WholeMasters(GEOMETRY, self.model))
        return len(done)


class Site:
    """A store, and trainers at it."""

    def __init__(self, quorum: int = 2, patience: int = 3, weighting: str = "equal") -> None:
        self.store, self.clock = MemoryStore(uuid.uuid4().hex), Clock()
        self._settings: dict[str, Any] = {"quorum": quorum, "patience": patience, "weighting": weighting}

    def start(self, common: dict[str, Any], **changed: Any) -> StartRecord:
        weights = OuterWeights(GEOMETRY, BACKEND, outer_loops("reference"))
        weights.begin(version().copy_of)
        given: dict[str, Any] = {
            "version": 0, "layout": GEOMETRY.id, "digest": weights.digest().hex(), "rates": RATES, "gain": 7.0,
            "values": "levels", "exponent": -18,
        }  # fmt: skip
        return StartRecord(**{**common, **given, **self._settings, **changed})

    def trainer(self, name: str, seed: int = 0, store: Store | None = None, loops: str = "reference") -> Trainer:
        store = store or self.store
        weights = OuterWeights(GEOMETRY, BACKEND, outer_loops(loops))
        weights.begin(version().copy_of)
        objects = Contributions(store, GEOMETRY, BACKEND)
        member = Member(name, OuterLog(store, "run"), objects, weights, grace_s=60.0, clock=self.clock)
        made = Trainer(member, weights, Weights.empty(LIVE), seed)
        member.join(self.start)
        weights.store(WholeMasters(GEOMETRY, made.model))
        return made


def same(trainers: list[Trainer]) -> None:
    """Assert that all hold the same weights, momentum and models, and each its own residual."""
    for held in ("theta", "momentum"):
        assert len({getattr(one.weights, held).tobytes() for one in trainers}) == 1, held
    assert len({one.model.arrays[0].tobytes() for one in trainers}) == 1
    assert len({one.weights.residual.tobytes() for one in trainers}) == len(trainers)


def test_three_trainers_hold_the_same_bits_after_each_round() -> None:
    site = Site(quorum=3)
    trainers = [site.trainer(name, seed, loops=loops) for seed, (name, loops) in
                enumerate([("a", "reference"), ("b", "numba"), ("c", "numba")])]  # fmt: skip
    before = trainers[0].weights.theta.copy()
    for round_ in range(1, 5):
        for one in trainers:
            one.train()
            assert one.contribute()
        assert [one.follow() for one in trainers] == [1, 1, 1]
        assert {one.member.round for one in trainers} == {round_}
        same(trainers)
    moved = trainers[0].weights.theta - before
    assert moved.mean() < 0  # as the models moved, and not the other way


def test_the_late_are_not_waited_for_after_grace_and_their_part_goes_out_with_the_next_round() -> None:
    site = Site(quorum=2)
    a, b, late = (site.trainer(name, seed) for seed, name in enumerate("abc"))
    for one in (a, b, late):
        one.train()
    a.contribute()
    b.contribute()
    assert (a.follow(), b.follow()) == (0, 0)
    site.clock.now = 61.0
    assert (a.follow(), b.follow()) == (1, 1)
    assert not late.contribute()
    held = late.weights.residual.copy()
    assert np.abs(held).max() > 0
    assert late.follow() == 1
    same([a, b, late])
    late.train()
    assert late.contribute()
    assert np.abs(late.weights.residual).sum() < np.abs(held).sum()


def test_who_joins_later_makes_all_steps_and_holds_the_same_bits() -> None:
    site = Site(quorum=1)
    first = site.trainer("a", 1)
    for _ in range(3):
        first.train()
        first.contribute()
        first.follow()
    second = site.trainer("b", 2)
    assert second.member.round == 3
    same([first, second])


def test_a_twin_fences_the_elder() -> None:
    site = Site(quorum=1)
    elder = site.trainer("a", 1)
    younger = site.trainer("a", 2)
    elder.train()
    with pytest.raises(Fenced, match="as 'a'"):
        elder.contribute()
    younger.train()
    assert younger.contribute()


def test_other_settings_than_the_rounds_were_started_with_are_refused() -> None:
    site = Site()
    site.trainer("a")
    other = site.trainer("b")
    with pytest.raises(InvalidArgument, match="with quorum 2, and not with 1"):
        other.member.join(lambda common: site.start(common, quorum=1))


def test_who_leaves_is_not_waited_for() -> None:
    site = Site(quorum=1)
    a, b = site.trainer("a", 1), site.trainer("b", 2)
    b.member.leave()
    a.train()
    a.contribute()
    assert a.follow() == 1
    with pytest.raises(InvalidArgument, match="has not joined, or has left"):
        b.contribute()


@pytest.mark.parametrize("action", ["fail_before", "fail_after"])
@pytest.mark.parametrize("what", ["objects/", "log/"])
def test_a_contribution_without_an_answer_is_made_once(action: Any, what: str) -> None:
    site, quiet = Site(quorum=1), [True]
    fault = Fault(action, "put", matches=lambda _, key: not quiet[0] and what in key, times=1)
    one = site.trainer("a", 1, FaultStore(site.store, [fault]))
    twin = Site(quorum=1).trainer("a", 1)
    for each in (one, twin):
        each.train()
    quiet[0] = False
    with pytest.raises(StoreUnavailable):
        one.contribute()
    assert one.contribute()
    assert twin.contribute()
    one.follow()
    twin.follow()
    assert one.weights.theta.tobytes() == twin.weights.theta.tobytes()
    assert one.weights.residual.tobytes() == twin.weights.residual.tobytes()


def test_what_was_sent_without_an_answer_is_taken_from_the_residual_though_nobody_asks_again() -> None:
    site, quiet = Site(quorum=1), [True]
    fault = Fault("fail_after", "put", matches=lambda _, key: not quiet[0] and "log/" in key, times=1)
    one = site.trainer("a", 1, FaultStore(site.store, [fault]))
    twin = Site(quorum=1).trainer("a", 1)
    for each in (one, twin):
        each.train()
    quiet[0] = False
    with pytest.raises(StoreUnavailable):
        one.contribute()
    twin.contribute()
    assert (one.follow(), twin.follow()) == (1, 1)
    assert one.weights.residual.tobytes() == twin.weights.residual.tobytes()


def test_a_round_takes_one_part_of_a_member_however_often_it_is_sent() -> None:
    site = Site(quorum=2)
    one = site.trainer("a", 1)
    one.train()
    first = one.member.contribute(WholeMasters(GEOMETRY, one.model), 8)
    residual, keys = one.weights.residual.copy(), [*site.store.list("")]
    one.train()
    assert one.member.contribute(WholeMasters(GEOMETRY, one.model), 8) == first
    assert first.counts
    assert (one.weights.residual.tobytes(), [*site.store.list("")]) == (residual.tobytes(), keys)


def test_who_comes_too_late_puts_nothing() -> None:
    site = Site(quorum=1)
    one, late = site.trainer("a", 1), site.trainer("b", 2)
    for each in (one, late):
        each.train()
    one.contribute()
    one.follow()
    site.clock.now = 61.0
    assert one.follow() == 1
    keys = [*site.store.list("")]
    assert not late.contribute()
    assert [*site.store.list("")] == keys


@pytest.mark.parametrize("action", ["fail_before", "fail_after"])
def test_who_leaves_without_an_answer_leaves_once_when_it_tries_again(action: Any) -> None:
    site, quiet = Site(quorum=1), [True]
    fault = Fault(action, "put", matches=lambda *_: not quiet[0], times=1)
    one, other = site.trainer("a", 1, FaultStore(site.store, [fault])), site.trainer("b", 2)
    quiet[0] = False
    with pytest.raises(StoreUnavailable):
        one.member.leave()
    one.member.leave()
    one.member.leave()
    other.train()
    other.contribute()
    assert other.follow() == 1
    assert len([*site.store.list("outer/log/")]) == 5  # start, two join, one leaves, one contributes


def test_weights_that_something_else_has_changed_are_found_before_they_are_sent() -> None:
    site = Site(quorum=1)
    one = site.trainer("a", 1)
    one.train()
    one.contribute()
    one.follow()
    one.train()
    one.weights.theta[7] *= 2
    keys = [*site.store.list("outer/log/")]
    with pytest.raises(Diverged, match="round 1: something has changed the weights that member 'a'"):
        one.contribute()
    assert [*site.store.list("outer/log/")] == keys


def test_who_waits_hears_that_another_process_has_taken_its_name() -> None:
    site = Site(quorum=2)
    elder = site.trainer("a", 1)
    elder.train()
    elder.contribute()
    site.trainer("a", 2)
    with pytest.raises(Fenced, match="as 'a'"):
        elder.follow()


def test_a_damaged_contribution_is_told_and_nothing_is_stepped() -> None:
    site = Site(quorum=2)
    a, b = site.trainer("a", 1), site.trainer("b", 2)
    for one in (a, b):
        one.train()
        one.contribute()
    key = next(key for key in site.store.list("outer/objects/") if "-b-" in key)
    data = bytearray(site.store.get(key))
    data[-1] ^= 1
    site.store.put(key, bytes(data))
    before = a.weights.theta.tobytes()
    with pytest.raises(CorruptObject, match="-b-"):
        a.follow()
    assert (a.weights.theta.tobytes(), a.member.round) == (before, 0)


ACTION = st.tuples(st.sampled_from(["train", "contribute", "follow", "wait", "rejoin"]), st.integers(0, 3))


@pytest.mark.slow
@given(actions=st.lists(ACTION, max_size=50), weighting=st.sampled_from(["equal", "steps"]))
def test_whatever_the_order_all_that_follow_hold_the_same_bits(actions: list[tuple[str, int]], weighting: str) -> None:
    site = Site(quorum=2, weighting=weighting)
    trainers = {number: site.trainer(f"m{number}", number) for number in range(3)}
    for what, number in actions:
        if number == 3 and number not in trainers:
            trainers[3] = site.trainer("m3", 3)
        one = trainers[number % len(trainers)]
        match what:
            case "train":
                one.train()
            case "contribute":
                one.contribute()
            case "follow":
                one.follow()
            case "wait":
                site.clock.now += 30.0
            case "rejoin":  # a process that died, and comes back without its residual
                trainers[number % len(trainers)] = site.trainer(one.member.name, one.seed + 10)
    site.clock.now += 1000.0
    for _ in range(2):
        for one in trainers.values():
            while one.follow():
                pass
    rounds = {one.member.round for one in trainers.values()}
    assert len(rounds) == 1
    for held in ("theta", "momentum"):
        assert len({getattr(one.weights, held).tobytes() for one in trainers.values()}) == 1
