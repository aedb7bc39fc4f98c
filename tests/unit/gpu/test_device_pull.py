"""A pull into a model on the device gives what one into host memory gives, undoes, and refuses what is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from pulse_registry.errors import BaseMismatch, CorruptObject, InvalidModel, LayoutMismatch
from pulse_registry.gpu import destination as target_module
from pulse_registry.registry import Registry
from pulse_registry.store import MemoryStore
from pulse_registry.testing import FaultStore
from pulse_registry.testing.fault import Fault
from tests.support.groups import small_groups
from tests.unit.gpu.models import Tensors, blank, changed, holds, made, on_device, on_host


@pytest.fixture(autouse=True)
def groups() -> Iterator[None]:
    with small_groups():
        yield


@pytest.fixture
def store(request: pytest.FixtureRequest) -> MemoryStore:
    return MemoryStore(request.node.name)


def history(store: MemoryStore, device: str, coders: list[str], *, counts: bool = False) -> list[Tensors]:
    """Push a keyframe and a patch a coder, in host memory; return the states."""
    model = made("cpu", counts=counts)
    states = []
    for step, coder in enumerate(["gap", *coders]):
        if step:
            changed(model, step, 30 + step, 71)
        with on_host(store, coder=coder) as registry:
            registry.push(step, model)
        states.append({name: tensor.clone() for name, tensor in model.items()})
    return states


def at_version(registry: Registry, version: int, model: Tensors, device: str) -> Tensors:
    """Return a worker's tensors that hold a version, and are known to."""
    worker = blank(model, device)
    registry.pull(version, into=worker)
    return worker


def test_a_worker_on_the_device_follows_patches_of_both_coders_in_tensors_that_stay_where_they_are(
    device: str, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target_module, "DECODED_BYTES", 128)  # two groups of three
    states = history(store, device, ["gap", "class"], counts=True)
    with on_device(store, device) as registry:
        worker = at_version(registry, 0, states[0], device)
        assert holds(worker, states[0])
        addresses = [tensor.data_ptr() for tensor in worker.values()]
        for version in (1, 2):
            result = registry.pull(version, into=worker)
            assert holds(worker, states[version])
            assert {"fetch", "decode", "verify", "apply"} <= set(result.phases)
        assert [tensor.data_ptr() for tensor in worker.values()] == addresses


def test_a_change_that_no_patch_touches_is_seen_on_the_device_if_all_cells_are_checked(
    device: str, store: MemoryStore
) -> None:
    states = history(store, device, ["gap"])
    with on_device(store, device) as registry:
        worker = at_version(registry, 0, states[0], device)
        untouched = worker["a.weight"].view(-1).view(torch.int16)[5:6]
        untouched ^= 1
        before = {key: tensor.clone() for key, tensor in worker.items()}
        with pytest.raises(BaseMismatch, match=r"not version 0: .*replace=True"):
            registry.pull(1, into=worker, check="all")
        assert holds(worker, before)
        untouched ^= 1
        registry.pull(1, into=worker, check="all")
        assert holds(worker, states[1])


@pytest.mark.slow
@pytest.mark.parametrize("batch", [64, 128])
def test_a_worker_that_is_behind_follows_a_chain_in_one_step(
    device: str, store: MemoryStore, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target_module, "WALKED_BYTES", batch)
    states = history(store, device, ["class", "class"])
    with on_device(store, device) as registry:
        worker = at_version(registry, 0, states[0], device)
        staged = registry.stage(2, into=worker)
        assert holds(worker, states[0])
        changes = list(staged.changes())
        assert {change.name for change in changes} <= set(worker)
        assert sum(len(change.at) for change in changes) == staged.changed
        for change in changes:
            cells = states[0][change.name].to(worker[change.name].dtype).view(-1).view(torch.int16).cpu()
            assert cells[torch.from_numpy(change.at)].tolist() == change.old.view(np.int16).tolist()
        result = staged.apply()
        assert holds(worker, states[2])
        assert result.objects == 2
        staged.undo()
        assert holds(worker, states[0])


@pytest.mark.slow
def test_a_worker_on_the_device_goes_back_in_memory(device: str, store: MemoryStore) -> None:
    states = history(store, device, ["gap", "class"])
    with on_device(store, device, undo_share=100.0) as registry:
        worker = at_version(registry, 0, states[0], device)
        registry.pull(1, into=worker)
        registry.pull(2, into=worker)
        for back in (1, 0):
            assert registry.pull(back, into=worker).objects == 0
            assert holds(worker, states[back])
        registry.pull(2, into=worker)
        assert registry.pull(0, into=worker).objects == 0, "two steps at once"
        assert holds(worker, states[0])


def test_a_worker_on_the_device_goes_back_by_inverted_patches(device: str, store: MemoryStore) -> None:
    states = history(store, device, ["gap"])
    with on_device(store, device, undo_share=0.0) as registry:
        worker = at_version(registry, 1, states[1], device)
        assert registry.pull(0, into=worker).objects == 1
        assert holds(worker, states[0])


