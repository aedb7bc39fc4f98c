"""Models whose tensors are shards: refused by name, with what to do, before anything is gathered."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
import torch

from pulse_registry import InvalidModel, Registry
from pulse_registry.options import ComputeOptions, Options
from pulse_registry.store import MemoryStore

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


def refuses(registry: Registry, model: object, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.distributed.tensor import DTensor

    registry.push(0, {name: torch.ones(4, 4, dtype=torch.bfloat16)})
    with monkeypatch.context() as patched:
        patched.setattr(DTensor, "__torch_dispatch__", lambda *_, **__: pytest.fail("it was worked with"))
        for call in (
            lambda: registry.push(1, model),
            lambda: registry.pull(0, into=model),
            lambda: registry.stage(0, into=model),
            lambda: registry.prefetch(into=model),
            lambda: registry.verify(0, model=model),
        ):
            with pytest.raises(InvalidModel, match=rf"'{name}' is a DTensor.*push from one process.*full_tensor\(\)"):
                call()
    assert registry.version().step == 0


def test_a_distributed_tensor_is_refused_by_name_with_what_to_do(
    registry: Registry, mesh: DeviceMesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch.distributed.tensor import Shard, distribute_tensor

    sharded = distribute_tensor(torch.ones(4, 4, dtype=torch.bfloat16), mesh, [Shard(0)])
    refuses(registry, {"w": sharded}, "w", monkeypatch)
    registry.pull(0, into={"w": (full := sharded.full_tensor())})
    assert full.tolist() == [[1.0] * 4] * 4


def test_a_module_of_fsdp_is_refused_by_name_with_what_to_do(
    registry: Registry, mesh: DeviceMesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch.distributed.fsdp import fully_shard

    module = torch.nn.Linear(4, 4, bias=False)
    fully_shard(module, mesh=mesh)
    refuses(registry, module, "weight", monkeypatch)
