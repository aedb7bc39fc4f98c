"""A bad object behind a service: workers go around it, and the service hears which it was."""

from __future__ import annotations

from typing import Any

import httpx
import numpy as np
import pytest

import pulse_registry
from pulse_registry.events import Event
from pulse_registry.log import LogReader, LogWriter, random_id, utc_now
from pulse_registry.store import PrefixStore, open_store
from tests.scenarios.service.policies import blank, equal, opened, policy
from tests.support.service import Service
from tests.support.waiting import HANG_S, until

STEPS = 3


def a_run(service: Service, run: str) -> None:
    """Push versions with a keyframe at 0 and after the last."""
    with opened(service, run, keyframe_every=STEPS) as trainer:
        for number in range(STEPS + 1):
            trainer.push(number, policy(number))


def workers_of(service: Service, run: str) -> list[dict[str, Any]]:
    with httpx.Client(headers={"Authorization": f"Bearer {service.token}"}, verify=False, timeout=HANG_S) as client:
        workers: list[dict[str, Any]] = client.get(f"{service.url}/v1/runs/{run}/workers").json()["workers"]
    return workers


@pytest.mark.slow
@pytest.mark.parametrize("how", ["gone", "damaged", "retired"])
def test_a_worker_goes_around_a_bad_object_and_the_service_hears_of_it(
    file_service: Service, run: str, how: str
) -> None:
    a_run(file_service, run)
    bucket = open_store(file_service.root)
    events: list[Event] = []
    with pulse_registry.open(
        file_service.url,
        run=run,
        token=file_service.token,
        name="w",
        on_event=events.append,
        compute=pulse_registry.ComputeOptions(backend="reference"),
        network=pulse_registry.NetworkOptions(object_cost=0),
        pull=pulse_registry.PullOptions(undo_share=0.0),
    ) as worker:
        weights = blank(policy(0))
        worker.pull(0, into=weights)
        [leg, *_] = worker.route(STEPS, have=0).legs
        assert leg.patch is not None
        key = leg.patch.object.key
        if how == "retired":
            scoped = PrefixStore(bucket, run)
            LogWriter(scoped, run, LogReader(scoped, run), utc_now, random_id, "gc").retire(keys=[key])
        if how == "damaged":
            data = bytearray(bucket.get(f"{run}/{key}"))
            data[-1] ^= 1
            bucket.put(f"{run}/{key}", bytes(data))
        else:
            bucket.delete(f"{run}/{key}")
        result = worker.pull(STEPS, into=weights)
        assert equal(weights, policy(STEPS))
        until(lambda: [told["version"] for told in workers_of(file_service, run)] == [STEPS])
        [told] = workers_of(file_service, run)
    bad = () if how == "retired" else (key,)
    assert result.avoided == bad
    assert tuple(event.key for event in events) == bad
    assert tuple(told["avoided"]) == bad


def test_weights_stay_as_they_were_where_nothing_else_leads_there(file_service: Service, run: str) -> None:
    with opened(file_service, run) as trainer:
        for number in range(3):
            trainer.push(number, policy(number))
    bucket = open_store(file_service.root)
    with opened(file_service, run) as worker:
        weights = blank(policy(0))
        worker.pull(1, into=weights)
        for key in list(bucket.list(f"{run}/objects/patch/{1:012d}-{2:012d}")):
            bucket.delete(key)
        with pytest.raises(pulse_registry.NotFound) as caught:
            worker.pull(2, into=weights)
        assert caught.value.key is not None
        assert np.array_equal(weights["a.weight"], policy(1)["a.weight"])
