"""A push on the device stores what one in host memory stores, and keeps its shadow right whatever fails."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from pulse_kernels import get_backend
from pulse_kernels.gpu.changes import Changes
from pulse_registry.errors import StoreUnavailable
from pulse_registry.gpu import shadow as shadow_module
from pulse_registry.gpu import shadow_storage
from pulse_registry.gpu.shadow import DeviceShadow, Sums, empty_device_shadow, first_device_shadow
from pulse_registry.gpu.sparse_update import sums_of
from pulse_registry.pull.destination import HostDestination
from pulse_registry.store import MOST_WHOLE_BYTES, MemoryStore
from pulse_registry.testing import FaultStore
from pulse_registry.testing.fault import Fault
from pulse_registry.timeline import Timeline
from pulse_registry.weights.cell_space import Geometry
from pulse_registry.weights.model import layout_of, read_model
from tests.support.gate import PATIENCE, GateStore
from tests.support.groups import small_groups
from tests.support.registries import settle
from tests.support.sampling import slow_but
from tests.unit.gpu.models import blank, changed, holds, made, objects, on_device, on_host

WAYS = slow_but([("gap", "device")], [("gap", "device"), ("class", "host"), ("auto", "device")])


@pytest.fixture(autouse=True)
def groups() -> Iterator[None]:
    with small_groups():
        yield


@pytest.mark.parametrize(("coder", "shadow"), WAYS)
def test_a_push_on_the_device_stores_the_bytes_that_one_in_host_memory_stores(
    device: str, coder: Any, shadow: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shadow_storage, "WINDOW_BYTES", 128)  # two of BF16
    stores = MemoryStore(f"device-{coder}"), MemoryStore(f"host-{coder}")
    model = made(device, counts=True)
    with on_device(stores[0], device, coder=coder, shadow=shadow) as one, on_host(stores[1], coder=coder) as other:
        for step in range(3):  # the last one changes nothing
            if step == 1:
                changed(model, 0, 31, 32, 71)
            results = [registry.push(step, model) for registry in (one, other)]
            assert results[0].digest == results[1].digest
            assert results[0].changed == results[1].changed
    for kind in ("patch", "keyframe"):
        found, expected = (objects(store, kind) for store in stores)
        assert found == expected
    assert len(objects(stores[0], "patch")) == 2


@pytest.mark.slow
@pytest.mark.parametrize("shadow", ["device", "host"])
def test_a_failed_push_loses_nothing_and_the_next_one_carries_its_changes(device: str, shadow: Any) -> None:
    memory = MemoryStore(f"failing-{shadow}")
    cut_off = Fault("fail_before", "put", lambda verb, key: "/objects/patch/" in key, times=1)
    store = FaultStore(memory, [cut_off])
    model = made(device)
    with on_device(store, device, shadow=shadow) as registry, on_host(memory) as reader:
        registry.push(0, model)
        changed(model, 1, 40)
        with pytest.raises(StoreUnavailable):
            registry.push(1, model)
        changed(model, 2)
        result = registry.push(2, model)
        assert (result.version, result.kind) == (1, "patch")
        assert result.changed == 4
        worker = blank(model, "cpu")
        reader.pull(into=worker)
        assert holds(worker, model)


@pytest.mark.slow
def test_the_model_may_change_again_when_a_push_returns_without_waiting(device: str) -> None:
    store = MemoryStore("queued")
    model = made(device)
    with on_device(store, device) as registry, on_host(store) as reader:
        states, futures = [], []
        for step in range(3):
            changed(model, step)
            states.append({name: tensor.clone() for name, tensor in model.items()})
            futures.append(registry.push(step, model, wait=False))
        assert [future.result().version for future in futures] == [0, 1, 2]
        for version, state in enumerate(states):
            worker = blank(model, "cpu")
            reader.pull(version, into=worker)
            assert holds(worker, state)


def test_a_push_returns_before_its_changes_are_summed_up(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store, summing = MemoryStore("summed"), threading.Event()
    model = made(device)
    with on_device(store, device) as registry, on_host(store) as reader:
        registry.push(0, model)

        def late(changes: Changes) -> Sums:
            assert summing.wait(PATIENCE)
            return sums_of(changes)

        monkeypatch.setattr(shadow_module, "sums_of", late)
        changed(model, 1, 40)
        future = registry.push(1, model, wait=False)
        expected = {name: tensor.clone() for name, tensor in model.items()}
        changed(model, 2)
        summing.set()
        assert future.result().changed == 3
        worker = blank(model, "cpu")
        reader.pull(1, into=worker)
        assert holds(worker, expected)


def test_a_push_whose_changes_cannot_be_summed_up_fails_and_the_next_one_carries_them(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MemoryStore("not summed")
    model = made(device)
    with on_device(store, device) as registry, on_host(store) as reader:
        registry.push(0, model)

        def fails(_: Changes) -> Sums:
            raise RuntimeError("the device is lost")

        changed(model, 1, 40)
        with monkeypatch.context() as patched:
            patched.setattr(shadow_module, "sums_of", fails)
            with pytest.raises(RuntimeError, match="the device is lost"):
                registry.push(1, model)
        changed(model, 2)
        result = registry.push(2, model)
        assert (result.version, result.kind, result.changed) == (1, "patch", 4)
        worker = blank(model, "cpu")
        reader.pull(into=worker)
        assert holds(worker, model)


@pytest.mark.slow
@pytest.mark.parametrize("place", ["device", "host"])
def test_the_shadow_gives_the_cells_of_a_version_while_a_later_one_is_on_its_way(device: str, place: Any) -> None:
    model = made(device)
    geometry = Geometry(layout_of(read_model(model), "bf16"))
    with ThreadPoolExecutor(1) as pool:

        def shadow_of(version: int) -> DeviceShadow:
            empty = empty_device_shadow(
                geometry,
                torch.device(device),
                pool,
                lambda weights: HostDestination(weights, get_backend(), pool),
                place,
            )
            return first_device_shadow(empty, read_model(model), version)

        shadow = shadow_of(0)
        first, before = shadow.digest, cells_of(shadow, 0)
        changed(model, 3, 4, 60)
        advance = shadow.advance(read_model(model), "gap", Timeline())
        assert cells_of(shadow, 0) == before != cells_of(shadow, 1)
        assert (shadow.digest_at(0), shadow.digest_at(1)) == (first, advance.digest)
        assert shadow_of(1).digest == advance.digest
        shadow.revert(1)
        assert (shadow.version, shadow.digest, cells_of(shadow, 0)) == (0, first, before)


def cells_of(shadow: DeviceShadow, version: int) -> list[list[int]]:
    return [shadow.cells_at(version, group).tolist() for group in shadow.geometry.groups]


def test_a_keyframe_follows_from_the_shadow_on_the_device(device: str) -> None:
    store = MemoryStore("keyframes")
    model = made(device)
    with on_device(store, device, keyframe_every=1) as registry, on_host(store) as reader:
        registry.push(0, model)
        changed(model, 3)
        registry.push(1, model)
        settle(registry)
        assert registry.state().keyframe(1) is not None
        worker = blank(model, "cpu")
        assert reader.pull(into=worker).objects == len(objects(store, "keyframe")) // 2
        assert holds(worker, model)


@pytest.mark.slow
@pytest.mark.parametrize("shadow", ["device", "host"])
def test_a_new_trainer_goes_on_from_the_stored_version(device: str, shadow: Any) -> None:
    store = MemoryStore(f"restart-{shadow}")
    model = made(device)
    with on_device(store, device) as registry:
        registry.push(0, model)
    changed(model, 9, 33)
    with on_device(store, device, shadow=shadow) as registry, on_host(store) as reader:
        result = registry.push(1, model)
        assert (result.version, result.kind, result.changed) == (1, "patch", 3)
        worker = blank(model, "cpu")
        reader.pull(into=worker)
        assert holds(worker, model)


def test_tensors_that_are_not_contiguous_are_pushed(device: str) -> None:
    store = MemoryStore("strided")
    model = made(device)
    model["a.weight"] = model["a.weight"].t()
    with on_device(store, device) as registry, on_host(store) as reader:
        registry.push(0, model)
        with torch.no_grad():
            model["a.weight"][3, 4] += 1
        assert registry.push(1, model).changed == 1
        worker = blank(model, "cpu")
        reader.pull(into=worker)
        assert holds(worker, model)


@pytest.mark.slow
@pytest.mark.parametrize("shadow", ["device", "host"])
def test_a_push_takes_the_place_of_one_that_waits_and_a_restarted_trainer_begins_with_its_model(
    device: str, shadow: Any
) -> None:
    store, model = GateStore(), made(device)
    with on_device(store, device, shadow=shadow, when_full="coalesce", max_pending=2) as registry:
        registry.push(0, model)
        with store.shut():
            futures = []
            for step in (1, 2, 3):
                changed(model, step)
                futures.append(registry.push(step, model, wait=False))
                assert store.reached.wait(PATIENCE)
        assert [future.result(PATIENCE).version for future in futures] == [1, 2, 2]
        assert [future.result().coalesced for future in futures] == [False, True, False]
    objects_read: list[str] = []
    get = store.get

    def noted(key: str, byte_range: tuple[int, int] | None = None, *, max_bytes: int = MOST_WHOLE_BYTES) -> bytes:
        objects_read.extend([key] if "/objects/" in key else [])
        return get(key, byte_range, max_bytes=max_bytes)

    store.get = noted  # type: ignore[method-assign]
    with on_device(store, device, shadow=shadow) as registry, on_host(store) as reader:
        assert registry.take_over(model).version == 2  # type: ignore[union-attr]
        changed(model, 40)
        assert registry.push(4, model).kind == "patch"
        assert objects_read == [], "the model was the newest version"
        reader.pull(into=(worker := blank(model, "cpu")))
        assert holds(worker, model)
