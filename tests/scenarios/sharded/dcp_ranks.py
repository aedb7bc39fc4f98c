"""Four ranks that load a run by torch.distributed.checkpoint: each case on all of them, a line of JSON for each rank.

dcp_ranks.py FOLDER   loads the run that `test_dcp.py` made there, and compares each shard with the whole
"""

from __future__ import annotations

import itertools
import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch._dynamo
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor, init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from pulse_registry import Registry, open
from pulse_registry.integrations.dcp import Reader, Writer
from pulse_registry.options import ComputeOptions, PushOptions
from pulse_registry.weights.backend import backend_of
from tests.scenarios.sharded.policy import VERSIONS, Policy
from tests.unit.peers.ranks import group

SIZE = 4
Found = dict[str, Any]


def fsdp() -> torch.nn.Module:
    """FSDP2 of all ranks; the rows of some tensors are fewer than the ranks, or not a multiple of them."""
    policy = Policy()
    for layer in policy.layers:
        fully_shard(layer, mesh=init_device_mesh("cpu", (SIZE,)))
    return fully_shard(policy, mesh=init_device_mesh("cpu", (SIZE,)))


def hsdp() -> torch.nn.Module:
    """Two replicas, each sharded over two ranks."""
    policy = Policy()
    return fully_shard(policy, mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=("replica", "shard")))


