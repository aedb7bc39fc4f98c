"""Bodies of requests: as long as what a request may say, and read where nobody waits for it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient
from pydantic import BaseModel, field_validator

from pulse_registry.format import keys
from pulse_schemas import Lease
from pulse_schemas.api import CompleteRequest, PartDone, PhaseBody, UrlRequest, WorkerReport
from pulse_server.routes.json_body import SHORT_BODY, body_of
from tests.support.apps import app_over, fill, run_of
from tests.support.operations import Described, described
from tests.support.records import RUN, DictStore, write_id
from tests.unit.server.calling import calling

OPERATIONS = {(operation.method, operation.path): operation for operation in described()}
LONGEST_KEY = keys.keyframe_key(10**12 - 1, write_id(1), "x" * 128)
PHASES = {f"{number:_<64}": 123456.123456789 for number in range(16)}
LONGEST = {
    ("POST", "/v1/runs/{run}/urls"): UrlRequest(keys=(LONGEST_KEY,) * 1000),
    ("POST", "/v1/runs/{run}/uploads/{upload}/complete"): CompleteRequest(
        key=LONGEST_KEY,
        parts=tuple(PartDone(number=10_000, etag='"' + "5" * 40 + '-10000"', sha256="f" * 64) for _ in range(10_000)),
    ),
    ("PUT", "/v1/runs/{run}/workers/{worker}"): WorkerReport(
        version=10**11,
        digest="f" * 32,
        phases=PHASES,
        timeline=tuple(PhaseBody(phase=name, start=1 / 3, end=1e5, busy=1e5, nbytes=2**60) for name in PHASES),
        nbytes=2**60,
        avoided=(LONGEST_KEY,) * 64,
    ),
    ("PUT", "/v1/runs/{run}/leases/{reader}"): Lease(run="r" * 128, reader="r" * 160, version=10**11, seconds=86_400),
}


@pytest.mark.parametrize("where", LONGEST, ids=lambda where: where[1].split("/")[-1])
def test_the_longest_body_that_a_client_of_ours_sends_is_taken(where: tuple[str, str]) -> None:
    limit, longest = OPERATIONS[where].max_body, LONGEST[where]
    assert limit is not None
    body = longest.seal() if isinstance(longest, Lease) else longest.model_dump_json().encode()
    assert len(body) <= limit


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    store = DictStore()
    fill(store, run_of(1))
    with TestClient(app_over(store)) as client:
        yield client


@pytest.mark.parametrize(
    "operation",
    [one for one in OPERATIONS.values() if one.method in ("POST", "PUT") and one.max_body is not None],
    ids=lambda one: f"{one.method} {one.path}",
)
def test_a_body_is_as_long_as_its_request_may_be_and_no_longer(client: TestClient, operation: Described) -> None:
    assert operation.max_body is not None
    assert operation.max_body <= 8 << 20
    for size, statuses in ((operation.max_body, {400, 404, 422}), (operation.max_body + 1, {413})):
        answer = client.request(operation.method, operation.example, content=b" " * size)
        assert answer.status_code in statuses


def test_records_and_layouts_are_as_long_as_the_settings_allow(client: TestClient) -> None:
    for method, path in (("POST", "log"), ("PUT", f"layouts/{'a' * 64}")):
        assert client.request(method, f"/v1/runs/{RUN}/{path}", content=b" " * (3 << 20)).status_code == 400
    with calling(app_over(DictStore(), max_body_bytes=100)) as call:
        assert call("POST", f"/v1/runs/{RUN}/log", body=b" " * 101).status == 413
        assert call("POST", f"/v1/runs/{RUN}/urls", body=b" " * 101).status == 413


@pytest.mark.parametrize("nbytes", [100, SHORT_BODY + 1])
def test_a_long_body_is_not_read_on_the_event_loop(nbytes: int) -> None:
    class Asked(BaseModel):
        text: str

        @field_validator("text")
        @classmethod
        def _notice(cls, value: str) -> str:
            readers.append(threading.current_thread())
            return value

    class Sent:
        async def body(self) -> bytes:
            return b'{"text":"%s"}' % (b"x" * nbytes)

    readers: list[threading.Thread] = []
    sent: Any = Sent()
    assert len(asyncio.run(body_of(sent, Asked)).text) == nbytes
    assert (readers == [threading.current_thread()]) == (nbytes < SHORT_BODY)
