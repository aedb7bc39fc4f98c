"""Shared bases over the service: shared by request, read by runs that name them, and by no others."""

from __future__ import annotations

from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

from pulse_registry.bases.content import base_id
from pulse_registry.bases.sharing import refer
from pulse_registry.client.store import ServiceStore
from pulse_registry.errors import InvalidArgument
from pulse_registry.format import keys
from pulse_registry.log.mirror_mark import write_mark
from pulse_registry.retention import RetentionPolicy
from pulse_registry.roots import NearestStore
from pulse_registry.store import RunStore, Store
from pulse_schemas import BASES, unseal_record
from pulse_schemas.records import CommitRecord
from pulse_server.tokens import TokenSet, new_token
from tests.support.apps import app_over, running
from tests.support.bases import LENDER, base_files, broken_promises, lend, opened, state_of, tuned
from tests.support.records import DictStore
from tests.support.registries import Model, bits, garbage
from tests.unit.server.edges import NOW, bearer
from tests.unit.server.test_objects import SigningStore

TOKENS = {
    name: new_token(name, scope, runs, now=NOW)
    for name, scope, runs in (
        ("both", "publish", ("tuned", LENDER)),
        ("tuner", "publish", ("tuned",)),
        ("reader", "read", ("tuned", LENDER)),
        ("stranger", "publish", ("other",)),
    )
}
SET = TokenSet(tokens=tuple(entry for _, entry in TOKENS.values()))


@pytest.fixture
def store() -> DictStore:
    return DictStore()


@pytest.fixture
def model(store: DictStore) -> Model:
    return lend(store)


@pytest.fixture
def service(store: DictStore, model: Model) -> Iterator[ServiceStore]:
    with running(app_over(store)) as served:
        client = ServiceStore(served.url)
        yield client
        client.close()


def begun(service: Store, run: str, model: Model) -> Any:
    with opened(service, run, LENDER) as registry:
        return registry.push(7, model)


def test_a_run_begins_with_a_base_through_the_service(service: ServiceStore, store: DictStore, model: Model) -> None:
    result = begun(service, "tuned", tuned(model, 1))
    assert (result.version, result.kind) == (1, "patch")
    assert broken_promises(store) == []
    assert state_of(store, LENDER).bases == state_of(store, "tuned").bases
    for root in (service, store):
        into = garbage(model)
        with opened(root, "tuned") as registry:
            registry.pull(into=into)
        assert bits(into) == bits(tuned(model, 1))


