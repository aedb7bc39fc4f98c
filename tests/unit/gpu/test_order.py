"""Nobody reads on one stream what another one has not written yet, nor is memory given away that one still uses."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from pulse_kernels.gpu.diff import diff
from pulse_registry import Slice
from pulse_registry.gpu import destination as target_module
from pulse_registry.gpu.destination import DeviceDestination
from pulse_registry.gpu.sparse_update import DeviceUpdate
from pulse_registry.gpu.stream import DeviceStream
from pulse_registry.gpu.tile_table import tile_tables
from pulse_registry.options import ComputeOptions, Options, PullOptions
from pulse_registry.push.options import PushOptions
from pulse_registry.registry import Registry
from pulse_registry.runtime.dependencies import Dependencies
from pulse_registry.store import MemoryStore
from pulse_registry.weights.cell_space import Geometry
from pulse_registry.weights.model import layout_of, read_model
from tests.support.groups import small_groups
from tests.support.registries import RUN
from tests.unit.gpu.models import Tensors, blank, changed, holds, made, on_host
from tests.unit.gpu.order import Gpu, watched

pytestmark = pytest.mark.slow


@pytest.fixture
def gpu(device: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpu]:
    if device != "cpu":
        pytest.skip("a GPU does not tell who has not waited")
    with small_groups(), watched(monkeypatch) as made_up:
        yield made_up
        gc.collect()
    assert "\n".join(made_up.faults) == ""


@pytest.fixture
def store(request: pytest.FixtureRequest) -> MemoryStore:
    return MemoryStore(request.node.name)


@pytest.fixture
def opened(gpu: Gpu, store: MemoryStore) -> Iterator[Callable[..., Registry]]:
    registries = []

    def open_one(nonfinite: Any = "allow", undo_share: float = 0.05, **options: Any) -> Registry:
        around = Dependencies(threads=gpu.threads, retrying=lambda store: store)
        chosen = PushOptions(**({"keyframe_share": 100.0, "coder": "gap", "nonfinite": nonfinite} | options))
        compute = ComputeOptions(backend="reference", device=lambda views: torch.device("cpu"))
        how = Options(push=chosen, compute=compute, pull=PullOptions(nonfinite=nonfinite, undo_share=undo_share))
        registries.append(Registry(store, RUN, how, dependencies=around))
        return registries[-1]

    yield open_one
    for registry in registries:
        registry.close()


@pytest.fixture
def states(gpu: Gpu, store: MemoryStore) -> list[Tensors]:
    """Push four versions; return their states."""
    model, found = made("cpu"), []
    with gpu.unseen(), on_host(store) as registry:
        for step in range(4):
            if step:
                changed(model, step, 40 + step)
            registry.push(step, model)
            found.append({name: tensor.clone() for name, tensor in model.items()})
    return found


def test_a_version_is_staged_in_another_thread_while_one_is_applied_on_a_side_stream(
    gpu: Gpu, states: list[Tensors], opened: Callable[..., Registry]
) -> None:
    registry, worker = opened(), blank(states[0], "cpu")
    registry.pull(0, into=worker)
    for version in (1, 2):
        staged = gpu.elsewhere(functools.partial(registry.stage, version, into=worker))
        with gpu.on(gpu.stream(f"side {version}")):
            staged.apply()
        del staged
        gc.collect()
        with gpu.unseen():
            assert holds(worker, states[version])
    gpu.synchronize()


def test_a_version_that_is_applied_on_a_side_stream_is_checked_and_taken_back_on_others(
    gpu: Gpu, states: list[Tensors], opened: Callable[..., Registry], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target_module, "DECODED_BYTES", 64)
    registry, worker = opened(nonfinite="warn"), blank(states[0], "cpu")
    registry.pull(0, into=worker)
    staged = gpu.elsewhere(lambda: registry.stage(1, into=worker))
    with gpu.on(gpu.stream("side")):
        staged.apply()
    assert gpu.elsewhere(lambda: registry.verify(1, model=worker)).version == 1
    with gpu.on(gpu.stream("other side")):
        staged.undo()
    registry.pull(1, into=worker, check="all")
    assert holds(worker, states[1])


def test_a_chain_a_step_back_and_a_keyframe_follow_what_a_side_stream_wrote(
    gpu: Gpu, states: list[Tensors], opened: Callable[..., Registry]
) -> None:
    registry = opened(undo_share=100.0)
    worker = blank(states[0], "cpu")
    registry.pull(0, into=worker)
    for version, replace in ((2, False), (3, False), (2, False), (3, True)):
        staged = gpu.elsewhere(functools.partial(registry.stage, version, into=worker, replace=replace))
        with gpu.on(gpu.stream(f"side {version} {replace}")):
            staged.apply()
        with gpu.unseen():
            assert holds(worker, states[version])


@pytest.mark.parametrize("gaps", [1, 2])
def test_slices_are_read_behind_what_the_caller_and_side_streams_wrote(
    gpu: Gpu, states: list[Tensors], opened: Callable[..., Registry], gaps: int
) -> None:
    registry = opened(undo_share=100.0)
    room = torch.zeros((9, 3, gaps), dtype=torch.bfloat16)
    worker = {"a.weight": Slice(room[..., -1], of=(9, 8), at=(0, 1)), "b.bias": torch.zeros(11, dtype=torch.bfloat16)}
    registry.pull(0, into=worker, partial=True)
    side = gpu.current()
    for number, (version, replace) in enumerate(((1, False), (3, False), (1, False), (2, True))):
        with gpu.on(gpu.stream(f"mine {version} {replace}")):
            if number < 2:
                gpu.current().wait_stream(side)
                room.view(torch.int16).bitwise_xor_(0)  # a write that the library knows nothing of
            staged = registry.stage(version, into=worker, replace=replace, partial=True)
        side = gpu.stream(f"side {version} {replace}")
        with gpu.on(side):
            staged.apply()
        del staged
        gc.collect()
        with gpu.unseen():
            assert room[..., -1].equal(states[version]["a.weight"][:, 1:4])
    gpu.synchronize()


def test_tables_that_are_let_go_of_stay_until_the_side_stream_that_writes_by_them_is_done(gpu: Gpu) -> None:
    worker, new = ({"w": torch.zeros(40, dtype=torch.bfloat16) + value} for value in (0, 1))
    views, stream = read_model(worker), DeviceStream(torch.device("cpu"))
    geometry = Geometry(layout_of(views, "keep"))
    target = DeviceDestination.into(geometry, views, stream.device)
    with stream.work(after_caller=True):
        pairs = [
            (part.tiles.over([*new.values()]), part.tiles.over([*worker.values()]))
            for part in tile_tables(geometry, stream.device)
        ]
        changes = DeviceUpdate(tuple(diff(*pair) for pair in pairs), stream)
    with gpu.on(gpu.stream("side")):
        target.apply(changes)
    del views, geometry, target, changes, pairs
    gc.collect()
    gpu.synchronize()
    assert holds(worker, new)


@pytest.mark.parametrize("shadow", ["device", "host"])
def test_a_trainer_pushes_while_the_pushes_before_are_coded_and_one_that_takes_over_goes_on(
    gpu: Gpu, opened: Callable[..., Registry], shadow: Any
) -> None:
    with gpu.on(gpu.stream("training")):
        model, trainer = made("cpu"), opened(shadow=shadow)
    futures = []
    for step in range(2):
        with gpu.on(gpu.stream("training")):
            changed(model, step)
            futures.append(trainer.push(step, model, wait=False))
    assert [future.result().version for future in futures] == [0, 1]
    trainer.close()
    with gpu.on(gpu.stream("training")):
        changed(model, 50)
        assert opened(shadow=shadow).push(2, model).kind == "patch"
