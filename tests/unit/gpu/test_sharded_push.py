"""A rank whose shards are on a device pushes, with one on the host, the objects that one process pushes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

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


KEYFRAMES: dict[str, Any] = {"keyframe_every": 2}
WHOLE_GROUPS: dict[str, Any] = {"keyframe_share": 1e9, "coder": "class"}


@pytest.mark.parametrize(
    ("shadow", "jobs", "options"),
    [
        ("device", [[0, 1, 2]], KEYFRAMES),
        ("host", [[0, 1, 2]], KEYFRAMES),
        ("device", [[0, 1], [2]], WHOLE_GROUPS),  # the second job follows patches that no rank can read alone
        ("host", [[0, 1], [2]], WHOLE_GROUPS),
    ],
)
def test_shards_on_a_device_make_the_objects_of_the_whole_in_host_memory(
    device: str, shadow: str, jobs: list[list[int]], options: dict[str, Any]
) -> None:
    states = []
    model = made("cpu")
    for step in range(3):
        changed(model, step, 30 + step, 71)
        states.append({name: tensor.clone() for name, tensor in model.items()})
    alone, together = (MemoryStore(f"{name}-{shadow}-{len(jobs)}") for name in ("alone", "together"))
    for steps in jobs:
        with on_host(alone, **options) as registry:
            digests = [registry.push(step, states[step]).digest for step in steps]

        def push(peers: LocalPeers, steps: list[int] = steps) -> list[str]:
            rank, found = peers.rank, []
            place = "cpu" if rank else device  # one rank on the device: two threads can't interpret kernels
            local = {name: tensor.to(place) for name, tensor in states[0].items()}
            weight = torch.empty(9, 4, dtype=torch.bfloat16, device=place)
            opened = on_host(together, peers=peers, **options)
            if not rank:
                opened = on_device(together, device, peers=peers, shadow=shadow, **options)
            with opened as registry:
                for step in steps:
                    weight.copy_(states[step]["a.weight"][:, 4 * rank : 4 * rank + 4])
                    for name in local.keys() - {"a.weight"}:  # replicas, of which each rank speaks for a half
                        local[name].copy_(states[step][name])
                    shards = {**local, "a.weight": Slice(weight, of=(9, 8), at=(0, 4 * rank))}
                    found.append(registry.push(step, shards).digest)
            return found

        assert [future.result() for future in run_ranks(push, LocalGroup(2))] == [digests] * 2
    stored = [
        {re.sub("-[0-9a-f]{32}", "", key): store.get(key) for key in store.list("run/objects/")}
        for store in (alone, together)
    ]
    assert stored[0] == stored[1]
