"""Names belong to the token that made them: what one token calls its own, no other one reaches, but an admin's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from http import HTTPStatus

import pytest
from fastapi.testclient import TestClient

from pulse_registry.format import keys
from pulse_registry.store import PrefixStore
from pulse_schemas import Lease
from pulse_schemas.api import WorkerReport
from pulse_server.runs.reports import Reports
from pulse_server.tokens import TokenSet, new_token
from tests.support.apps import app_over, fill, run_of
from tests.support.records import RUN, DictStore
from tests.unit.server.edges import NOW, Clock, bearer

URL = f"/v1/runs/{RUN}"
READER = "rollout-17-5c8f3f1c"
TOKENS = {name: new_token(name, scope, ("*",), now=NOW) for name, scope in
          (("ours", "read"), ("theirs", "read"), ("writer", "publish"), ("root", "admin"))}  # fmt: skip
SET = TokenSet(tokens=tuple(entry for _, entry in TOKENS.values()))
LEFT = "0123456789abcdef" * 2


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks one replica of the service with one token."""

    client: TestClient
    name: str

    @property
    def id(self) -> str:
        return TOKENS[self.name][1].id

    def ask(self, method: str, path: str, **more: object) -> int:
        answer = self.client.request(method, f"{URL}/{path}", headers=bearer(TOKENS[self.name][0]), **more)  # type: ignore[arg-type]
        return answer.status_code

    def take(self, version: int, reader: str = READER, seconds: int = 3600) -> int:
        lease = Lease(run=RUN, reader=reader, version=version, seconds=seconds)
        return self.ask("PUT", f"leases/{reader}", content=lease.seal())

    def give_up(self, reader: str = READER) -> int:
        return self.ask("DELETE", f"leases/{reader}")

    def report(self, worker: str, version: int) -> int:
        return self.ask("PUT", f"workers/{worker}", json={"version": version, "digest": "f" * 32})

    def workers(self) -> list[tuple[str, str, int]]:
        listed = self.client.get(f"{URL}/workers", headers=bearer(TOKENS[self.name][0])).json()
        return [(worker["worker"], worker["token"], worker["version"]) for worker in listed["workers"]]


@pytest.fixture
def store() -> DictStore:
    store = DictStore()
    fill(store, run_of(6))
    return store


@pytest.fixture
def client(store: DictStore) -> Iterator[TestClient]:
    with TestClient(app_over(store, insecure_open=False, tokens=SET)) as client:
        yield client


@pytest.fixture
def small(store: DictStore) -> Iterator[TestClient]:
    """A replica where a token may have three names."""
    with TestClient(app_over(store, insecure_open=False, tokens=SET, max_token_names=3)) as client:
        yield client


def leases(store: DictStore) -> dict[str, int]:
    """Return what the collector would find: the version that each reader holds."""
    below = PrefixStore(store, RUN)
    found = {key: Lease.unseal(below.get(key)) for key in below.list(keys.LEASES)}
    assert [*found] == [keys.lease_key(lease.reader) for lease in found.values()]
    return {lease.reader: lease.version for lease in found.values()}


def test_a_token_neither_replaces_nor_removes_the_lease_of_another(client: TestClient, store: DictStore) -> None:
    ours = Caller(client, "ours")
    assert ours.take(2) == HTTPStatus.NO_CONTENT
    for name in ("theirs", "writer"):
        other = Caller(client, name)
        assert other.take(0) == HTTPStatus.NO_CONTENT
        for reader in (READER, f"{ours.id}:{READER}"):
            assert other.give_up(reader) == HTTPStatus.NO_CONTENT
        assert leases(store) == {f"{ours.id}:{READER}": 2}
    assert ours.take(3) == HTTPStatus.NO_CONTENT
    assert leases(store) == {f"{ours.id}:{READER}": 3}
    assert ours.give_up() == HTTPStatus.NO_CONTENT
    assert leases(store) == {}


def test_a_lease_is_its_tokens_at_every_replica_and_after_a_restart(client: TestClient, store: DictStore) -> None:
    assert Caller(client, "ours").take(2) == HTTPStatus.NO_CONTENT
    with TestClient(app_over(store, insecure_open=False, tokens=SET)) as another:
        assert Caller(another, "theirs").give_up() == HTTPStatus.NO_CONTENT
        assert [*leases(store).values()] == [2]
        assert Caller(another, "ours").take(4) == HTTPStatus.NO_CONTENT
        assert [*leases(store).values()] == [4]
        assert Caller(another, "ours").give_up() == HTTPStatus.NO_CONTENT
    assert leases(store) == {}


def test_the_lease_of_a_reader_with_keys_of_the_bucket_is_no_tokens(client: TestClient, store: DictStore) -> None:
    held = Lease(run=RUN, reader=READER, version=1, seconds=60).seal()
    PrefixStore(store, RUN).put(keys.lease_key(READER), held)
    theirs = Caller(client, "theirs")
    assert theirs.take(5) == theirs.give_up() == HTTPStatus.NO_CONTENT
    assert leases(store) == {READER: 1}
    assert Caller(client, "root").give_up() == HTTPStatus.NO_CONTENT
    assert leases(store) == {}


