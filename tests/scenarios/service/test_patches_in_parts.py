"""Patches in parts through a service: pushed, admitted, pulled by signed URLs, collected; the same API, bit for bit."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from pulse_registry import InvalidArgument
from pulse_registry.client.api import Answer, ServiceApi
from pulse_registry.client.store import ServiceStore
from pulse_registry.format import keys
from pulse_registry.log import LogReader, LogWriter, random_id, utc_now
from pulse_registry.store import PrefixStore
from tests.scenarios.service.policies import blank, equal, opened, policy
from tests.support.groups import small_groups
from tests.support.service import Service
from tests.support.waiting import HANG_S


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