@pytest.mark.parametrize("coder", ["gap", "class"])
def test_weights_that_are_not_the_base_are_refused_before_any_change(
    device: str, store: MemoryStore, coder: str
) -> None:
    states = history(store, device, [coder])
    with on_device(store, device) as registry:
        worker = at_version(registry, 0, states[0], device)
        worker["a.weight"].view(-1)[[1, 2, 3]] += 7
        found = {name: tensor.clone() for name, tensor in worker.items()}
        with pytest.raises(BaseMismatch):
            registry.pull(1, into=worker)
        assert holds(worker, found)
        registry.pull(1, into=worker, replace=True)
        assert holds(worker, states[1])


def test_a_damaged_patch_is_refused_before_any_change(device: str, store: MemoryStore) -> None:
    states = history(store, device, ["gap"])
    broken = FaultStore(store, [Fault("flip_bit", "get", lambda verb, key: "/objects/patch/" in key)])
    with on_device(broken, device) as registry:
        worker = at_version(registry, 0, states[0], device)
        with pytest.raises(CorruptObject):
            registry.pull(1, into=worker)
        assert holds(worker, states[0])


def test_a_worker_on_the_device_goes_around_a_damaged_patch(device: str, store: MemoryStore) -> None:
    model = made("cpu")
    with on_host(store, keyframe_every=1) as registry:
        registry.push(0, model)
        changed(model, 1, 30, 71)
        registry.push(1, model)
    lying = FaultStore(store, [Fault("flip_bit", verb="get", matches=lambda verb, key: "patch" in key, times=None)])
    with on_device(lying, device) as registry:
        worker = at_version(registry, 0, model, device)
        result = registry.pull(1, into=worker)
    assert holds(worker, model)
    assert ["/patch/" in key for key in result.avoided] == [True]


@pytest.mark.slow
def test_a_pull_that_a_push_on_the_device_made_reads_the_same_in_host_memory(device: str, store: MemoryStore) -> None:
    model = made(device)
    with on_device(store, device, coder="class") as registry, on_host(store) as reader:
        registry.push(0, model)
        changed(model, 4, 70)
        registry.push(1, model)
        worker = at_version(reader, 0, model, "cpu")
        reader.pull(1, into=worker)
        assert holds(worker, model)


@pytest.mark.slow
def test_small_floats_are_pushed_and_pulled_where_they_are(device: str, store: MemoryStore) -> None:
    def model(start: int) -> Tensors:
        cells = (torch.arange(24, dtype=torch.uint8) + start).to(device)
        pairs = cells.clone().reshape(6, 4)
        return {"scales": cells.view(torch.float8_e8m0fnu), "pairs": pairs.view(torch.float4_e2m1fn_x2)}

    with on_device(store, device) as registry:
        registry.push(0, model(0))
        after = model(0)
        after["pairs"].view(torch.uint8)[2, 3] = 0xA5
        assert registry.push(1, after).changed == 1
        worker = model(7)
        for version, wanted in ((0, model(0)), (1, after)):
            registry.pull(version, into=worker)
            for name, tensor in wanted.items():
                assert torch.equal(worker[name].view(torch.uint8), tensor.view(torch.uint8))


def test_tensors_that_are_not_contiguous_are_refused_by_name(device: str, store: MemoryStore) -> None:
    states = history(store, device, [])
    with on_device(store, device) as registry:
        worker = blank(states[0], device)
        worker["a.weight"] = torch.zeros(8, 9, dtype=torch.bfloat16, device=device).t()
        with pytest.raises(InvalidModel, match=r"a\.weight.*not contiguous"):
            registry.pull(0, into=worker)


def test_a_module_whose_state_dict_is_of_copies_is_refused_before_any_change_and_still_read(
    device: str, store: MemoryStore
) -> None:
    class Cloning(torch.nn.Linear):
        def state_dict(self, *args: Any, **kwargs: Any) -> Any:
            return {name: value.clone() for name, value in super().state_dict(*args, **kwargs).items()}

    module = Cloning(4, 3, bias=False, device=device, dtype=torch.bfloat16)
    with on_device(store, device) as registry:
        registry.push(0, module)
        with pytest.raises(InvalidModel, match="'weight' is a copy"):
            registry.pull(0, into=module)
        assert registry.verify(0, model=module).version == 0


def test_verify_reads_the_weights_where_they_are(device: str, store: MemoryStore) -> None:
    states = history(store, device, [])
    with on_device(store, device) as registry:
        worker = at_version(registry, 0, states[0], device)
        assert registry.verify(0, model=worker).version == 0
        worker["a.weight"].view(-1)[5] += 1
        with pytest.raises(BaseMismatch):
            registry.verify(0, model=worker)


def test_wider_tensors_and_other_ties_are_refused_on_a_device(device: str, store: MemoryStore) -> None:
    shared = torch.ones(4, dtype=torch.bfloat16, device=device)
    with on_device(store, device) as registry:
        registry.push(0, {"a": shared, "b": shared})
        wide = torch.zeros(4, device=device)
        with pytest.raises(LayoutMismatch, match=r"F32 \[4\] in the model and BF16 \[4\] in the version. P"):
            registry.pull(0, into={"a": wide, "b": wide}, cast=True)
        with pytest.raises(LayoutMismatch, match="'b' is tied to 'a' in the version, not in the model"):
            registry.pull(0, into={name: torch.zeros_like(shared) for name in "ab"})
