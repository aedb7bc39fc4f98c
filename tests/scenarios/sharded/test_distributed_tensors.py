"""torch's own sharded models: DTensors are read by their shards, in place, and nothing is gathered or copied."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
import torch

from pulse_registry import InvalidModel, Registry
from pulse_registry.options import ComputeOptions, Options
from pulse_registry.store import MemoryStore
from pulse_registry.weights.model import read_model
from pulse_registry.weights.reading import ModelReader, once

if TYPE_CHECKING:  # it takes seconds to import, in every process that collects this file
    from torch.distributed.tensor import DeviceMesh


@pytest.fixture
def mesh() -> Iterator[DeviceMesh]:
    """A mesh of this process alone."""
    from torch import distributed
    from torch.distributed.tensor import init_device_mesh

    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        yield init_device_mesh("cpu", (1,))
    finally:
        distributed.destroy_process_group()


@pytest.fixture
def registry(request: pytest.FixtureRequest) -> Iterator[Registry]:
    with Registry(
        MemoryStore(request.node.name), "run", Options(compute=ComputeOptions(backend="reference"))
    ) as opened:
        yield opened


def test_a_module_of_fsdp_is_pushed_and_pulled_in_place_without_an_operation_on_its_tensors(
    registry: Registry, mesh: DeviceMesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor

    module, worker = (torch.nn.Linear(4, 4, bias=False, dtype=torch.bfloat16) for _ in range(2))
    fully_shard(module, mesh=mesh)
    fully_shard(worker, mesh=mesh)
    with monkeypatch.context() as patched:
        patched.setattr(DTensor, "__torch_dispatch__", lambda *_, **__: pytest.fail("it was worked with"))
        registry.push(0, module)
        registry.pull(0, into=worker)
        assert registry.verify(0, model=worker).version == 0
    local = [one.weight.to_local().detach().view(torch.int16) for one in (module, worker)]
    assert torch.equal(*local)
    assert torch.equal(registry.load(0)["weight"].view(torch.int16), local[0])


def test_a_tensor_whose_sum_is_spread_over_ranks_has_no_shards_and_is_refused(
    registry: Registry, mesh: DeviceMesh
) -> None:
    from torch.distributed.tensor import DTensor, Partial

    spread = DTensor.from_local(torch.ones(4, 4, dtype=torch.bfloat16), mesh, [Partial()])
    with pytest.raises(InvalidModel, match="'w' is a DTensor whose shards can't be told"):
        registry.push(0, {"w": spread})


def test_a_shard_is_refused_by_a_push_that_takes_whole_tensors(registry: Registry) -> None:
    from pulse_registry import Slice

    with pytest.raises(InvalidModel, match=r"'w' is sharded, .*open it on every rank, with process_group"):
        registry.push(0, {"w": Slice(torch.ones(2, 4, dtype=torch.bfloat16), of=(4, 4), at=(2, 0))})


def test_distributed_tensors_that_stay_are_read_once_and_others_anew(mesh: DeviceMesh) -> None:
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor, Replicate, Shard

    def made(model: Any) -> bool:
        found: list[bool] = []
        views = reader.read_destination(model)
        assert [view.identity for view in views.values()] == [view.identity for view in read_model(model).values()]
        once(views, "made", lambda: found.append(True))
        return bool(found)

    reader, local = ModelReader(), torch.zeros(4, 4)
    models = [
        {"w": DTensor.from_local(local, mesh, [Shard(0)])},
        {"w": DTensor.from_local(local, mesh, [Replicate()])},
        {"w": DTensor.from_local(local.clone(), mesh, [Replicate()])},
        {"w": DTensor.from_local(local, mesh, [Replicate()], shape=torch.Size((4, 4)), stride=(4, 1)), "v": local},
    ]
    for model in models:
        assert made(model)
        assert not made(dict(model))
    module = torch.nn.Linear(4, 4)
    fully_shard(module, mesh=mesh)
    assert [made(module) for _ in range(3)] == [True, False, False]
    weight: Any = module.weight
    kept = weight.to_local().detach()
    weight._local_tensor = kept.clone()
    assert [made(module) for _ in range(2)] == [True, False]
