"""Outer rounds through a service: members that hold no key of the bucket end with the same bits, and hear at once."""

from __future__ import annotations

import threading
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt

from pulse_registry import Registry
from pulse_registry.client.store import ServiceStore
from pulse_registry.options import ComputeOptions, Options
from pulse_registry.outer.options import OuterOptions
from pulse_registry.outer.result import RoundResult
from pulse_registry.runtime.dependencies import Dependencies
from pulse_registry.runtime.outer import OuterRun
from pulse_registry.runtime.runtime import Runtime
from tests.support.service import Service
from tests.support.waiting import HANG_S, NEVER_S

Model = dict[str, npt.NDArray[np.float32]]
ROUNDS, INNER = 3, 2
REFERENCE = Options(owns_store=True, compute=ComputeOptions(backend="reference"))
MEMBERS = ("eu-1", "eu-2", "us-1")


def model() -> Model:
    made = np.random.default_rng(7)
    return {"a": made.normal(size=(40, 30)).astype(np.float32), "b": made.normal(size=300).astype(np.float32)}


def opened(service: Service, run: str, token: str | None = None) -> Registry:
    return Registry(ServiceStore(service.url, token or service.token), run, REFERENCE)


def options(member: str, **given: Any) -> OuterOptions:
    """Return options of one who never looks for news by itself: it waits to be told."""
    return OuterOptions(member, INNER, **{"quorum": 3, "poll_s": NEVER_S, **given})


def train(service: Service, run: str, member: str, done: dict[str, tuple[Model, list[RoundResult]]]) -> None:
    held, made, results = model(), np.random.default_rng(MEMBERS.index(member)), list[RoundResult]()
    runtime = Runtime(ServiceStore(service.url, service.token), run, REFERENCE, Dependencies())
    rounds = OuterRun(runtime)
    with rounds.session(held, options(member)) as outer:
        while len(results) < ROUNDS:
            for cells in held.values():
                cells -= made.normal(scale=1e-3, size=cells.shape).astype(np.float32)
            if result := outer.step():
                results.append(result)
    rounds.close()
    runtime.end()
    done[member] = held, results


def test_members_without_keys_of_the_bucket_end_with_the_same_bits_and_hear_at_once(service: Service, run: str) -> None:
    with opened(service, run) as registry:
        registry.push(0, model())
    done: dict[str, tuple[Model, list[RoundResult]]] = {}
    threads = [threading.Thread(target=train, args=(service, run, member, done)) for member in MEMBERS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_S)
    assert sorted(done) == sorted(MEMBERS)
    first = done["eu-1"][0]
    for held, results in done.values():
        assert [(one.round, one.version, sorted(one.members)) for one in results] == [
            (number, number, list(MEMBERS)) for number in range(1, ROUNDS + 1)
        ]
        assert all(np.array_equal(held[name].view(np.uint32), first[name].view(np.uint32)) for name in first)
    with opened(service, run) as worker:
        pulled = worker.load("latest", framework="numpy")
        assert len(worker.versions()) == ROUNDS + 1
    for name, cells in first.items():
        bits = cells.view(np.uint32).astype(np.uint64)
        rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
        assert np.array_equal(np.asarray(pulled[name]).view(np.uint16), rounded), name

    bearer = {"Authorization": f"Bearer {service.token}"}
    answer = httpx.get(f"{service.url}/v1/runs/{run}/outer", headers=bearer, timeout=HANG_S)
    body = answer.raise_for_status().json()
    assert [one["round"] for one in body["rounds"]] == [1, 2, 3]
    assert body["cells"] == 1500
    assert [one["member"] for one in body["members"]] == list(MEMBERS)
    assert {one["standing"] for one in body["members"]} == {"left"}
    for told, result in zip(body["rounds"], done["eu-1"][1], strict=True):
        part = next(one for one in told["parts"] if one["member"] == "eu-1")
        assert (part["entries"], part["nbytes"], part["steps"]) == (result.entries, result.nbytes, INNER)
        assert told["version"] == result.version
        assert told["late"] == []
