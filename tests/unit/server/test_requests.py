"""Readers ask for direct patches through the service; what it stores is what they would have stored."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pulse_registry.client.store import ServiceStore
from pulse_registry.errors import InvalidArgument, NotFound
from pulse_registry.format import keys
from pulse_registry.registry import Registry
from pulse_schemas import DirectRequest
from tests.support.apps import app_over, fill, run_of, running
from tests.support.records import RUN, DictStore
from tests.unit.server.calling import Call, calling

READER = "5" * 32
URL = f"/v1/runs/{RUN}/requests"


@pytest.fixture
def store() -> DictStore:
    store = DictStore()
    fill(store, run_of(6))
    return store


@pytest.fixture
def call(store: DictStore) -> Iterator[Call]:
    with calling(app_over(store)) as call:
        yield call


def request(base: int = 1, target: int = 5, run: str = RUN, reader: str = READER) -> bytes:
    return DirectRequest(run=run, base=base, target=target, reader=reader).seal()


def test_a_request_is_stored_as_it_would_be_in_a_bucket(store: DictStore) -> None:
    with running(app_over(store)) as service:
        client = ServiceStore(service.url)
        with Registry(client, RUN) as reader:
            assert reader.request_direct(1, 5)
            assert reader.request_direct(1, 5)
            with pytest.raises(NotFound):
                reader.request_direct(1, 6)
            assert not reader.request_direct(1, 2)
        client.close()
    [key] = store.list(f"{RUN}/{keys.REQUESTS}")
    found = DirectRequest.unseal(store.get(key))
    assert (found.base, found.target) == (1, 5)
    assert key == f"{RUN}/{keys.request_key(1, 5, found.reader)}"


def test_asking_twice_and_for_what_is_there_is_no_error(store: DictStore, call: Call) -> None:
    for _ in range(2):
        assert call("PUT", f"{URL}/1/5/{READER}", body=request()).status == 204
    assert call("PUT", f"{URL}/1/2/{READER}", body=request(1, 2)).status == 204
    assert len(list(store.list(f"{RUN}/{keys.REQUESTS}"))) == 1


@pytest.mark.parametrize(
    ("address", "body", "status"),
    [
        (f"{URL}/1/5/{READER}", b"{}", 400),
        (f"{URL}/1/5/{READER}", request(1, 4), 400),
        (f"{URL}/1/5/{READER}", request(run="other"), 400),
        (f"{URL}/1/5/{READER}", request(reader="6" * 32), 400),
        (f"{URL}/1/9/{READER}", request(1, 9), 404),
        (f"/v1/runs/none/requests/1/5/{READER}", request(run="none"), 404),
        (f"{URL}/1/5/short", request(), 422),
        (f"{URL}/01/5/{READER}", request(), 422),
    ],
)
def test_what_is_no_request_is_refused(store: DictStore, call: Call, address: str, body: bytes, status: int) -> None:
    assert call("PUT", address, body=body).status == status
    assert list(store.list(f"{RUN}/{keys.REQUESTS}")) == []


def test_a_service_gives_out_no_requests(store: DictStore) -> None:
    with running(app_over(store)) as service:
        client = ServiceStore(service.url)
        with pytest.raises(InvalidArgument):
            list(client.list(f"{RUN}/{keys.REQUESTS}"))
        client.close()
