"""Outer rounds through a service: members that hold no key of the bucket end with the same bits, and hear at once."""

from __future__ import annotations

import json
import threading
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt
import pytest

from pulse_registry import AccessDenied, Fenced, InvalidArgument, Registry
from pulse_registry.cli import main
from pulse_registry.client.store import ServiceStore
from pulse_registry.options import ComputeOptions, Options
from pulse_registry.outer.log import OuterLog
from pulse_registry.outer.options import OuterOptions
from pulse_registry.outer.result import RoundResult
from pulse_registry.runtime.dependencies import Dependencies
from pulse_registry.runtime.outer import OuterRun
from pulse_registry.runtime.runtime import Runtime
from pulse_registry.store import PrefixStore
from pulse_registry.testing import CountingStore
from pulse_schemas.outer import CloseRecord, JoinRecord, LeaveRecord
from tests.support.outer_rounds import make_rounds
from tests.support.service import Service
from tests.support.waiting import HANG_S, NEVER_S

Model = dict[str, npt.NDArray[np.float32]]
ROUNDS, INNER = 3, 2
LAST = 70
"""Number of a record that is not far behind a snapshot."""
LONG = 14
"""Rounds after which there is a checkpoint."""
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_checkpoints_go_through_the_service_and_rounds_are_verified_and_joined_from_them(
    service: Service, run: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    end = make_rounds(service.url, run, LONG, token=service.token)
    store = PrefixStore(ServiceStore(service.url, service.token), run)
    state = OuterLog(store, run, whole=True).refresh()
    assert [one.number for one in state.closed] == [*range(1, LONG + 1)]
    (checkpoint, *_) = state.checkpoints
    monkeypatch.setenv("PULSE_TOKEN", service.token)
    at = ["--root", service.url, "--run", run, "--json"]
    assert main(["outer", "verify", *at, "--from", str(checkpoint.round)]) == 0
    assert len(json.loads(capsys.readouterr().out)["rounds"]) == LONG - checkpoint.round
    later = make_rounds(service.url, run, 0, members=("late-1",), token=service.token, quorum=2)
    assert all(np.array_equal(later[name].view(np.uint32), end[name].view(np.uint32)) for name in end)


@pytest.mark.slow
def test_a_long_log_is_opened_at_its_snapshot_as_over_a_bucket(service: Service, run: str) -> None:
    make_rounds(service.url, run, 1, token=service.token)
    store = PrefixStore(ServiceStore(service.url, service.token), run)
    log = OuterLog(store, run)
    while log.refresh().seq < LAST:
        log.append(lambda _, common: JoinRecord(**common, member="asia-1"))
    counting = CountingStore(store)
    assert OuterLog(counting, run).refresh() == log.state
    assert (
        counting.calls["get"] == 1 + 3 + LAST - 63 + 1
    )  # record 0; hint, snapshot, its record; the tail, and one more
    assert counting.calls["list"] == 0
    assert [*store.list("outer/log/snapshots/")] == ["outer/log/snapshots/000000000063.json"]


def test_a_token_that_only_reads_sees_rounds_and_appends_nothing(service: Service, run: str) -> None:
    make_rounds(service.url, run, 1, token=service.token)
    reads = service.new_token("read")
    service.await_token(reads)
    log = OuterLog(PrefixStore(ServiceStore(service.url, reads), run), run)
    before = log.refresh().seq
    with pytest.raises(AccessDenied):
        log.append(lambda _, common: JoinRecord(**common, member="thief"))
    assert log.refresh().seq == before


def test_what_would_count_for_nothing_is_refused_and_can_be_made_anew(service: Service, run: str) -> None:
    make_rounds(service.url, run, 1, token=service.token)
    log = OuterLog(PrefixStore(ServiceStore(service.url, service.token), run), run)
    before = log.refresh().seq
    with pytest.raises(InvalidArgument, match="round 9 is not open"):
        log.append(lambda _, common: CloseRecord(**common, round=9), "a" * 32)
    record = log.append(lambda _, common: JoinRecord(**common, member="asia-1"), "a" * 32)
    assert record is not None
    assert record.seq == before + 1
    with pytest.raises(Fenced):
        log.append(lambda _, common: LeaveRecord(**common, member="asia-1", term="0" * 32))
