"""Ranks that pull together through a service have one name, and each is listed; those of a trainer are not."""

from __future__ import annotations

import numpy as np
import pytest

from pulse_registry import ComputeOptions, Registry, Slice
from pulse_registry.client.connect import connect
from pulse_registry.options import Options
from pulse_registry.peers.local_peers import LocalGroup, LocalPeers, run_ranks
from tests.scenarios.service.policies import opened, policy
from tests.scenarios.service.test_detours import workers_of
from tests.support.service import Service
from tests.support.waiting import until

RANKS = ["engine.rank-0-of-2", "engine.rank-1-of-2"]


@pytest.mark.slow
def test_each_rank_is_listed_with_what_it_fetched_until_the_ranks_push(file_service: Service, run: str) -> None:
    whole = policy(0)
    with opened(file_service, run) as trainer:
        trainer.push(0, whole)

    def listed() -> list[str]:
        return sorted(worker["worker"] for worker in workers_of(file_service, run))

    def life(peers: LocalPeers) -> tuple[int, list[dict[str, object]]]:
        store = connect(file_service.url, file_service.token)
        options = Options(peers=peers, name="engine", compute=ComputeOptions(backend="reference"), owns_store=True)
        into = {}
        for name, tensor in whole.items():
            rows = np.array_split(np.arange(len(tensor)), 2)[peers.rank]
            into[name] = Slice(np.zeros_like(tensor[rows]), of=tensor.shape, at=(rows[0],) + (0,) * (tensor.ndim - 1))
        with Registry(store, run, options) as registry:
            fetched = registry.pull("latest", into=into).nbytes
            until(lambda: listed() == RANKS)
            seen = workers_of(file_service, run)
            peers.all_gather(b"", "seen")
            assert registry.push(1, into).version == 1
            until(lambda: listed() == [])
            peers.all_gather(b"", "none")
        return fetched, seen

    found = [future.result() for future in run_ranks(life, LocalGroup(2))]
    for _, seen in found:
        assert {told["worker"]: told["nbytes"] for told in seen} == {
            name: fetched for name, (fetched, _) in zip(RANKS, found, strict=True)
        }
