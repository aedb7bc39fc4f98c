"""One connection to the service's protocol, without a network: what a client sends, and what comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from pulse_server.transport.connection import Connection, bounded

LIMIT = 2_000
UNSENT = 64 << 20
PACE_S = 60.0
IDLE_S = 75
REQUEST = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n"
CHUNKED = b"POST / HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"


class Wire(asyncio.Transport):
    """What a connection would carry away."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = b""
        self.closed = False
        self.aborted = False
        self.reading = True
        self.unsent = 0

    def write(self, data: Any) -> None:
        self.sent += bytes(data)

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = self.aborted = True

    def is_closing(self) -> bool:
        return self.closed

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


class Timers:
    """An event loop's timers, which ring when a test says so."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._set: list[tuple[float, Callable[[], None], asyncio.TimerHandle]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)

    def call_later(self, seconds: float, call: Callable[[], None]) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(seconds, call, (), self._loop)
        self._set.append((seconds, call, handle))
        return handle

    def pass_(self, seconds: float) -> None:
        """Let time pass: those that were set for so long, or less, ring."""
        rung = [entry for entry in self._set if entry[0] <= seconds and not entry[2].cancelled()]
        self._set = [entry for entry in self._set if entry not in rung]
        for _, call, _ in rung:
            call()


class Peer:
    """One connection to uvicorn's protocol with our bounds.

    ``called`` holds which of our methods it has called; ``app`` answers with 200, before or after ``body`` was read, or
    not before ``hold`` is set.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        protocol = bounded(max_header_bytes=LIMIT, pace_s=PACE_S, max_connections=2, max_unsent_bytes=UNSENT)
        self.called: set[str] = set()
        self.overridden = {name for name in vars(Connection) if callable(getattr(HttpToolsProtocol, name, None))}
        self.overridden -= {"__init__", "__doc__", "__module__"}
        noticing = type("Noticing", (protocol,), {name: self._noticing(protocol, name) for name in self.overridden})
        self.loop, self.timers, self.wire = loop, Timers(loop), Wire()
        self.hold: asyncio.Event | None = None
        self.reads = False
        config = Config(
            self._app, interface="asgi3", lifespan="off", log_config=None, ws="none", timeout_keep_alive=IDLE_S
        )
        config.load()
        self.protocol: Connection = noticing(config, ServerState(), {}, self.timers)
        self.make = lambda: noticing(config, ServerState(), {}, self.timers)
        self.protocol.connection_made(self.wire)

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        while self.reads and (await receive()).get("more_body"):
            pass
        if self.hold is not None:
            await self.hold.wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    def _noticing(self, protocol: type, name: str) -> Any:
        def method(connection: Any, *args: Any) -> Any:
            self.called.add(name)
            return getattr(protocol, name)(connection, *args)

        return method

    def send(self, data: bytes) -> bytes:
        """Send bytes, and return what comes back."""
        self.wire.sent = b""
        self.protocol.data_received(data)
        for _ in range(10):
            self.loop.run_until_complete(asyncio.sleep(0))
        return self.wire.sent
