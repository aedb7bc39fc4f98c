"""Bodies that make the most of their length: no answer, and no memory, grows with what is wrong in them."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection, HTTPResponse

import pytest
from blake3 import blake3

from pulse_registry.store import open_store
from pulse_schemas import Layout, Tensor
from pulse_server.errors import MOST_SHOWN
from pulse_server.runs.layouts import SHORT
from tests.security.attacks.edits import sealed_bytes
from tests.security.attacks.test_hostile_connections import peak_of
from tests.support.apps import fill, run_of
from tests.support.operations import Described, described
from tests.support.records import RUN
from tests.support.service import Served, pulse_serve
from tests.support.waiting import HANG_S

MIB = 1 << 20
GROWTH = 96 * MIB
"""Of the service's memory over all requests: one body of 2 MiB in these shapes took 4 GiB."""
LONGEST_ANSWER = 4 * MOST_SHOWN


def shapes(nbytes: int) -> dict[str, bytes]:
    """Return bodies of about so many bytes."""
    return {
        "keys that are no text": b'{"keys":[' + b"1," * (nbytes // 2 - 8) + b"1]}",
        "keys without letters": b'{"keys":[' + b'"",' * (nbytes // 3 - 8) + b'""]}',
        "empty parts": b'{"key":"a","parts":[' + b"{}," * (nbytes // 3 - 16) + b"{}]}",
        "empty phases": b'{"version":1,"digest":"x","timeline":[' + b"{}," * (nbytes // 3 - 32) + b"{}]}",
        "fields that are not known": b"{" + b",".join(b'"%x":1' % n for n in range(nbytes // 12)) + b"}",
        "a field, many times": b"{" + b",".join([b'"a":1'] * (nbytes // 6)) + b"}",
        "lists, and a field is missing": b'{"a":[' + b"[]," * (nbytes // 3 - 8) + b"[]]}",
        "objects, and a field is missing": b'{"a":[' + b'{"a":{}},' * (nbytes // 9 - 8) + b"{}]}",
        "lists in lists": b"[" * nbytes,
        "a long number": b'{"size":' + b"9" * (nbytes - 16) + b"}",
        "a long key": b'{"key":"' + b"a" * (nbytes - 16) + b'"}',
        "a long name": b'{"' + b"a" * (nbytes - 16) + b'":1}',
        "half characters": b'{"key":"' + b"\\ud800" * (nbytes // 6 - 8) + b'"}',
        "no text": b"\xff" * nbytes,
    }


def records(nbytes: int) -> dict[str, bytes]:
    """Return what is sealed, and as long."""
    nbytes -= 2_000
    commit = run_of(1).records[1].canonical()
    head, _, tail = commit.partition(b'"metadata":{')
    _, _, tail = tail.partition(b"}")
    found = {f"sealed: {name}": body for name, body in shapes(nbytes).items()}
    found |= {
        f"metadata: {name}": head + b'"metadata":{"a":' + body + b"}" + tail for name, body in shapes(nbytes).items()
    }
    found["retired versions that are none"] = b'{"kind":"retire","versions":[' + b'"",' * (nbytes // 3 - 16) + b'""]}'
    found["empty patches"] = b'{"kind":"attach","patches":[' + b"{}," * (nbytes // 3 - 16) + b"{}]}"
    return {name: sealed_bytes(body) for name, body in found.items()}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    fill(open_store(str(folder / "root")), run_of(1))
    with pulse_serve(str(folder / "root"), folder, "--insecure-open") as served:
        yield served


def send(connection: HTTPConnection, method: str, path: str, body: bytes = b"") -> tuple[HTTPResponse, bytes]:
    """Send a request, and return its answer."""
    connection.request(method, path, body, {"content-length": str(len(body))})
    answer = connection.getresponse()
    return answer, answer.read()


@pytest.fixture
def connection(served: Served) -> Iterator[HTTPConnection]:
    with closing(HTTPConnection(*served.address, timeout=HANG_S)) as connection:
        yield connection


TAKE_JSON = [one for one in described() if one.takes_body and one.max_body is not None]


@pytest.mark.parametrize("operation", TAKE_JSON, ids=lambda one: f"{one.method} {one.path.rpartition('}/')[2]}")
def test_no_answer_and_no_memory_grows_with_the_faults_of_a_body(
    served: Served, connection: HTTPConnection, operation: Described
) -> None:
    assert operation.max_body is not None
    most = min(operation.max_body, 2 * MIB)
    before = peak_of(served)
    for name, body in (records if operation.tag == "log" else shapes)(most).items():
        assert len(body) <= most, name
        answer, told = send(connection, operation.method, operation.example.replace("math-7b", RUN), body)
        assert 400 <= answer.status < 500, name
        assert len(told) < LONGEST_ANSWER, name
        assert json.loads(told)["status"] == answer.status
    assert peak_of(served) - before < GROWTH


def test_a_body_that_is_longer_than_any_is_not_read(served: Served) -> None:
    """What took 78 s and 7.8 GB."""
    before = peak_of(served)
    with closing(socket.create_connection(served.address, HANG_S)) as connection:
        head = b"POST /v1/runs/%s/urls HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n"
        connection.sendall(head % (RUN.encode(), 15 * MIB))
        assert connection.recv(64).startswith(b"HTTP/1.1 413")
    assert peak_of(served) - before < GROWTH


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lists, and a field is missing", "fields that are not known", "a long name"])
def test_a_long_layout_that_is_none_takes_no_memory_of_the_service(
    served: Served, connection: HTTPConnection, name: str
) -> None:
    body = shapes(MIB)[name]
    before = peak_of(served)
    answer, told = send(connection, "PUT", f"/v1/runs/{RUN}/layouts/{blake3(body).hexdigest()}", body)
    assert (answer.status, b"this is no layout" in told) == (400, True)
    assert len(told) < LONGEST_ANSWER
    assert peak_of(served) - before < GROWTH


def test_a_long_layout_is_taken(served: Served, connection: HTTPConnection) -> None:
    names = (f"model.layers.{number:05d}.weight" for number in range(2_000))
    layout = Layout(tensors=tuple(Tensor(name=name, dtype="BF16", shape=(8, 8)) for name in names))
    data = layout.canonical()
    assert len(data) > SHORT
    answer, _ = send(connection, "PUT", f"/v1/runs/{RUN}/layouts/{layout.id}", data)
    assert answer.status == 201
    answer, told = send(connection, "GET", f"/v1/runs/{RUN}/layouts/{layout.id}")
    assert told == data


ODD = {
    "a path": "/v1/runs/" + "a" * 60_000,
    "a coded path": "/v1/runs/" + "%61" * 20_000,
    "a coded name": f"/v1/runs/{RUN}/versions/" + "%0a" * 20_000,
    "an object's path": f"/v1/runs/{RUN}/objects/" + "a/" * 30_000,
    "a query": f"/v1/runs/{RUN}/versions?after=" + "9" * 60_000,
    "fields of a query": f"/v1/runs/{RUN}/versions?" + "a=1&" * 15_000,
    "a step": f"/v1/runs/{RUN}/versions/step:" + "9" * 60_000,
    "a coded query": f"/v1/runs/{RUN}/versions?kind=" + "%ff" * 20_000,
}


@pytest.mark.parametrize("what", ODD)
def test_long_addresses_are_refused_in_short(connection: HTTPConnection, what: str) -> None:
    answer, told = send(connection, "GET", ODD[what])
    assert 400 <= answer.status < 500
    assert len(told) < LONGEST_ANSWER


HEADERS = {
    "range": "bytes=" + "0-1," * 15_000,
    "range of many digits": "bytes=" + "9" * 60_000 + "-",
    "if-none-match": '"a",' * 15_000,
    "content-digest": "a=:b:," * 10_000,
    "last-event-id": "9" * 60_000,
    "authorization": "Bearer pulse_" + "a" * 60_000,
    "cookie": "a=b; " * 12_000,
    "accept-encoding": "gzip;q=0.1," * 5_000,
    "x-forwarded-for": "10.0.0.1," * 6_000,
}


@pytest.mark.parametrize("what", HEADERS)
def test_long_headers_are_answered_in_short(connection: HTTPConnection, what: str) -> None:
    name = what.partition(" ")[0]
    for method, path in (
        ("GET", f"/v1/runs/{RUN}/versions/latest"),
        ("GET", f"/v1/runs/{RUN}/objects/patch/{'0' * 12}-{'0' * 11}1-{'0' * 32}.safetensors"),
        ("PUT", f"/v1/runs/{RUN}/workers/w"),
    ):
        connection.request(method, path, headers={name: HEADERS[what]})
        answer = connection.getresponse()
        assert len(answer.read()) < LONGEST_ANSWER
        assert answer.status < 500


def test_the_bodies_are_as_long_as_they_say_and_for_each_request() -> None:
    assert all(6_000 < len(body) <= 10_000 for body in shapes(10_000).values())
    assert len(TAKE_JSON) == 13