def two_dimensions() -> torch.nn.Module:
    """FSDP2 over tensor parallelism: rows are strided over ranks, columns cut."""
    policy = Policy()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    for layer in policy.layers:
        parallelize_module(layer, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return fully_shard(policy, mesh=mesh["dp"])


def plain() -> torch.nn.Module:
    """The whole model on every rank."""
    return Policy()


def tell(case: str, rank: int, found: Found) -> None:
    """Write a line at once: four ranks share the pipe."""
    os.write(1, json.dumps([case, rank, found]).encode() + b"\n")


def differs(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Tell whether two tensors hold other cells on this rank."""
    local = [value.to_local() if isinstance(value, DTensor) else value for value in (one, other)]
    return not torch.equal(*local)


def same(state: Mapping[str, Any], whole: Mapping[str, torch.Tensor]) -> list[str]:
    """Return the names of tensors whose shards here are not those that torch cuts out of the whole."""
    wrong = []
    for name, value in state.items():
        wanted = whole[name]
        if isinstance(value, DTensor):
            wanted = distribute_tensor(wanted, value.device_mesh, value.placements, src_data_rank=None).to_local()
            [chunk] = value.__create_chunk_list__()
            box = tuple(slice(at, at + size) for at, size in zip(chunk.offsets, chunk.sizes, strict=True))
            value, wanted = value.to_local(), whole[name][box] if value.to_local().numel() else wanted[:0]
        if value.numel() and not torch.equal(value.reshape(-1).view(torch.uint8), wanted.reshape(-1).view(torch.uint8)):
            wrong.append(name)
    return wrong


def loads(make: Callable[[], torch.nn.Module], registry: Registry) -> Found:
    """Load all versions, there and back, into one model; the weights are trained on before the last."""
    model, results, wrong = make(), [], []
    state = model.state_dict()
    for version in (*range(VERSIONS), 0, "latest"):
        if version == "latest":
            with torch.no_grad():
                for value in state.values():
                    local = value.to_local() if isinstance(value, DTensor) else value
                    local.view(-1)[-1:] += 1
        reader = Reader(registry, version)
        dcp.load(state, storage_reader=reader)
        result = reader.result
        results.append(None if result is None else (result.version, result.checked, result.nbytes))
        wrong += [(version, name) for name in same(state, registry.load(version))]
    whole = sum(value.numel() for value in state.values())
    held = sum((one.to_local() if isinstance(one, DTensor) else one).numel() for one in state.values())
    return {"results": results, "wrong": wrong, "share": held / whole}


def saves(make: Callable[[], torch.nn.Module], source: Registry, folder: str) -> Found:
    """Save all versions in a run of their own; the last one from the background."""
    model, options = make(), PushOptions(coder="gap", keyframe_share=1e9)
    run, one = f"saved-{make.__name__}", ComputeOptions(threads=1)
    found: Found = {"versions": [], "kinds": []}
    with open(folder, run=run, push=options, compute=one, process_group=dist.group.WORLD) as registry:
        for version in range(VERSIONS):
            state = {"model": model.state_dict(), "step": version}
            dcp.load(state["model"], storage_reader=Reader(source, version))
            writer = Writer(registry, version, "model.")
            if version == VERSIONS - 1:
                dcp.async_save(state, storage_writer=writer).result()
            else:
                dcp.save(state, storage_writer=writer)
            stored = registry.version(version)
            found["versions"].append((stored.step, stored.changed, stored.digest, stored.layout))
            found["kinds"].append(writer.result.kind if writer.result else None)
    return found


def dealt(folder: str) -> Found:
    """Whole tensors on one rank each, and none on the last one, are saved; then loaded where others have none."""
    rank, one = dist.get_rank(), ComputeOptions(threads=1)
    torch.manual_seed(1)
    whole = {name: value for name, value in Policy().state_dict().items() if name != "head.weight"}

    def of(shift: int) -> dict[str, torch.Tensor]:
        return {name: value for k, (name, value) in enumerate(whole.items()) if k % (SIZE - 1) == rank + shift}

    with open(folder, run="dealt", compute=one, process_group=dist.group.WORLD) as registry:
        dcp.save(of(0), storage_writer=Writer(registry, 0))
        state = {name: torch.zeros_like(value) for name, value in of(-1).items()}
        reader = Reader(registry)
        dcp.load(state, storage_reader=reader)
        return {
            "wrong": same(state, whole) + same(registry.load(0), whole),
            "held": [len(of(0)), len(state)],
            "checked": reader.result.checked if reader.result else None,
        }


def other_versions(registry: Registry) -> Found:
    """Rank 0 loads version 0, the others the newest: all take that of rank 0."""
    state = fsdp().state_dict()
    dcp.load(state, storage_reader=Reader(registry, 0 if dist.get_rank() == 0 else "latest"))
    return {"wrong": same(state, registry.load(0))}


def refused(registry: Registry, alone: Registry) -> Found:
    """What is asked for and can't be had is one error on all ranks, and nothing changes."""
    found: Found = {}
    state = fsdp().state_dict()
    before = {name: one.clone() for name, one in state.items()}
    if dist.get_rank() == 2:
        state["layers.0.up.weight"] = state["layers.0.up.weight"].to(torch.float64)
    for name, act in (
        ("dtype", lambda: dcp.load(state, storage_reader=Reader(registry))),
        ("save", lambda: dcp.save(fsdp().state_dict(), storage_writer=Writer(alone, 9))),
        ("alone", lambda: dcp.load(dict(plain().state_dict()), storage_reader=Reader(registry), no_dist=True)),
    ):
        try:
            act()
        except CheckpointException as error:
            found[name] = sorted({f"{type(one).__name__}: {one}" for one, _ in error.failures.values()})
    found["changed"] = [
        name for name, one in before.items() if one.dtype == state[name].dtype and differs(one, state[name])
    ]
    return found


def every_case(folder: str) -> Found:
    """Be a rank, which tells what it finds in each case."""
    rank, one = dist.get_rank(), ComputeOptions(threads=1)
    together = open(folder, run="run", compute=one, process_group=dist.group.WORLD)
    alone = open(folder, run="run", compute=one)
    with together, alone:
        cases = [fsdp, hsdp, two_dimensions, plain]
        for make, (name, registry) in itertools.product(cases, (("together", together), ("alone", alone))):
            if make in (hsdp, plain) and name == "alone":
                continue  # as sharded, and as in one process
            tell(f"{make.__name__} {name}", rank, loads(make, registry))
        for make in cases:
            tell(f"{make.__name__} saved", rank, saves(make, alone, folder))
        tell("dealt", rank, dealt(folder))
        for name, registry in (("together", together), ("alone", alone)):
            tell(f"other_versions {name}", rank, other_versions(registry))
        return refused(together, alone)


def main(folder: str) -> None:
    """Print what all ranks found."""
    torch.set_num_threads(1)
    backend_of("auto").warm_up(2)  # once, and not in each fork

    def work() -> Found:
        return every_case(folder)

    work.__name__ = "refused together"
    group(SIZE, [work], os.dup(1))


if __name__ == "__main__":
    main(sys.argv[1])
