"""What workers hold: found again by memory, never taken for other memory, and keeping no weights alive."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import pulse_registry
from pulse_kernels import CELL_TYPES
from pulse_registry.format.sparse_update import HostUpdate, SparseUpdate
from pulse_registry.pull.replica import Replicas, ReplicaState, UndoStep
from pulse_registry.weights.cell_space import Group
from pulse_registry.weights.model import read_model

OVER: dict[str, Callable[[bytearray], Any]] = {
    "numpy": lambda memory: np.frombuffer(memory, np.float32),
    "torch": lambda memory: torch.frombuffer(memory, dtype=torch.float32),
}
"""Tensors over memory at an address of our choice, each with an owner of its own."""
by_framework = pytest.mark.parametrize("make", [np.zeros, torch.zeros], ids=["numpy", "torch"])


def of(held: Replicas, model: Any) -> ReplicaState:
    return held.of(read_model(model))


def step(base: int, target: int, cells: int) -> UndoStep:
    group = Group(0, 0, 1000, CELL_TYPES["BF16"], ())
    change = SparseUpdate(group, np.zeros(cells, np.uint32), np.zeros(cells, np.uint16), np.zeros(cells, np.uint16))
    return UndoStep(base, target, HostUpdate((change,)))


@by_framework
def test_new_weights_hold_nothing_known(make: Callable[..., Any]):
    held = of(Replicas(), {"w": make(4)})
    assert (held.version, held.undo, held.torn) == (None, [], None)


@by_framework
def test_the_same_memory_is_found_through_new_tensor_objects(make: Callable[..., Any]):
    known, memory = Replicas(), make(12)
    of(known, {"v": memory[:6], "w": memory[6:]}).version = 3
    gc.collect()
    assert of(known, {"v": memory[:6], "w": memory[6:]}).version == 3
    assert of(known, {"w": memory[6:], "v": memory[:6]}).version == 3


def test_a_module_is_found_through_each_new_state_dict():
    known, net = Replicas(), torch.nn.Linear(3, 4)
    of(known, net).version = 2
    assert of(known, net.state_dict()).version == 2
    assert of(known, {name: p.data.view(p.shape) for name, p in net.named_parameters()}).version == 2


@by_framework
def test_other_memory_other_shapes_and_other_names_are_other_weights(make: Callable[..., Any]):
    known, memory = Replicas(), make((4, 4))
    of(known, {"w": memory}).version = 1
    for other in (make((4, 4)), memory.T, memory.reshape(16), memory[:2]):
        assert of(known, {"w": other}).version is None
    assert of(known, {"w": memory, "x": make(1)}).version is None
    assert of(known, {"w": memory}).version == 1


@by_framework
def test_names_that_swap_their_memory_are_other_weights(make: Callable[..., Any]):
    known, a, b = Replicas(), make(4), make(4)
    of(known, {"a": a, "b": b}).version = 1
    assert of(known, {"a": b, "b": a}).version is None


@pytest.mark.parametrize("over", OVER.values(), ids=OVER)
def test_memory_that_was_freed_and_handed_out_again_is_not_taken_for_the_old(over: Callable[[bytearray], Any]):
    known, memory = Replicas(), bytearray(4000)
    tensor = over(memory)
    before = read_model({"w": tensor})["w"].identity
    of(known, {"w": tensor}).version = 7
    del tensor  # its memory is taken to be free now; the next one lies at the same address
    tensor = over(memory)
    assert read_model({"w": tensor})["w"].identity == before
    assert of(known, {"w": tensor}).version is None


@pytest.mark.parametrize("over", OVER.values(), ids=OVER)
@pytest.mark.parametrize("replaced", ["a", "b", "c"])
def test_one_tensor_of_several_that_is_new_at_its_old_address_makes_new_weights(
    over: Callable[[bytearray], Any], replaced: str
):
    known, memory = Replicas(), {name: bytearray(4000) for name in "abc"}
    model = {name: over(memory[name]) for name in "abc"}
    of(known, model).version = 7
    assert of(known, dict(model)).version == 7
    del model[replaced]
    model[replaced] = over(memory[replaced])
    assert of(known, model).version is None


@by_framework
def test_entries_of_dead_weights_are_let_go(make: Callable[..., Any]):
    known = Replicas()
    for size in range(1, 40):
        of(known, {"w": make(size)})
        assert 1 <= len(known) <= 2


@by_framework
def test_nothing_keeps_a_pulled_model_alive(make: Callable[..., Any]):
    with pulse_registry.open(
        "memory://held-alive", run=make.__module__ or "torch", push=pulse_registry.PushOptions(dtype="keep")
    ) as registry:
        trainer = make((300, 300))
        for number in range(3):
            trainer[number, number] = 1
            registry.push(number, {"w": trainer})
        worker = make((300, 300))
        for version in (0, 1, 2, 1):
            assert registry.pull(version, into={"w": worker}).version == version
        owners = [weakref.ref(worker), weakref.ref(read_model({"w": worker})["w"].owner)]
        del worker
        gc.collect()
        assert [owner() for owner in owners] == [None, None]
        pulled = registry.load()
        owners = [weakref.ref(pulled["w"])]
        del pulled
        gc.collect()
        assert owners[0]() is None


def test_nothing_keeps_a_pushed_model_alive():
    with pulse_registry.open(
        "memory://held-pushed", run="run", push=pulse_registry.PushOptions(dtype="keep")
    ) as registry:
        model = torch.nn.Linear(30, 30)
        for number in range(2):
            registry.push(number, model)
        alive = weakref.ref(model.weight)
        del model
        gc.collect()
        assert alive() is None


# -- what is remembered ------------------------------------------------------------------------------------------------


def test_the_oldest_steps_go_when_all_take_more_than_the_limit():
    held, nbytes = ReplicaState(), step(0, 1, 10).nbytes
    assert nbytes == 10 * (4 + 2 + 2)
    for number in range(4):
        held.remember(step(number, number + 1, 10), limit=2 * nbytes)
    assert [(kept.base, kept.target) for kept in held.undo] == [(2, 3), (3, 4)]
    held.remember(step(4, 5, 21), limit=2 * nbytes)
    assert held.undo == []


def test_to_forget_is_to_know_nothing():
    held = ReplicaState(3, [step(2, 3, 1)], [])
    held.forget()
    assert (held.version, held.undo, held.torn) == (None, [], None)


def test_a_full_pass_that_confirms_the_version_keeps_the_way_back():
    held = ReplicaState(3, [step(2, 3, 1)])
    held.now_at(3)
    assert (held.version, len(held.undo)) == (3, 1)
    held.now_at(5)
    assert (held.version, held.undo) == (5, [])


def test_a_full_pass_over_torn_weights_forgets_what_was_torn():
    held = ReplicaState(3, [step(2, 3, 1)], torn=step(3, 4, 1).update)
    held.now_at(3)
    assert (held.version, held.undo, held.torn) == (3, [], None)