def test_files_are_copied_for_a_while_and_the_client_asks_again(
    service: ServiceStore, store: DictStore, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pulse_server.routes.bases._COPIES_S", -1.0)
    with TestClient(app_over(store)) as client:
        answer = client.post("/v1/runs/tuned/bases", json={"run": LENDER, "version": 0})
        assert answer.json()["missing"] == 2
        assert base_files(store) == []
        assert store.exists(f"tuned/{keys.reference_key(answer.json()['base'])}")
    monkeypatch.undo()
    assert service.share("tuned", LENDER, 0) == answer.json()["base"]
    assert len(base_files(store)) == 2


def test_a_service_over_several_roots_stores_a_base_where_the_run_is_written(store: DictStore, model: Model) -> None:
    copy = DictStore()
    copy.url, store.url = "dict://copy", "dict://home"
    for key in [*store.list(f"{LENDER}/")]:
        copy.put(key, store.get(key))
    write_mark(RunStore(copy, LENDER), LENDER, store.url)
    begun(store, "there", tuned(model, 1))
    with running(app_over(NearestStore([copy, store]))) as served:
        client = ServiceStore(served.url)
        begun(client, "tuned", tuned(model, 2))  # begins at the first root
        client.close()
    assert broken_promises(copy) == broken_promises(store) == []
    into = garbage(model)
    with opened(copy, "tuned") as registry:
        registry.pull(into=into)
    assert bits(into) == bits(tuned(model, 2))


def test_a_base_that_the_run_has_retired_is_not_lent_to_it_again(
    service: ServiceStore, store: DictStore, model: Model
) -> None:
    begun(store, "other", tuned(model, 1))
    [base] = state_of(store, "other").bases
    with opened(store, "tuned") as registry:
        registry.push(0, {"w": np.zeros(4, np.uint8)})
        assert refer(store, "tuned", base)  # by a trainer that has died since
        registry.gc(RetentionPolicy(keep_last=1, grace_seconds=0, orphan_seconds=0), dry_run=False)
    assert state_of(store, "tuned").spent_bases == {base}
    assert service.share("tuned", LENDER, 0) == base_id(base[:64], 1)
    assert service.share("third", LENDER, 0) == base


@pytest.fixture
def guarded(store: DictStore, model: Model) -> Iterator[TestClient]:
    with opened(store, "tuned", LENDER) as registry:
        registry.push(0, tuned(model, 1))
    lend_other(store)
    with TestClient(app_over(store, insecure_open=False, tokens=SET)) as client:
        yield client


def lend_other(store: DictStore) -> None:
    with opened(store, "other") as registry:
        registry.push(0, {"w": np.zeros(4, np.uint8)})


def ask(client: TestClient, who: str, method: str, path: str, **more: Any) -> int:
    answer = client.request(method, f"/v1/runs/{path}", headers=bearer(TOKENS[who][0]), **more)
    return answer.status_code


def test_a_token_reads_the_bases_that_its_runs_name_and_no_others(guarded: TestClient, store: DictStore) -> None:
    key = base_files(store)[0]
    wanted = {"json": {"keys": [key]}}
    assert ask(guarded, "reader", "GET", f"tuned/{key}") == HTTPStatus.OK
    assert ask(guarded, "reader", "HEAD", f"tuned/{key}") == HTTPStatus.OK
    assert ask(guarded, "reader", "POST", "tuned/urls", **wanted) == HTTPStatus.OK
    assert ask(guarded, "stranger", "GET", f"tuned/{key}") == HTTPStatus.FORBIDDEN
    for method, path, more in (
        ("GET", f"other/{key}", {}),
        ("HEAD", f"other/{key}", {}),
        ("POST", "other/urls", wanted),
        ("GET", f"other/{key.replace('-0000/', '-0001/')}", {}),
    ):
        assert ask(guarded, "stranger", method, path, **more) == HTTPStatus.NOT_FOUND, path


def test_who_shares_may_publish_to_the_run_and_read_the_other(guarded: TestClient, store: DictStore) -> None:
    wanted = {"json": {"run": LENDER, "version": 0}}
    assert ask(guarded, "both", "POST", "tuned/bases", **wanted) == HTTPStatus.OK
    assert ask(guarded, "tuner", "POST", "tuned/bases", **wanted) == HTTPStatus.FORBIDDEN
    assert ask(guarded, "reader", "POST", "tuned/bases", **wanted) == HTTPStatus.FORBIDDEN
    assert ask(guarded, "stranger", "POST", "other/bases", **wanted) == HTTPStatus.FORBIDDEN
    for version, run in ((9, LENDER), (1, LENDER)):
        gone = {"json": {"run": run, "version": version}}
        assert ask(guarded, "both", "POST", "tuned/bases", **gone) == HTTPStatus.NOT_FOUND
    assert not store.exists("other/bases")


@pytest.mark.parametrize("path", ["tuned/objects/{key}", "tuned/uploads", "tuned/{key}"])
def test_nobody_stores_a_bases_file_by_request(guarded: TestClient, store: DictStore, path: str) -> None:
    key = base_files(store)[0]
    before = store.objects.copy()
    method = "POST" if path.endswith("uploads") else "PUT"
    more: dict[str, Any] = {"json": {"key": key, "size": 1}} if method == "POST" else {"content": b"1"}
    assert ask(guarded, "both", method, path.format(key=key), **more) >= HTTPStatus.BAD_REQUEST
    assert store.objects == before


def test_a_record_that_names_a_base_to_which_the_run_does_not_refer_is_refused(
    service: ServiceStore, store: DictStore, model: Model
) -> None:
    begun(service, "tuned", tuned(model, 1))
    store.delete(next(key for key in store.list("tuned/bases/")))
    sealed = store.get(f"tuned/{keys.record_key(1)}")
    assert isinstance(unseal_record(sealed), CommitRecord)
    for key in [key for key in store.list("tuned/") if "/log/" in key and not key.endswith(keys.record_key(0)[4:])]:
        store.delete(key)
    for key in ("tuned/head",):
        store.delete(key)
    with running(app_over(store)) as served:
        fresh = ServiceStore(served.url)
        with pytest.raises(InvalidArgument, match="does not refer"):
            fresh.put(f"tuned/{keys.record_key(1)}", sealed, if_absent=True)
        fresh.close()


def test_urls_of_a_bases_files_are_signed_for_the_root(model: Model, store: DictStore) -> None:
    signing = SigningStore()
    begun(store, "tuned", tuned(model, 1))
    signing.objects, signing.times = store.objects, store.times
    key = base_files(store)[0]
    with TestClient(app_over(signing)) as client:
        urls = client.post("/v1/runs/tuned/urls", json={"keys": [key]}).json()["urls"]
        assert urls[key].startswith(f"https://bucket.example/{key}?")
        route = client.get("/v1/runs/tuned/route").json()
        found = {item["key"]: item["url"] for leg in route["legs"] for item in leg["objects"]}
        assert all(url.startswith("https://bucket.example/_bases/") for k, url in found.items() if k.startswith(BASES))
        assert any(k.startswith(BASES) for k in found)
