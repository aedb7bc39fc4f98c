"""Patches in parts through a service: pushed, admitted, pulled by signed URLs, collected; the same API, bit for bit."""

from __future__ import annotations

from typing import Any

import httpx
import numpy as np
import pytest

from pulse_registry import ComputeOptions, InvalidArgument, Registry, Slice
from pulse_registry.client.api import Answer, ServiceApi
from pulse_registry.client.store import ServiceStore
from pulse_registry.format import keys
from pulse_registry.log import LogReader, LogWriter, random_id, utc_now
from pulse_registry.options import Options
from pulse_registry.peers.local_peers import LocalGroup, LocalPeers
from pulse_registry.store import PrefixStore
from tests.scenarios.service.policies import blank, equal, opened, policy
from tests.support.groups import small_groups
from tests.support.ranks import outcomes
from tests.support.service import Service
from tests.support.slices import held, wanted
from tests.support.waiting import HANG_S, until

CELLS = 8_000


def test_any_version_comes_from_any_other_bit_for_bit(
    service: Service, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    ask = ServiceApi.ask

    def counted(self: ServiceApi, method: str, path: str, **options: Any) -> Answer:
        asked.append(path)
        return ask(self, method, path, **options)

    with small_groups():
        with opened(service, run) as trainer:
            for version in range(4):
                trainer.push(version, policy(version))
            patches = list(trainer.state().patches)
        assert all(patch.parts for patch in patches)
        monkeypatch.setattr(ServiceApi, "ask", counted)
        with opened(service, run) as worker:
            for start, goal in ((None, 3), (3, 0), (0, 2), (1, 3)):
                weights = blank(policy(0))
                if start is not None:
                    worker.pull(start, into=weights)
                asked.clear()
                worker.pull(goal, into=weights)
                assert equal(weights, policy(goal))
                urls = [path for path in asked if path.endswith("/urls")]
                assert len(urls) <= 2, "one request for all that the route names, and one for all parts"


@pytest.mark.slow
def test_ranks_pull_their_slices_together_and_read_no_more_than_they_hold(service: Service, run: str) -> None:
    with small_groups():
        with opened(service, run, coder="gap") as trainer:
            for version in range(3):
                trainer.push(version, policy(version, CELLS))
            patches = list(trainer.state().patches)
        assert all(patch.parts for patch in patches)
        dealt = [
            {  # columns of the one, a run of the other: some parts are of the first rank alone
                "a.weight": Slice(np.zeros((40, 50), np.uint16), of=(40, 100), at=(0, 50 * rank)),
                "b.weight": Slice(np.zeros(size, np.uint16), of=(4_000,), at=at),
            }
            for rank, (at, size) in enumerate(((0, 3_800), (3_800, 200)))
        ]

        def life(peers: LocalPeers) -> list[tuple[str, int]]:
            store, rank = ServiceStore(service.url, service.token), dealt[peers.rank]
            options = Options(owns_store=True, compute=ComputeOptions(backend="reference"), peers=peers)
            with Registry(store, run, options) as registry:
                found = [registry.pull(0, into=rank)]
                with registry.prefetch(into=rank, poll_seconds=3600.0) as prefetch:
                    until(lambda: prefetch.ready == 2)
                    staged = prefetch.take()
                    assert staged is not None
                    with staged:
                        found.append(staged.apply())
                found.append(registry.pull(1, into=rank, replace=True))
                registry.verify(1, model=rank)
            return [(result.checked, result.nbytes) for result in found]

        (one, other) = outcomes(life, LocalGroup(2))
    assert [checked for checked, _ in (*one, *other)] == ["state"] * 6
    assert all(held(rank) == wanted(rank, policy(1, CELLS)) for rank in dealt)
    assert other[1][1] < one[1][1], "of parts and ranges of parts that it does not hold, a rank reads nothing"


@pytest.mark.slow
def test_the_route_tells_of_the_head_and_of_all_bytes(file_service: Service, run: str) -> None:
    with small_groups(), opened(file_service, run) as trainer:
        trainer.push(0, policy(0))
        trainer.push(1, policy(1))
        [patch] = trainer.state().patches
    headers = {"Authorization": f"Bearer {file_service.token}"}
    route = httpx.get(
        f"{file_service.url}/v1/runs/{run}/route", params={"from": 0, "to": 1}, headers=headers, timeout=HANG_S
    ).json()
    [leg] = route["legs"]
    assert leg["nbytes"] == patch.size
    assert [(found["key"], found["size"]) for found in leg["objects"]] == [(patch.object.key, patch.head_size)]
    part = keys.part_key(patch.object.key, 0)
    found = httpx.get(f"{file_service.url}/v1/runs/{run}/{part}", headers=headers, timeout=HANG_S)
    assert found.status_code == 200
    refused = httpx.get(f"{file_service.url}/v1/runs/{run}/{part}0", headers=headers, timeout=HANG_S)
    assert refused.status_code == 400


@pytest.mark.slow
def test_a_commit_whose_part_is_not_there_is_refused(file_service: Service, run: str) -> None:
    with small_groups(), opened(file_service, run) as trainer:
        trainer.push(0, policy(0))
        trainer.push(1, policy(1))
        [patch] = trainer.state().patches
    store = PrefixStore(ServiceStore(file_service.url, file_service.token), run)
    head = keys.patch_head_key(0, 1, "1" * 32)
    store.put(head, store.get(patch.object.key, (0, patch.head_size)), if_absent=True)
    named = patch.model_copy(update={"object": patch.object.model_copy(update={"key": head})})
    writer = LogWriter(store, run, LogReader(store, run), utc_now, random_id, "test")
    with pytest.raises(InvalidArgument, match=f"{keys.part_key(head, 0)}, which is not there"):
        writer.attach(patches=[named])
