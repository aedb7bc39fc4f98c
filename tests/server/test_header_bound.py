"""The bound on a request's line and headers hangs on methods of uvicorn's own: they are still called, and it holds."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from pulse_server.command import protocol

LIMIT = 2_000
REQUEST = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n"


class Wire(asyncio.Transport):
    """What a connection would carry away."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = b""
        self.closed = False

    def write(self, data: Any) -> None:
        self.sent += bytes(data)

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed


async def app(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


class Connection:
    """One connection to uvicorn's protocol with our bound; ``called`` holds which of our methods it has called."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        bounded = protocol(LIMIT)
        self.called: set[str] = set()
        self.overridden = {name for name, member in vars(bounded).items() if callable(member)}
        noticing = type("Noticing", (bounded,), {name: self._noticing(bounded, name) for name in self.overridden})
        self._loop, self.wire = loop, Wire()
        config = Config(app, loop="asyncio", lifespan="off", log_config=None, ws="none")
        config.load()
        self.protocol: HttpToolsProtocol = noticing(config, ServerState(), {}, loop)
        self.protocol.connection_made(self.wire)

    def _noticing(self, bounded: type, name: str) -> Any:
        def method(protocol: Any, *args: Any) -> Any:
            self.called.add(name)
            return getattr(bounded, name)(protocol, *args)

        return method

    def send(self, data: bytes) -> bytes:
        """Send bytes, and return what comes back."""
        self.wire.sent = b""
        self.protocol.data_received(data)
        tasks = self.protocol.tasks
        if tasks:
            self._loop.run_until_complete(asyncio.wait(tasks))
        return self.wire.sent


@pytest.fixture
def connection() -> Iterator[Connection]:
    loop = asyncio.new_event_loop()
    connection = Connection(loop)
    yield connection
    connection.protocol.connection_lost(None)
    loop.close()


def test_uvicorn_calls_all_that_the_bound_hangs_on(connection: Connection) -> None:
    assert connection.overridden == {"data_received", "on_message_begin", "on_headers_complete", "send_400_response"}
    assert connection.overridden <= set(dir(HttpToolsProtocol))
    assert connection.send(REQUEST).startswith(b"HTTP/1.1 200")
    assert connection.send(b"no request\r\n\r\n").startswith(b"HTTP/1.1 400")
    assert connection.called == connection.overridden


def test_a_head_that_is_whole_and_too_long_is_refused(connection: Connection) -> None:
    assert connection.send(REQUEST[:-2] + b"x: " + b"a" * LIMIT + b"\r\n\r\n").startswith(b"HTTP/1.1 431")
    assert connection.wire.closed


@pytest.mark.parametrize("before", [0, 1, 3], ids=lambda before: f"{before}-before")
def test_a_head_without_end_is_refused_on_a_new_connection_and_on_one_in_use(
    connection: Connection, before: int
) -> None:
    long = b"y: " + b"b" * (LIMIT * 3 // 4) + b"\r\n\r\n"
    for _ in range(before):  # each head is counted for itself
        assert connection.send(REQUEST[:-2] + long).startswith(b"HTTP/1.1 200")
    connection.send(b"GET / HTTP/1.1\r\nx: ")
    for _ in range(LIMIT // 100 - 1):
        assert connection.send(b"a" * 100) == b""
    assert connection.send(b"a" * 100).startswith(b"HTTP/1.1 431")
    assert connection.wire.closed


def test_a_long_body_is_no_long_head(connection: Connection) -> None:
    head = b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % (10 * LIMIT)
    connection.send(head)
    for _ in range(9):
        connection.send(b"x" * LIMIT)
    assert not connection.wire.closed
