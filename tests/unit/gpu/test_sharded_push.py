"""A rank whose shards are on a device pushes, with one on the host, the objects that one process pushes."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
import torch

from pulse_registry import Slice
from pulse_registry.peers.local_peers import LocalGroup, LocalPeers, run_ranks
from pulse_registry.store import MemoryStore
from tests.support.groups import small_groups
from tests.unit.gpu.models import changed, made, on_device, on_host


@pytest.fixture(autouse=True)
def groups() -> Iterator[None]:
    with small_groups():
        yield


@pytest.mark.parametrize("shadow", ["device", "host"])
def test_shards_on_a_device_make_the_objects_of_the_whole_in_host_memory(device: str, shadow: str) -> None:
    states = []
    model = made("cpu")
    for step in range(3):
        changed(model, step, 30 + step, 71)
        states.append({name: tensor.clone() for name, tensor in model.items()})
    alone, together = MemoryStore(f"alone-{shadow}"), MemoryStore(f"together-{shadow}")
    with on_host(alone, keyframe_every=2) as registry:
        digests = [registry.push(step, state).digest for step, state in enumerate(states)]

    def push(peers: LocalPeers) -> list[str]:
        rank, found = peers.rank, []
        place = "cpu" if rank else device  # one rank on the device: two threads can't interpret kernels
        local = {name: tensor.to(place) for name, tensor in states[0].items()}
        weight = torch.empty(9, 4, dtype=torch.bfloat16, device=place)
        opened = on_host(together, peers=peers, keyframe_every=2)
        if not rank:
            opened = on_device(together, device, peers=peers, shadow=shadow, keyframe_every=2)
        with opened as registry:
            for step, state in enumerate(states):
                weight.copy_(state["a.weight"][:, 4 * rank : 4 * rank + 4])
                local["b.bias"].copy_(state["b.bias"])  # a replica, of which each rank speaks for a half
                shards = {**local, "a.weight": Slice(weight, of=(9, 8), at=(0, 4 * rank))}
                found.append(registry.push(step, shards).digest)
        return found

    assert [future.result() for future in run_ranks(push, LocalGroup(2))] == [digests] * 2
    stored = [
        {re.sub("-[0-9a-f]{32}", "", key): store.get(key) for key in store.list("run/objects/")}
        for store in (alone, together)
    ]
    assert stored[0] == stored[1]
