"""Leases over HTTP, and who may take anything away."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest
from fastapi.testclient import TestClient

import pulse_registry
from pulse_registry.format import keys
from pulse_registry.options import ComputeOptions, Options
from pulse_registry.registry import Registry
from pulse_registry.store import Body, PrefixStore, Store, WrapperStore
from pulse_schemas import Lease
from pulse_server.tokens import TokenSet, new_token
from tests.support.apps import LAYOUT, app_over, fill, run_of, running, store_objects
from tests.support.records import RUN, DictStore, Script, keyframe, patch
from tests.support.waiting import HANG_S
from tests.unit.server.edges import NOW, bearer

URL = f"/v1/runs/{RUN}"
READER = "rollout-17-5c8f3f1c"
JSON = {"content-type": "application/json"}


def lease(**changes: object) -> bytes:
    fields = {"run": RUN, "reader": READER, "version": 2, "seconds": 3600}
    return Lease(**(fields | changes)).seal()  # type: ignore[arg-type]


@pytest.fixture
def store() -> DictStore:
    store = DictStore()
    fill(store, run_of(4))
    return store


@pytest.fixture
def client(store: DictStore) -> Iterator[TestClient]:
    with TestClient(app_over(store)) as client:
        yield client


def put(client: TestClient, sealed: bytes, reader: str = READER, run: str = RUN) -> int:
    return client.put(f"/v1/runs/{run}/leases/{reader}", content=sealed, headers=JSON).status_code


def test_a_lease_is_stored_as_it_came_and_can_be_renewed_and_given_up(client: TestClient, store: DictStore) -> None:
    key = f"{RUN}/{keys.lease_key(READER)}"
    for version in (2, 3):
        assert put(client, lease(version=version)) == 204
        assert store.get(key) == lease(version=version)
    for _ in range(2):
        assert client.delete(f"{URL}/leases/{READER}").status_code == 204
    assert not store.exists(key)


@pytest.mark.parametrize(
    ("sealed", "status"),
    [
        (b"", 400),
        (b"{}", 400),
        (lease()[:-1], 400),
        (lease(reader="another"), 400),
        (lease(run="another"), 400),
        (Script().make_epoch().seal(), 400),
    ],
)
def test_what_is_no_lease_of_this_reader_is_refused(
    client: TestClient, store: DictStore, sealed: bytes, status: int
) -> None:
    assert put(client, sealed) == status
    assert not [*store.list(f"{RUN}/{keys.LEASES}")]


@pytest.mark.parametrize("reader", ["-x", "a%2fb", "x" * 161, "a b"])
def test_what_is_no_name_of_a_reader_is_refused(client: TestClient, reader: str) -> None:
    assert put(client, lease(), reader) in (404, 422)


def test_a_run_that_is_not_there_has_no_leases(client: TestClient) -> None:
    assert put(client, lease(run="ghost"), run="ghost") == 404
    assert client.delete(f"/v1/runs/ghost/leases/{READER}").status_code == 404


def test_a_worker_behind_the_service_has_a_lease_until_it_is_closed() -> None:
    leased = threading.Event()

    class Noting(WrapperStore):
        def put(self, key: str, data: Body, *, if_absent: bool = False) -> None:
            super().put(key, data, if_absent=if_absent)
            if keys.LEASES in key:
                leased.set()

    store: Store = Noting(DictStore())
    with Registry(store, RUN, Options(compute=ComputeOptions(backend="reference"))) as trainer:
        trainer.push(0, {"w": np.zeros(4, np.uint16)})
    below = PrefixStore(store, RUN)
    with running(app_over(store)) as service:
        with pulse_registry.open(
            service.url, run=RUN, name="w", compute=pulse_registry.ComputeOptions(backend="reference")
        ) as worker:
            worker.pull("latest", into={"w": np.zeros(4, np.uint16)})
            assert leased.wait(HANG_S)
            (key,) = below.list(keys.LEASES)
            assert Lease.unseal(below.get(key)).version == 0
        assert [*below.list(keys.LEASES)] == []


# -- what takes away needs an admin ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("scope", "status"), [("read", 403), ("publish", 403), ("admin", 201)])
@pytest.mark.parametrize("kind", ["retire", "delete", "move"])
def test_only_an_admin_retires_and_deletes_and_moves(scope: str, status: int, kind: str) -> None:
    token, entry = new_token("x", scope, ("*",), now=NOW)
    store, script = DictStore(), run_of(4)
    fill(store, script)
    made = {"retire": lambda: script.make_retire(versions=(0,)), "delete": script.make_delete, "move": script.make_move}
    record = made[kind]()
    app = app_over(store, insecure_open=False, tokens=TokenSet(tokens=(entry,)))
    with TestClient(app) as client:
        answer = client.post(f"{URL}/log", content=record.seal(), headers=JSON | bearer(token))
    assert answer.status_code == status
    assert store.exists(f"{RUN}/{keys.record_key(record.seq)}") == (status == 201)


def test_a_publisher_tags_and_attaches() -> None:
    token, entry = new_token("x", "publish", ("*",), now=NOW)
    store, script = DictStore(), run_of(4)
    fill(store, script)
    with TestClient(app_over(store, insecure_open=False, tokens=TokenSet(tokens=(entry,)))) as client:
        for make in (
            lambda: script.tag("best", 2),
            lambda: script.attach(patches=(patch(0, 2, tag=9),), keyframes=(keyframe(2, tag=9),)),
            lambda: script.epoch(),
            lambda: script.commit(layout=LAYOUT.id, metadata={"kind": "retire", "note": '"kind":"delete"'}),
        ):
            record = make().records[-1]
            store_objects(store, record)
            answer = client.post(f"{URL}/log", content=record.seal(), headers=JSON | bearer(token))
            assert answer.status_code == 201
