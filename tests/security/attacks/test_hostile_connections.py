"""``pulse serve`` and clients that send what is no request, without end: what it takes in memory is bounded."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest

from pulse_registry.format import keys
from pulse_registry.store import open_store
from tests.support.apps import fill, run_of
from tests.support.service import Served, pulse_serve
from tests.support.waiting import HANG_S

MIB = 1 << 20
FLOOD = 8 * MIB
"""Bytes that each connection sends, or fewer where it is cut off: kept, they would take hundreds of MiB."""
CONNECTIONS = 3
GROWTH = 32 * MIB
HOST = b"host: localhost\r\n"
CHUNKED = b"POST /v1/runs/run/urls HTTP/1.1\r\n" + HOST + b"transfer-encoding: chunked\r\n\r\n"
WAITS = b"GET /v1/runs/run/versions/latest?after=0&wait=60 HTTP/1.1\r\n" + HOST + b"\r\n"

OBJECT = keys.patch_key(0, 1, "a" * 32)
READERS = 100

FLOODS: dict[str, tuple[bytes, bytes]] = {
    "headers": (b"GET / HTTP/1.1\r\n" + HOST, b"a:b\r\n"),
    "one header": (b"GET / HTTP/1.1\r\n" + HOST + b"a:", b"b" * 64),
    "a path": (b"GET /", b"a" * 64),
    "lines before a request": (b"", b"\r\n"),
    "trailers": (CHUNKED + b"0\r\n", b"a:b\r\n"),
    "one trailer": (CHUNKED + b"0\r\na:", b"b" * 64),
    "an extension of a chunk": (CHUNKED + b"1;", b"a" * 64),
    "chunks of one byte": (CHUNKED, b"1\r\na\r\n"),
    "requests that wait": (WAITS, b"GET / HTTP/1.1\r\n" + HOST + b"\r\n"),
    "a body that waits": (WAITS + CHUNKED, b"10000\r\n" + b"x" * 0x10000 + b"\r\n"),
}


@pytest.fixture(scope="module", params=["", "127.0.0.1"], ids=["alone", "behind-a-proxy"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    store = open_store(str(folder / "root"))
    fill(store, run_of(1, "run"))
    store.put(f"run/{OBJECT}", b"x" * (32 * MIB))
    proxies = {"PULSE_TRUSTED_PROXIES": request.param} if request.param else {}
    with pulse_serve(str(folder / "root"), folder, "--insecure-open", environment=proxies) as served:
        yield served


def peak_of(served: Served) -> int:
    """Return the most memory that the process has had, in bytes."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{served.process.pid}/status").read_text())
    if found is None:
        pytest.skip("this system does not tell of a process's memory")
    return int(found[1]) << 10


def send(served: Served, beginning: bytes, more: bytes) -> int:
    """Send a beginning, and then the same again and again, until the service ends the connection; return the bytes."""
    piece = more * max(1, 65_536 // len(more))
    sent = 0
    with closing(socket.create_connection(served.address, HANG_S)) as connection, suppress(ConnectionError):
        connection.sendall(beginning)
        while sent < FLOOD:
            connection.sendall(piece)
            sent += len(piece)
    return sent


def ask(served: Served, request: bytes) -> tuple[bytes, bytes]:
    """Return the status line and the body of an answer to the last request of a connection."""
    with closing(socket.create_connection(served.address, HANG_S)) as connection:
        connection.sendall(request)
        answer = b"".join(iter(lambda: connection.recv(65_536), b""))
    head, _, body = answer.partition(b"\r\n\r\n")
    return head.partition(b"\r\n")[0], body


@pytest.mark.parametrize("what", FLOODS)
def test_what_is_no_body_takes_no_memory(served: Served, what: str) -> None:
    before = peak_of(served)
    sent = [send(served, *FLOODS[what]) for _ in range(CONNECTIONS)]
    assert max(sent) < FLOOD, "the service ended the connection"
    assert peak_of(served) - before < GROWTH
    status, body = ask(served, b"GET /v1/runs/run/versions/latest HTTP/1.1\r\n" + HOST + b"connection: close\r\n\r\n")
    assert status == b"HTTP/1.1 200 OK"
    assert json.loads(body)["version"] == 0


@pytest.mark.slow
def test_a_proxy_that_hands_on_a_list_of_all_that_it_was_told_takes_no_memory(served: Served) -> None:
    before = peak_of(served)
    for number in range(300):
        forged = b"x-forwarded-for: " + b"%d, " % number * 10_000 + b"\r\n"
        with closing(socket.create_connection(served.address, HANG_S)) as connection:
            connection.sendall(b"GET /v1/runs HTTP/1.1\r\n" + HOST + forged[:50_000] + b"\r\n\r\n")
            assert connection.recv(100).startswith(b"HTTP/1.1 200")
    assert peak_of(served) - before < GROWTH


@pytest.mark.slow
def test_readers_that_take_nothing_of_an_object_take_little_memory(served: Served) -> None:
    request = f"GET /v1/runs/run/{OBJECT} HTTP/1.1\r\n".encode() + HOST + b"\r\n"
    with ExitStack() as stack:
        peak = peak_of(served)
        readers = [stack.enter_context(closing(socket.socket())) for _ in range(READERS)]
        for reader in readers:
            reader.settimeout(HANG_S)
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            reader.connect(served.address)
            reader.sendall(request)
        for reader in readers:
            assert reader.recv(12) == b"HTTP/1.1 200"
        for _ in range(3):  # those before were answered meanwhile
            assert ask(served, b"GET /healthz HTTP/1.1\r\nconnection: close\r\n" + HOST + b"\r\n")[0].endswith(
                b"200 OK"
            )
        assert peak_of(served) - peak < READERS * 2 * MIB
