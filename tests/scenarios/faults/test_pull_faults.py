"""Every store call of a pull fails or lies: the weights get to the version or stay as they were, bit for bit."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from pulse_registry.errors import BaseMismatch, CorruptObject, NotFound, StoreUnavailable
from pulse_registry.registry import Registry
from pulse_registry.testing import Fault, FaultStore
from tests.support.records import DictStore
from tests.support.registries import (
    Model,
    bits,
    calls_of,
    change,
    copied,
    failing,
    garbage,
    quick,
    settle,
    small_model,
)
from tests.support.sampling import EVERY_CALL, places, slow_but

VERSIONS = 7


@functools.cache
def model_at(version: int) -> Model:
    """Return the weights of a version; they are not to be changed."""
    model = small_model()
    for number in range(version):
        change(model, seed=number)
    return model


def a_run(coder: str, keyframe_every: int | None) -> DictStore:
    """Return a store of a run of all versions."""
    return copied(_a_run(coder, keyframe_every))


@functools.cache
def _a_run(coder: str, keyframe_every: int | None) -> DictStore:
    store = DictStore()
    with quick(store, coder=coder, keyframe_share=1e9, keyframe_every=keyframe_every) as registry:
        for version in range(VERSIONS):
            registry.push(version, model_at(version))
            settle(registry)
    return store


@dataclass(frozen=True)
class Pull:
    """A pull to try: what the worker holds, and where it goes."""

    name: str
    have: int | None
    target: int
    coder: str = "gap"
    keyframe_every: int | None = None
    knows: bool = True  # whether the registry that pulls is the one that brought the worker where it is


PULLS = [
    Pull("from nothing", None, 6),
    Pull("from nothing, by a late keyframe", None, 6, keyframe_every=3),
    Pull("from nothing, by class patches", None, 5, coder="class"),
    Pull("one ahead", 5, 6),
    Pull("five ahead", 1, 6),
    Pull("five ahead by class patches", 1, 6, coder="class"),
    Pull("back by inverses", 6, 2),
    Pull("back to a keyframe", 6, 0, coder="class"),
    Pull("by another registry", 3, 5, knows=False),
]


def open_worker(pull: Pull, store, retries: bool) -> tuple[Registry, Model]:
    registry = quick(store, retries=retries, undo_share=0.0)
    weights = garbage(model_at(0))
    if pull.have is not None:
        if pull.knows:
            registry.pull(pull.have, into=weights)
        else:
            for name, cells in model_at(pull.have).items():
                weights[name][...] = cells
    return registry, weights


@EVERY_CALL
@pytest.mark.parametrize("pull", slow_but(PULLS[::2], PULLS), ids=lambda pull: pull.name)
def test_a_pull_that_loses_a_call_leaves_the_weights_as_they_were_and_can_be_repeated(pull: Pull, every: bool) -> None:
    store = a_run(pull.coder, pull.keyframe_every)
    wanted = bits(model_at(pull.target))
    faulty, outage = failing(store)
    registry, weights = open_worker(pull, faulty, retries=False)
    with registry:
        calls = calls_of(lambda: registry.pull(pull.target, into=weights), outage)
    assert len(calls) >= 2
    assert bits(weights) == wanted
    for retries in (False, True):
        for nth in places(calls, every):
            # A read that fails after it acted has done no more than one that fails before.
            for action in ("fail_before", "fail_after") if every or not retries else ("fail_before",):
                faulty, outage = failing(store)
                registry, weights = open_worker(pull, faulty, retries)
                was = bits(weights)
                with registry:
                    outage.arm(nth, action)
                    try:
                        registry.pull(pull.target, into=weights)
                    except StoreUnavailable:
                        assert not retries, "a single failure is what retries are for"
                        assert bits(weights) == was
                    else:
                        assert bits(weights) == wanted
                        assert retries or action == "fail_after", "no call of a pull is without use"
                    outage.heal()
                    registry.pull(pull.target, into=weights)
                    assert bits(weights) == wanted


@EVERY_CALL
@pytest.mark.parametrize("action", ["flip_bit", "truncate"])
@pytest.mark.parametrize("pull", slow_but(PULLS[::2], PULLS), ids=lambda pull: pull.name)
def test_a_pull_that_is_lied_to_asks_again_and_takes_no_lie_for_the_truth(pull: Pull, action, every: bool) -> None:
    store = a_run(pull.coder, pull.keyframe_every)
    wanted = bits(model_at(pull.target))
    faulty, outage = failing(store)
    registry, weights = open_worker(pull, faulty, retries=False)
    with registry:
        calls = calls_of(lambda: registry.pull(pull.target, into=weights), outage)
    gets = [call for call in calls if call[0] == "get"]
    for nth in places(gets, every):
        for seed in range(3) if every else (nth,):
            armed: list[bool] = []
            fault = Fault(action, verb="get", matches=lambda verb, key, armed=armed: bool(armed), nth=nth)
            lying = FaultStore(store, [fault], seed=seed)
            registry, weights = open_worker(pull, lying, retries=False)
            armed.append(True)
            with registry:
                registry.pull(pull.target, into=weights)
            assert lying.fired
            assert bits(weights) == wanted, f"seed {seed}"


@pytest.mark.parametrize("action", ["flip_bit", "truncate"])
@pytest.mark.parametrize("pull", slow_but(PULLS[::2], PULLS), ids=lambda pull: pull.name)
def test_a_pull_that_hears_nothing_but_lies_of_an_object_goes_another_way_or_is_refused(pull: Pull, action) -> None:
    store = a_run(pull.coder, pull.keyframe_every)
    faulty, outage = failing(store)
    registry, weights = open_worker(pull, faulty, retries=False)
    with registry:
        calls = calls_of(lambda: registry.pull(pull.target, into=weights), outage)
    keys = {key for verb, key in calls if verb == "get"}
    for key in sorted(key for key in keys if store.objects.get(key) is not None and not key.endswith("head")):
        armed: list[bool] = []
        fault = Fault(action, verb="get", matches=lambda verb, of, key=key, armed=armed: bool(armed) and of == key)
        lying = FaultStore(store, [fault], seed=3)
        registry, weights = open_worker(pull, lying, retries=False)
        was = bits(weights)
        armed.append(True)
        with registry:
            try:
                avoided = registry.pull(pull.target, into=weights).avoided
            except (CorruptObject, NotFound):
                assert bits(weights) == was
            else:
                assert bits(weights) == bits(model_at(pull.target))
                assert [f"run/{of}" for of in avoided] == [key]
            assert sum(of == key for _, _, of in lying.fired) >= 2, "it was asked for again"
            armed.clear()
            registry.pull(pull.target, into=weights)
            assert bits(weights) == bits(model_at(pull.target))


WRONG: dict[str, Callable[[Model], None]] = {
    "one cell by the smallest step": lambda model: _add(model, 1),
    "one cell by a large step": lambda model: _add(model, 0x1234),
    "one cell of another sign": lambda model: _add(model, 0x8000),
    "another version": lambda model: _become(model, model_at(6)),
    "other cells": lambda model: _become(model, garbage(model)),
}


def _add(model: Model, step: int) -> None:
    flat = model["a.weight"].reshape(-1).view("u2")
    cell = int((flat != model_at(2)["a.weight"].reshape(-1).view("u2")).argmax())  # one that the first patch changes
    flat[cell] += step


def _become(model: Model, other: Model) -> None:
    for name, array in model.items():
        array[...] = other[name]


@pytest.mark.parametrize("coder", ["gap", "class"])
@pytest.mark.parametrize("target", [2, 3, 5, 0])
@pytest.mark.parametrize("wrong", WRONG)
def test_weights_that_are_not_what_they_were_pulled_as_are_refused(wrong: str, target: int, coder: str) -> None:
    store = a_run(coder, None)
    with quick(store, undo_share=0.0) as registry:
        worker = garbage(model_at(0))
        registry.pull(1, into=worker)
        WRONG[wrong](worker)
        was = bits(worker)
        if registry.route(target, have=1).legs[0].kind == "keyframe":
            registry.pull(target, into=worker)  # replaces them whole, whatever they hold
            assert bits(worker) == bits(model_at(target))
            return
        if target == 0:
            worker["a.weight"].reshape(-1).view("u2")[:] = model_at(6)["a.weight"].reshape(-1).view("u2") ^ 0x7
            was = bits(worker)
        with pytest.raises((BaseMismatch, CorruptObject), match=r"not version 1|other weights than version"):
            registry.pull(target, into=worker)
        assert bits(worker) == was
        with pytest.raises(BaseMismatch, match="not those of version 1"):
            registry.verify(1, model=worker)
        registry.pull(target, into=worker, replace=True)
        assert bits(worker) == bits(model_at(target))


@pytest.mark.slow
@pytest.mark.parametrize("coder", ["gap", "class"])
def test_weights_that_another_registry_has_moved_on_are_never_patched_from_where_they_were(coder: str) -> None:
    store = a_run(coder, None)
    refused = 0
    with quick(store) as one, quick(store) as other:
        for moved, target in itertools.product(range(VERSIONS), repeat=2):
            worker = garbage(model_at(0))
            one.pull(1, into=worker)
            other.pull(moved, into=worker)
            try:
                one.pull(target, into=worker)
            except BaseMismatch:
                refused += 1
                assert bits(worker) == bits(model_at(moved))
            else:
                # To pull what is remembered reads no cell: it is the one thing that goes unseen.
                assert bits(worker) == bits(model_at(target if target != 1 else moved))
    assert refused >= VERSIONS


def test_a_failed_load_leaves_nothing_open() -> None:
    store = a_run("gap", 3)
    faulty, outage = failing(store)
    with quick(faulty) as registry:
        calls = len(calls_of(lambda: registry.pull(6, into=garbage(model_at(0))), outage))
    for nth in range(1, calls + 1):
        with quick(faulty) as registry:
            outage.arm(nth, "fail_before")
            with pytest.raises(StoreUnavailable):
                registry.load(6)
            outage.heal()
            assert set(registry.load(6)) == set(model_at(0))
