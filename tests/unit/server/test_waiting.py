"""Waiting over real sockets: woken by a push, sent away in time or at a stop, forgotten when gone."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from pulse_registry.errors import StoreUnavailable
from pulse_registry.store import MOST_WHOLE_BYTES, ByteRange
from pulse_server.runs.log_feed import LogFeed
from pulse_server.tokens import TokenFile, new_token
from tests.support.apps import LAYOUT, Running, app_over, fill, run_of, running, store_objects, store_record
from tests.support.records import RUN, DictStore, Script
from tests.support.waiting import HANG_S, until
from tests.unit.server.edges import NOW, Clock, bearer

URL = f"/v1/runs/{RUN}"


@pytest.fixture
def store() -> DictStore:
    return DictStore()


@pytest.fixture
def script(store: DictStore) -> Script:
    return fill(store, run_of(2))


@pytest.fixture
def served(store: DictStore, script: Script) -> Iterator[Running]:
    with running(app_over(store)) as served:
        yield served


@pytest.fixture
def client(served: Running) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=served.url, timeout=HANG_S) as client:
        yield client


def waiting(served: Running) -> int:
    return served.inside(lambda: sum(feed.waiting for feed in served.service.feeds))


def address(served: Running) -> tuple[str, int]:
    host, _, port = served.url.removeprefix("http://").partition(":")
    return host, int(port)


def listens(served: Running) -> bool:
    try:
        socket.create_connection(address(served), timeout=HANG_S).close()
    except ConnectionError:
        return False
    return True


class Parked:
    """Connections that wait, each with one request of its own."""

    def __init__(self, served: Running, path: str, count: int) -> None:
        self.sockets = [socket.create_connection(address(served), timeout=HANG_S) for _ in range(count)]
        for connection in self.sockets:
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        until(lambda: waiting(served) >= count)

    def answers(self) -> list[bytes]:
        found = []
        for connection in self.sockets:
            data = b""
            while piece := connection.recv(65536):
                data += piece
            found.append(data)
        self.close()
        return found

    def close(self) -> None:
        for connection in self.sockets:
            connection.close()


@pytest.mark.parametrize("path", ["/versions/latest?after=1&wait=3600", "/log?since=3&wait=3600"])
def test_a_push_to_the_bucket_wakes_all_who_wait(served: Running, store: DictStore, script: Script, path: str) -> None:
    parked = Parked(served, URL + path, 200)
    store_record(store, script.commit(layout=LAYOUT.id).records[-1])
    answers = parked.answers()
    assert [answer.partition(b"\r\n")[0] for answer in answers] == [b"HTTP/1.1 200 OK"] * 200
    expected = b'"version":2' if "latest" in path else script.records[-1].write_id.encode()
    assert all(expected in answer for answer in answers)
    assert waiting(served) == 0


def test_a_commit_through_the_service_wakes_those_who_wait(
    served: Running, client: httpx.Client, store: DictStore, script: Script
) -> None:
    parked = Parked(served, f"{URL}/versions/latest?after=1&wait=3600", 20)
    record = script.make_commit(layout=LAYOUT.id)
    store_objects(store, record)
    assert client.post(f"{URL}/log", content=record.seal()).status_code == 201
    assert all(b'"version":2' in answer for answer in parked.answers())


@pytest.mark.slow
def test_a_wait_in_vain_ends_with_204_or_an_empty_page(client: httpx.Client) -> None:
    answer = client.get(f"{URL}/versions/latest?after=1&wait=1")
    assert (answer.status_code, answer.content) == (204, b"")
    assert client.get(f"{URL}/log?since=3&wait=1").json()["records"] == []
    assert client.get(f"{URL}/versions/latest?after=1&wait=0").status_code == 204


def test_nobody_waits_longer_than_the_service_allows(store: DictStore, script: Script) -> None:
    with (
        running(app_over(store, wait_max_s=0.05)) as served,
        httpx.Client(base_url=served.url, timeout=HANG_S) as client,
    ):
        assert (
            client.get(f"{URL}/versions/latest?after=1&wait=3600").status_code == 204
        )  # and the client has waited less
        assert client.get(f"{URL}/versions/latest?after=1&wait=99999").status_code == 422


def test_clients_that_go_away_are_forgotten(served: Running) -> None:
    parked = Parked(served, f"{URL}/versions/latest?after=1&wait=3600", 50)
    parked.close()
    until(lambda: waiting(served) == 0)


def test_a_stop_sends_all_away_at_once(served: Running, client: httpx.Client) -> None:
    versions = Parked(served, f"{URL}/versions/latest?after=1&wait=3600", 50)
    records = Parked(served, f"{URL}/log?since=3&wait=3600", 1)
    served.inside(served.service.stop_waiting)
    assert {answer.partition(b"\r\n")[0] for answer in versions.answers()} == {b"HTTP/1.1 204 No Content"}
    assert all(b'"records":[]' in answer for answer in records.answers())
    assert client.get(f"{URL}/versions/latest?after=1&wait=3600").status_code == 204
    assert client.get("/readyz").status_code == 503


def test_an_append_that_was_accepted_is_finished_when_the_service_stops(store: DictStore, script: Script) -> None:
    entered, gate = threading.Event(), threading.Event()

    class Slow(DictStore):
        def put(self, key: str, data: object, *, if_absent: bool = False) -> None:
            if if_absent and "/log/" in key:
                entered.set()
                gate.wait(HANG_S)
            super().put(key, data, if_absent=if_absent)  # type: ignore[arg-type]

    def open_at_the_stop(served: Running) -> None:
        until(lambda: served.service.stopping and not listens(served))
        gate.set()

    slow = Slow()
    slow.objects = store.objects
    record = script.make_commit(layout=LAYOUT.id)
    store_objects(store, record)
    with ThreadPoolExecutor(1) as pool:
        with running(app_over(slow)) as served:
            answer = pool.submit(httpx.post, f"{served.url}{URL}/log", content=record.seal(), timeout=HANG_S)
            assert entered.wait(HANG_S)
            threading.Thread(target=open_at_the_stop, args=(served,)).start()
        assert answer.result().status_code == 201
    assert store.get(f"{RUN}/log/000000000003.json") == record.seal()


@pytest.mark.slow
def test_old_memory_is_served_with_its_age_while_the_store_is_down(store: DictStore, script: Script) -> None:
    down = threading.Event()

    class Failing(DictStore):
        def get(self, key: str, byte_range: ByteRange | None = None, *, max_bytes: int = MOST_WHOLE_BYTES) -> bytes:
            if down.is_set():
                raise StoreUnavailable("unplugged")
            return super().get(key, byte_range, max_bytes=max_bytes)

    failing, clock = Failing(), Clock()
    failing.objects = store.objects
    with (
        running(app_over(failing, clock=clock.monotonic, ready_seconds=60, probe_seconds=0.02)) as served,
        httpx.Client(base_url=served.url, timeout=HANG_S) as client,
    ):
        assert client.get(f"{URL}/versions/latest").json()["version"] == 1
        until(lambda: client.get("/readyz").status_code == 200)
        down.set()

        def not_ready() -> bool:
            clock.seconds += 61  # again: an answer may have been under way
            return client.get("/readyz").status_code == 503

        until(not_ready)
        until(lambda: int(client.get(f"{URL}/versions/latest").headers["age"]) >= 61)
        page = client.get(f"{URL}/versions").json()
        assert (len(page["versions"]), page["age_s"] >= 61) == (2, True)
        assert client.get("/v1/runs/other").status_code == 503
        assert client.get("/healthz").status_code == 200
        down.clear()
        until(lambda: client.get("/readyz").status_code == 200)
        store_record(store, script.commit(layout=LAYOUT.id).records[-1])
        assert client.get(f"{URL}/versions/latest?after=1&wait=3600").json()["version"] == 2


def test_who_began_to_wait_together_does_not_ask_again_together(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []

    async def wait(feed: LogFeed[Any, Any], ready: Any, timeout_s: float, receive: Any = None) -> bool:
        waited.append(timeout_s)
        return False

    monkeypatch.setattr(LogFeed, "wait", wait)
    random.seed(1)
    for _ in range(40):
        assert client.get(f"{URL}/versions/latest?after=1&wait=20").status_code == 204
    assert 15.0 <= min(waited) < 17.0 < 18.0 < max(waited) <= 20.0


@pytest.mark.parametrize("path", ["/versions/latest?after=1&wait=3600", "/log?since=3&wait=3600"])
def test_who_waits_with_a_token_that_is_revoked_meanwhile_is_told_nothing(
    store: DictStore, script: Script, tmp_path: Path, path: str
) -> None:
    clock, file = Clock(), TokenFile(tmp_path / "tokens.json")
    token, entry = new_token("reader", "read", ("*",), now=NOW)
    file.add(entry)
    app = app_over(store, clock=clock.monotonic, insecure_open=False, tokens_file=file.path)
    with running(app) as served, ThreadPoolExecutor(1) as pool:
        answer = pool.submit(httpx.get, f"{served.url}{URL}{path}", headers=bearer(token), timeout=HANG_S)
        until(lambda: waiting(served) == 1)
        file.remove(entry.id)
        clock.seconds += 1
        store_record(store, script.commit(layout=LAYOUT.id).records[-1])
        assert answer.result().status_code == 401