def test_an_admin_takes_away_the_lease_of_any_token(small: TestClient, store: DictStore) -> None:
    ours, root = Caller(small, "ours"), Caller(small, "root")
    assert [ours.take(2, f"r{number}") for number in range(4)] == [204, 204, 204, 429]
    assert root.take(0, f"{ours.id}:r1") == root.give_up(f"{ours.id}:r2") == HTTPStatus.NO_CONTENT
    assert leases(store) == {f"{ours.id}:r0": 2, f"{ours.id}:r1": 0}
    assert ours.take(2, "r3") == HTTPStatus.NO_CONTENT


def test_a_name_that_is_too_long_with_its_token_is_refused(client: TestClient, store: DictStore) -> None:
    assert Caller(client, "ours").take(2, "r" * 147) == HTTPStatus.NO_CONTENT
    assert Caller(client, "ours").take(2, "r" * 148) == HTTPStatus.BAD_REQUEST
    assert Caller(client, "root").take(2, "r" * 160) == HTTPStatus.NO_CONTENT
    assert len(leases(store)) == 2


def test_no_token_reports_for_the_worker_of_another(client: TestClient) -> None:
    ours, theirs, root = (Caller(client, name) for name in ("ours", "theirs", "root"))
    assert ours.report("host-3", 5) == ours.report("host-4", 4) == HTTPStatus.NO_CONTENT
    assert theirs.report("host-3", 0) == root.report("host-5", 1) == HTTPStatus.NO_CONTENT
    mine, other = ("host-3", ours.id, 5), ("host-3", theirs.id, 0)
    assert ours.workers() == [*sorted([mine, other]), ("host-4", ours.id, 4), ("host-5", "", 1)]


def test_no_token_says_that_the_worker_of_another_is_gone(client: TestClient) -> None:
    ours, theirs, root = (Caller(client, name) for name in ("ours", "theirs", "root"))
    assert ours.report("host-3", 5) == HTTPStatus.NO_CONTENT
    push = {"operation": "push", "version": 5, "digest": "f" * 32}
    assert theirs.ask("PUT", "workers/host-3", json=push) == theirs.ask("DELETE", "workers/host-3") == 204
    assert theirs.workers() == [("host-3", ours.id, 5)]
    assert root.ask("DELETE", f"workers/{ours.id}:host-3") == HTTPStatus.NO_CONTENT
    assert ours.workers() == []


def test_another_replica_tells_whose_a_worker_is(client: TestClient, store: DictStore) -> None:
    ours = Caller(client, "ours")
    longest = "w" * 128
    assert ours.report(longest, 5) == HTTPStatus.NO_CONTENT
    client.app.state.service.workers.reports.share()  # type: ignore[attr-defined]
    with TestClient(app_over(store, insecure_open=False, tokens=SET)) as another:
        assert Caller(another, "theirs").workers() == [(longest, ours.id, 5)]


def test_a_token_with_too_many_leases_is_told_to_wait_and_no_other_token_is(
    small: TestClient, store: DictStore
) -> None:
    ours, theirs = Caller(small, "ours"), Caller(small, "theirs")
    assert [ours.take(2, f"r{number}", seconds=1) for number in range(4)] == [204, 204, 204, 429]
    assert ours.take(3, "r0") == theirs.take(2) == HTTPStatus.NO_CONTENT
    assert len(leases(store)) == 4
    assert ours.give_up("r1") == ours.take(2, "r3") == HTTPStatus.NO_CONTENT


def test_invented_workers_push_out_those_of_their_own_token_alone(small: TestClient) -> None:
    ours, theirs = Caller(small, "ours"), Caller(small, "theirs")
    assert ours.report("host-1", 5) == HTTPStatus.NO_CONTENT
    for number in range(8):
        assert theirs.report(f"invented-{number}", 0) == HTTPStatus.NO_CONTENT
    invented = [(f"invented-{number}", theirs.id, 0) for number in (5, 6, 7)]
    assert ours.workers() == [("host-1", ours.id, 5), *invented]


def test_of_too_many_workers_each_token_has_its_share_of_the_list(store: DictStore) -> None:
    time = Clock()
    reports = Reports(store, replica="one", now=time.now, clock=time.monotonic, share_s=5, keep_s=900, max_workers=5)
    ours, theirs = (TOKENS[name][1].id for name in ("ours", "theirs"))
    for token, count in ((ours, 2), (theirs, 20)):
        for number in range(count):
            time.moment += timedelta(seconds=1)
            reports.take(RUN, f"{token}:w-{number:02d}", WorkerReport(version=1, digest="f" * 32))
    listed = [(worker.token, worker.worker) for worker in reports.listed(run_of(6).state).workers]
    assert sorted(listed) == sorted(
        [(ours, "w-00"), (ours, "w-01"), (theirs, "w-17"), (theirs, "w-18"), (theirs, "w-19")]
    )
