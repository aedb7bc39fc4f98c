"""Documents of a run through the service: records, snapshots, layouts, and what it does not give out."""

from __future__ import annotations

import json
import threading

import pytest

import pulse_registry
from pulse_registry.client.api import ServiceApi
from pulse_registry.client.connect import connect
from pulse_registry.client.http_body import has_more_values
from pulse_registry.client.records import Records
from pulse_registry.client.store import ServiceStore
from pulse_registry.errors import (
    AccessDenied,
    CorruptObject,
    InvalidArgument,
    NotFound,
    StoreUnavailable,
    UnsupportedFormat,
)
from pulse_registry.format import keys
from pulse_registry.store import MemoryStore, RetryStore, open_store
from tests.support.scripted_http import PATIENT, Asked, Reply, Server, document, problem, serving
from tests.support.waiting import HANG_S


class Log:
    """A service with one run, whose records are their numbers, as text in JSON."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.grown = threading.Condition()

    def script(self, asked: Asked) -> Reply:
        if asked.path.startswith("/v1/runs/run/log/"):
            seq = int(asked.path.rpartition("/")[2])
            return document(self.record(seq)) if seq < self.count else problem("NotFound", 404)
        assert asked.path == "/v1/runs/run/log"
        since, limit = int(asked.query["since"][0]), int(asked.query["limit"][0])
        if "wait" in asked.query:
            with self.grown:
                self.grown.wait_for(lambda: self.count > since, float(asked.query["wait"][0]))
        numbers = range(since, min(self.count, since + limit))
        return document({"run": "run", "since": since, "records": [self.record(seq).decode() for seq in numbers]})

    @staticmethod
    def record(seq: int) -> bytes:
        return f'{{"é":{seq}}}'.encode()

    def grow(self, count: int) -> None:
        with self.grown:
            self.count = count
            self.grown.notify_all()


def store(server: Server) -> ServiceStore:
    return ServiceStore(server.url, timeouts=PATIENT)


def read_all(of: ServiceStore, first: int) -> int:
    """Read on from a record to the end of the log, and return how many there were."""
    seq = first
    try:
        while True:
            assert of.get(f"run/{keys.record_key(seq)}") == Log.record(seq)
            seq += 1
    except NotFound:
        return seq - first


def test_records_that_are_read_in_order_come_by_pages() -> None:
    log = Log(350)
    with serving(log.script) as server:
        client = store(server)
        assert read_all(client, 63) == 287
        client.close()
    # the first one alone, pages of 100 from 64, 164 and 264, and the look for 350
    assert [asked.query.get("since", [asked.path])[0] for asked in server.asked] == [
        "/v1/runs/run/log/63", "64", "164", "264", "350",
    ]  # fmt: skip


def test_a_record_that_came_with_others_is_refused_where_it_is_longer_than_the_reader_expects() -> None:
    log = Log(3)
    with serving(log.script) as server:
        client = store(server)
        for seq in range(3):  # the first alone, the others by a page
            with pytest.raises(CorruptObject, match=keys.record_key(seq) if seq else "longer than 5 bytes"):
                client.get(f"run/{keys.record_key(seq)}", max_bytes=5)
        client.close()


def test_a_look_for_the_next_record_costs_one_request_and_misses_nothing() -> None:
    log = Log(2)
    with serving(log.script) as server:
        client = store(server)
        assert read_all(client, 0) == 2
        asked = len(server.asked)
        assert read_all(client, 2) == 0
        assert len(server.asked) == asked + 1
        log.grow(4)
        assert read_all(client, 2) == 2
        client.close()


def test_a_record_that_was_waited_for_is_there_without_another_request() -> None:
    log = Log(1)
    with serving(log.script) as server:
        client = store(server)
        timer = threading.Timer(0.1, log.grow, [3])
        timer.start()
        gateway = RetryStore(client).gateway()
        assert gateway is not None
        assert gateway.wait_for_record("run", 1, HANG_S)
        timer.join()
        assert gateway.wait_for_record("run", 2, HANG_S)
        assert client.get(f"run/{keys.record_key(1)}") == Log.record(1)
        assert client.get(f"run/{keys.record_key(2)}") == Log.record(2)
        client.close()
    assert len(server.asked) == 1


def test_a_record_that_does_not_come_is_waited_for_no_longer_than_asked() -> None:
    with serving(Log(1).script) as server:
        client = store(server)
        assert not client.wait_for_record("run", 1, 0.1)
        assert not client.wait_for_record("run", 1, 0.0)
        client.close()


def test_a_service_that_restarts_is_waited_for() -> None:
    log, pauses = Log(1), []
    replies = iter([Reply(502), problem("StoreUnavailable", 503, **{"Retry-After": "7"})])
    with serving(lambda asked: next(replies, None) or log.script(asked)) as server:
        api = ServiceApi(server.url, None, PATIENT)
        assert Records(api, sleep=pauses.append).wait("run", 0, HANG_S)
        api.close()
    assert len(pauses) == 2
    assert pauses[0] < 7 <= pauses[1]


@pytest.mark.parametrize(("name", "kind"), [("NotFound", NotFound), ("AccessDenied", AccessDenied)])
def test_who_waits_for_what_can_not_come_is_told(name: str, kind: type[Exception]) -> None:
    with serving(lambda _: problem(name, 404)) as server:
        client = store(server)
        with pytest.raises(kind):
            client.wait_for_record("run", 0, HANG_S)
        client.close()


def test_records_of_another_run_are_not_taken() -> None:
    with serving(lambda _: document({"run": "other", "since": 0, "records": ["{}"]})) as server:
        client = store(server)
        with pytest.raises(UnsupportedFormat):
            client.wait_for_record("run", 0, HANG_S)
        client.close()


def test_snapshots_are_listed_in_order_and_a_run_that_is_not_there_has_none() -> None:
    answers = {
        "/v1/runs/run/snapshots": document({"snapshots": [255, 63]}),
        "/v1/runs/run/snapshots/63": document(b'{"a":1}'),
        "/v1/runs/run/head": document(b'{"h":1}'),
        f"/v1/runs/run/layouts/{'a' * 64}": document(b'{"l":1}'),
    }
    with serving(lambda asked: answers.get(asked.path, problem("NotFound", 404))) as server:
        client = store(server)
        names = [f"run/log/snapshots/{seq:012d}.json" for seq in (63, 255)]
        assert list(client.list("run/log/snapshots/")) == names
        assert list(client.list("run/log/snapshots/", after=names[0])) == names[1:]
        assert list(client.list("other/log/snapshots/")) == []
        assert client.get(names[0]) == b'{"a":1}'
        assert client.get("run/head", (1, 4)) == b'"h"'
        assert client.size(f"run/layouts/{'a' * 64}.json") == 7
        assert not client.exists("other/head")
        client.close()


def test_the_outer_log_has_snapshots_and_a_hint_of_its_own() -> None:
    answers = {
        "/v1/runs/run/outer/snapshots": document({"snapshots": [255, 63]}),
        "/v1/runs/run/outer/snapshots/63": document(b'{"a":1}'),
        "/v1/runs/run/outer/head": document(b'{"h":1}'),
    }
    with serving(lambda asked: answers.get(asked.path, problem("NotFound", 404))) as server:
        client = store(server)
        names = [f"run/outer/log/snapshots/{seq:012d}.json" for seq in (63, 255)]
        assert list(client.list("run/outer/log/snapshots/")) == names
        assert client.get(names[0]) == b'{"a":1}'
        assert client.get("run/outer/head") == b'{"h":1}'
        assert not client.exists("run/head")
        assert list(client.list("other/outer/log/snapshots/")) == []
        with pytest.raises(InvalidArgument, match="lists the countersignatures of a run"):
            client.list("run/inner/log/snapshots/")
        client.close()


def test_a_record_is_appended_and_a_layout_stored_as_they_are() -> None:
    with serving(lambda asked: document({"run": "run", "seq": 7}, 201)) as server:
        client = store(server)
        client.put(f"run/{keys.record_key(7)}", b'{"sealed":1}', if_absent=True)
        client.put(f"run/layouts/{'b' * 64}.json", [b'{"tensors"', b":[]}"], if_absent=True)
        client.close()
    assert [(asked.method, asked.path, asked.body) for asked in server.asked] == [
        ("POST", "/v1/runs/run/log", b'{"sealed":1}'),
        ("PUT", f"/v1/runs/run/layouts/{'b' * 64}", b'{"tensors":[]}'),
    ]


def test_a_service_refuses_what_is_not_for_clients_without_being_asked() -> None:
    with serving(lambda _: document({})) as server:
        client = store(server)
        for call in (
            lambda: client.put(f"run/{keys.record_key(7)}", b""),
            lambda: client.put("run/head", b""),
            lambda: client.put("run/log/snapshots/000000000063.json", b""),
            lambda: client.delete("run/head"),
            lambda: client.list(""),
            lambda: client.list("run/"),
            lambda: client.list("RUN/log/snapshots/"),
            lambda: client.get("run"),
            lambda: client.get("run/reports/a.json"),
            lambda: client.get("run/log/7.json"),
            lambda: client.get("../head"),
            lambda: client.get("Run/head"),
            lambda: client.get("run/head", (3, 2)),
        ):
            with pytest.raises(InvalidArgument):
                call()
        assert server.asked == []
        client.close()
        with pytest.raises(InvalidArgument, match="closed"):
            client.get("run/head")


def test_a_token_comes_from_the_caller_or_the_environment_and_is_for_services_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent = []
    monkeypatch.setenv("PULSE_TOKEN", "of-the-environment")
    with serving(lambda asked: document(b"{}")) as server:
        for token in (None, "of-the-caller"):
            client = connect(server.url, token)
            client.get("run/head")
            del client
        sent = [asked.headers["Authorization"] for asked in server.asked]
    assert sent == ["Bearer of-the-environment", "Bearer of-the-caller"]
    assert isinstance(connect("memory://tokens"), MemoryStore)
    with pytest.raises(InvalidArgument, match="token"):
        connect("memory://tokens", "of-the-caller")


def test_whether_a_token_may_go_in_clear_is_said_by_the_caller_or_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url, token = "http://pulse.example.com", "of-the-caller"
    monkeypatch.setenv("PULSE_TOKEN", token)
    for refused in (
        lambda: connect(url),
        lambda: pulse_registry.open(url, run="run", token=token),
    ):
        with pytest.raises(InvalidArgument, match="PULSE_ALLOW_HTTP"):
            refused()
    assert repr(connect(url, token, allow_http=True)) == "ServiceStore('http://pulse.example.com')"
    monkeypatch.setenv("PULSE_ALLOW_HTTP", "1")
    assert isinstance(connect(url), ServiceStore)
    with pytest.raises(InvalidArgument, match=r"a service, and no store.*connect"):
        open_store(url)
    with pytest.raises(InvalidArgument):
        connect(url, allow_http=False)
    monkeypatch.setenv("PULSE_ALLOW_HTTP", "perhaps")
    with pytest.raises(InvalidArgument, match="perhaps"):
        connect(url)


def test_a_service_that_is_gone_is_a_typed_error() -> None:
    with serving(lambda _: document({})) as server:
        url = server.url
    client = ServiceStore(url, timeouts=PATIENT)
    with pytest.raises(StoreUnavailable):
        client.get("run/head")
    client.close()


def test_the_values_of_an_answer_are_counted_whatever_its_texts_hold() -> None:
    body = json.dumps({"run": "run", "since": 7, "records": ['{"a":"\\"[,{","b":[1,2,{}]}' * 500] * 100}).encode()
    assert not has_more_values(body, 2_000)
    assert has_more_values(body, 200)
    for nothing in (b"", b'"', b'"\\', b"\\" * 9, b"17"):
        assert not has_more_values(nothing, 1)
