"""The registry through a real service on a real socket: the same API, bit for bit, with a token and no bucket keys."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

import pulse_registry
from pulse_registry import AccessDenied, Conflict, Fenced, InvalidArgument, NotFound, Registry, Version
from pulse_registry.client import records
from pulse_registry.client.api import Answer, ServiceApi
from pulse_registry.client.store import ServiceStore
from pulse_registry.format import keys
from pulse_registry.options import ComputeOptions, Options
from pulse_registry.push.options import PushOptions
from pulse_registry.store import open_store
from pulse_schemas.api import UrlBody, WorkerReport
from tests.scenarios.service.policies import blank, equal, opened, policy
from tests.support.service import Service
from tests.support.waiting import HANG_S, until


def push_all(registry: Registry, count: int, first: int = 0) -> None:
    for number in range(first, count):
        assert registry.push(number, policy(number)).version == number


def test_any_version_comes_from_any_other_bit_for_bit(service: Service, run: str) -> None:
    with opened(service, run, keyframe_every=3) as trainer:
        push_all(trainer, 6)
    with opened(service, run) as worker:
        for start in (None, 0, 2, 5):
            for goal in range(6):
                weights = blank(policy(0))
                if start is not None:
                    worker.pull(start, into=weights)
                result = worker.pull(goal, into=weights)
                assert (result.version, equal(weights, policy(goal))) == (goal, True)


@pytest.mark.slow
@pytest.mark.parametrize("service", ["memory", "seaweedfs"], indirect=True)
def test_an_object_of_several_parts_arrives_whole(service: Service, run: str) -> None:
    large = policy(0, cells=3_000_000)
    with opened(service, run) as trainer:
        trainer.push(0, large)
    with opened(service, run) as worker:
        weights = blank(large)
        assert worker.pull("latest", into=weights).nbytes > 6_000_000
        assert equal(weights, large)


def test_all_that_a_registry_tells_is_what_the_bucket_says(file_service: Service, run: str) -> None:
    with opened(file_service, run) as through:
        push_all(through, 4)
        with Registry(
            open_store(file_service.root), run, Options(compute=ComputeOptions(backend="reference"))
        ) as bucket:
            assert through.versions() == bucket.versions()
            assert through.version(step=2) == bucket.version(2)
            assert through.route(3) == bucket.route(3)
            assert through.layout() == bucket.layout()
            assert through.state().last == bucket.state().last
        assert through.verify().version == 3
        assert through.verify(model=policy(3)).version == 3


def test_open_takes_the_token_from_the_environment(
    file_service: Service, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PULSE_TOKEN", file_service.token)
    with pulse_registry.open(
        file_service.url,
        run=run,
        push=pulse_registry.PushOptions(dtype="keep"),
        compute=pulse_registry.ComputeOptions(backend="reference"),
    ) as trainer:
        trainer.push(0, policy(0))
    with pulse_registry.open(
        file_service.url, run=run, create=False, compute=pulse_registry.ComputeOptions(backend="reference")
    ) as worker:
        assert worker.versions()[0].kind == "keyframe"
    with pytest.raises(NotFound):
        pulse_registry.open(file_service.url, run=f"{run}-not", create=False)
    with pytest.raises(InvalidArgument, match="token"):
        pulse_registry.open("memory://x", run=run, token="t")


def test_a_new_trainer_fences_the_old_one(file_service: Service, run: str) -> None:
    with opened(file_service, run) as old, opened(file_service, run) as new:
        push_all(old, 2)
        push_all(new, 3, first=2)
        with pytest.raises(Fenced):
            old.push(9, policy(9))
        assert [version.step for version in new.versions()] == [0, 1, 2]


@pytest.mark.slow
def test_trainers_that_race_commit_each_version_once(file_service: Service, run: str) -> None:
    start, rounds = threading.Barrier(2), 12
    told: list[tuple[int, int]] = []

    def train(racer: int) -> None:
        try:
            race(racer)
        except BaseException:
            start.abort()  # the other one waits for nobody
            raise

    def race(racer: int) -> None:
        registry = opened(file_service, run)
        for number in range(rounds):
            start.wait(HANG_S)
            step = 2 * number + racer
            try:
                told.append((registry.push(step, policy(step % 5)).version, step))
            except Conflict:
                registry.close()
                registry = opened(file_service, run)
        registry.close()

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(train, range(2)))
    with opened(file_service, run) as registry:
        versions = registry.versions()
        assert [version.version for version in versions] == list(range(len(versions)))
        assert set(told) == {(version.version, version.step) for version in versions}
        assert len(told) >= rounds
        weights = blank(policy(0))
        registry.pull("latest", into=weights)
        assert equal(weights, policy(versions[-1].step % 5))


@pytest.mark.slow
def test_a_worker_needs_no_keys_of_the_bucket(services: dict[str, Service], run: str) -> None:
    service = services["seaweedfs"]
    with opened(service, run) as trainer:
        push_all(trainer, 3)
    program = (
        "import sys, json, hashlib, numpy as np, pulse_registry\n"
        "compute = pulse_registry.ComputeOptions(backend='reference')\n"
        f"registry = pulse_registry.open({service.url!r}, run={run!r}, compute=compute)\n"
        "weights = {'a.weight': np.zeros((200, 100), np.uint16), 'b.weight': np.zeros(20_000, np.uint16)}\n"
        "result = registry.pull('latest', into=weights)\n"
        "registry.close()\n"
        "cells = b''.join(weights[name].tobytes() for name in sorted(weights))\n"
        "print(json.dumps([result.version, hashlib.sha256(cells).hexdigest(), 'boto3' in sys.modules]))"
    )
    token = service.new_token("read", (run,))
    service.await_token(token)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**environment, "PULSE_TOKEN": token},
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=True,
    )
    cells = b"".join(policy(2)[name].tobytes() for name in sorted(policy(2)))
    assert json.loads(done.stdout) == [2, hashlib.sha256(cells).hexdigest(), False]


def test_a_signed_url_that_the_bucket_refuses_is_asked_for_anew(
    services: dict[str, Service], run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = services["seaweedfs"]
    with opened(service, run) as trainer:
        push_all(trainer, 1)
        (ref, *_) = trainer.route(0).refs
    store = ServiceStore(service.url, service.token)
    whole = store.get(f"{run}/{ref.key}")
    store.close()
    parsed, answers = ServiceApi.parsed, []

    def forged_at_first(api: ServiceApi, kind: type[Any], answer: Answer, most_values: int = 10_000) -> Any:
        body = parsed(api, kind, answer, most_values)
        answers.append(kind)
        if answers.count(UrlBody) > 1 or kind is not UrlBody:
            return body
        urls = {key: url[:-4] + ("0000" if not url.endswith("0000") else "1111") for key, url in body.urls.items()}
        return body.model_copy(update={"urls": urls})

    monkeypatch.setattr(ServiceApi, "parsed", forged_at_first)
    store = ServiceStore(service.url, service.token)
    for _ in range(2):
        assert store.get(f"{run}/{ref.key}") == whole
    assert answers == [UrlBody, UrlBody], "the good one is kept"
    store.close()


# -- tokens ------------------------------------------------------------------------------------------------------------


def test_a_token_allows_what_it_says_and_no_more(file_service: Service, run: str) -> None:
    with opened(file_service, run) as trainer:
        push_all(trainer, 1)
    reader, other = file_service.new_token("read", (run,)), file_service.new_token("publish", ("other-*",))
    wrong = file_service.token[:-4] + ("aaaa" if not file_service.token.endswith("aaaa") else "bbbb")
    expired = file_service.new_token("publish", seconds=-1)
    file_service.await_token(other)
    with opened(file_service, run, reader) as worker:
        assert worker.version().version == 0
        with pytest.raises(AccessDenied):
            worker.push(1, policy(1))
    for token in (other, wrong, expired):
        with opened(file_service, run, token) as registry, pytest.raises(AccessDenied) as caught:
            registry.versions()
        assert token.split("_", 2)[2] not in str(caught.value)


@pytest.mark.slow
def test_a_token_that_is_revoked_ends_a_watch_and_loses_no_push(file_service: Service, run: str) -> None:
    token = file_service.new_token("publish")
    file_service.await_token(token)
    with opened(file_service, run, token) as trainer:
        push_all(trainer, 2)
        watch = trainer.watch(after=-1)
        assert [next(watch).version, next(watch).version] == [0, 1]
        file_service.revoke(token)
        file_service.await_token(token, 401)
        with pytest.raises(AccessDenied):
            next(watch)
        with pytest.raises(AccessDenied):
            trainer.push(2, policy(2))
    with opened(file_service, run) as trainer:
        assert trainer.push(2, policy(2)).version == 2
        weights = blank(policy(0))
        trainer.pull("latest", into=weights)
        assert equal(weights, policy(2))


# -- watching ----------------------------------------------------------------------------------------------------------


class Watching:
    """Watches in a thread, and counts."""

    def __init__(self, registry: Registry) -> None:
        self.seen: list[Version] = []
        self._changed = threading.Condition()
        self._registry = registry
        self.thread = threading.Thread(target=self._watch)
        self.thread.start()

    def _watch(self) -> None:
        for version in self._registry.watch(after=-1, timeout=HANG_S):
            with self._changed:
                self.seen.append(version)
                self._changed.notify_all()
            if version.metadata.get("last"):
                return

    def await_count(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.seen) >= count, HANG_S)


@pytest.mark.slow
def test_watching_begins_before_the_run_and_goes_on_through_a_restart(
    own_service: Service, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "_GONE_S", HANG_S)
    with opened(own_service, run) as worker, opened(own_service, run) as trainer:
        watching = Watching(worker)
        push_all(trainer, 3)
        watching.await_count(3)
        assert own_service.stop() == 0
        own_service.start()
        push_all(trainer, 5, first=3)
        watching.await_count(5)
        trainer.push(5, policy(5), metadata={"last": True})
        watching.thread.join(HANG_S)
        assert [version.version for version in watching.seen] == list(range(6))


@pytest.mark.slow
def test_a_watch_that_hears_nothing_ends_in_time(file_service: Service, run: str) -> None:
    with opened(file_service, run) as trainer:
        push_all(trainer, 2)
        assert [version.version for version in trainer.watch(after=0, timeout=0.3)] == [1]
        assert list(trainer.watch(timeout=1.2)) == []


def test_a_version_costs_a_watch_one_request(file_service: Service, run: str, caplog: pytest.LogCaptureFixture) -> None:
    options = PushOptions(dtype="keep", keyframe_share=1e9)
    with Registry(
        open_store(file_service.root), run, Options(push=options, compute=ComputeOptions(backend="reference"))
    ) as trainer:
        push_all(trainer, 1)
        with opened(file_service, run) as worker:
            watching = Watching(worker)
            watching.await_count(1)
            with caplog.at_level(logging.INFO, "httpx"):
                for number in range(1, 10):
                    trainer.push(number, policy(number))
                    watching.await_count(number + 1)
            trainer.push(10, policy(10), metadata={"last": True})
            watching.thread.join(HANG_S)
    assert 8 <= sum(record.name == "httpx" for record in caplog.records) <= 10


# -- reports -----------------------------------------------------------------------------------------------------------


def workers_of(service: Service, run: str) -> dict[str, dict[str, object]]:
    with httpx.Client(headers={"Authorization": f"Bearer {service.token}"}, verify=False, timeout=HANG_S) as client:
        answer = client.get(f"{service.url}/v1/runs/{run}/workers")
    return {worker["worker"]: worker for worker in answer.raise_for_status().json()["workers"]}


def await_worker(service: Service, run: str, name: str, version: int) -> dict[str, object]:
    """Return what is listed of a worker once it has told of this version."""
    until(lambda: workers_of(service, run).get(name, {}).get("version") == version)
    return workers_of(service, run)[name]


def test_a_worker_with_a_name_reports_what_it_applied(file_service: Service, run: str) -> None:
    with opened(file_service, run) as trainer:
        push_all(trainer, 3)
    weights = blank(policy(0))
    with pulse_registry.open(
        file_service.url,
        run=run,
        token=file_service.token,
        name="host-3:0",
        compute=pulse_registry.ComputeOptions(backend="reference"),
    ) as worker:
        worker.pull(0, into=weights)
        result = worker.pull(1, into=weights)
        staged = worker.stage(2, into=weights)
        told = await_worker(file_service, run, "host-3:0", 1)
    assert workers_of(file_service, run) == {}
    assert (told["version"], told["digest"], told["nbytes"], told["staleness"]) == (1, result.digest, result.nbytes, 1)
    assert told["digest_matches"] is True
    assert told["phases"] == pytest.approx(dict(result.phases))
    staged.apply()  # closed: nobody is told, and nothing fails
    assert workers_of(file_service, run) == {}


def test_a_trainer_that_resumes_is_no_worker_once_it_pushes(file_service: Service, run: str) -> None:
    with opened(file_service, run) as trainer:
        push_all(trainer, 2)
    weights = blank(policy(0))
    with pulse_registry.open(
        file_service.url,
        run=run,
        token=file_service.token,
        name="trainer",
        compute=pulse_registry.ComputeOptions(backend="reference"),
    ) as trainer:
        trainer.pull(into=weights)
        await_worker(file_service, run, "trainer", 1)
        trainer.take_over(weights)
        trainer.push(2, policy(2))
        until(lambda: workers_of(file_service, run) == {})


def test_a_trainer_with_a_name_reports_its_pushes_and_is_no_worker(
    file_service: Service, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[WorkerReport] = []
    monkeypatch.setattr(ServiceStore, "report", lambda _, run, worker, report: told.append(report))
    with pulse_registry.open(
        file_service.url,
        run=run,
        token=file_service.token,
        name="trainer",
        compute=pulse_registry.ComputeOptions(backend="reference"),
    ) as trainer:
        result = trainer.push(0, policy(0))
    (report,) = told
    assert (report.operation, report.version, report.nbytes) == ("push", 0, result.nbytes)
    assert [(phase.phase, phase.busy) for phase in report.timeline] == [(p.phase, p.busy) for p in result.timeline]
    monkeypatch.undo()
    with pulse_registry.open(
        file_service.url,
        run=run,
        token=file_service.token,
        name="trainer",
        compute=pulse_registry.ComputeOptions(backend="reference"),
    ) as trainer:
        trainer.push(1, policy(1))
    assert workers_of(file_service, run) == {}


def test_a_report_by_hand_says_what_is_wrong_with_it(file_service: Service, run: str) -> None:
    weights = blank(policy(0))
    with opened(file_service, run) as registry:
        push_all(registry, 1)
        result = registry.pull("latest", into=weights)
        registry.report("host-4", result)
        assert workers_of(file_service, run)["host-4"]["version"] == 0
        with pytest.raises(InvalidArgument, match="worker"):
            registry.report("../host", result)
    with (
        Registry(
            open_store(file_service.root), run, Options(name="host-5", compute=ComputeOptions(backend="reference"))
        ) as bucket,
        pytest.raises(InvalidArgument, match="service"),
    ):
        bucket.report("host-5", result)
    with pytest.raises(InvalidArgument, match="worker"):
        pulse_registry.open(file_service.url, run=run, name="a b")


@pytest.mark.slow
def test_a_report_that_does_not_go_through_fails_no_pull(
    own_service: Service, run: str, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(own_service, run) as trainer:
        push_all(trainer, 1)
    weights = blank(policy(0))
    store = ServiceStore(own_service.url, own_service.token)
    with Registry(
        store, run, Options(name="host-6", owns_store=True, compute=ComputeOptions(backend="reference"))
    ) as worker:
        staged = worker.stage("latest", into=weights)
        own_service.stop()
        assert staged.apply().version == 0
    assert equal(weights, policy(0))
    assert "host-6" in caplog.text


def test_keys_of_the_log_are_those_of_the_bucket(service: Service, run: str) -> None:
    with opened(service, run) as trainer:
        push_all(trainer, 1)
    store = ServiceStore(service.url, service.token)
    assert store.exists(f"{run}/{keys.record_key(1)}")
    assert not store.exists(f"{run}/{keys.record_key(2)}")
    assert store.size(f"{run}/{keys.record_key(1)}") == len(store.get(f"{run}/{keys.record_key(1)}"))
    store.close()
