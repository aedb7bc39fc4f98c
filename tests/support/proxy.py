"""A proxy that spoils HTTP exchanges by seed: what a network, a load balancer or a failing server does to a client.

It understands just enough of HTTP/1.1 to tell one exchange from the next. Bodies are held whole, but for those of
unknown length (event streams), which are passed on as they come.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Literal, Self
from urllib.parse import urlsplit

FaultName = Literal["reset", "cut", "stall", "500", "503", "long", "short", "corrupt", "drop"]
FAULTS: tuple[FaultName, ...] = ("reset", "cut", "stall", "500", "503", "long", "short", "corrupt", "drop")
"""``reset``: the connection breaks before the server sees the request. ``drop``: it breaks after the server acted, with
no byte of the answer. ``cut``: it breaks at byte k of the answer. ``stall``: the answer stops at byte k, and the
connection stays. ``500``, ``503``: the server is not asked. ``long``, ``short``: a Content-Length that is not the
body's. ``corrupt``: one bit of the body is another."""

_READ = 256 << 10
_Head = tuple[bytes, dict[str, str]]


@dataclass
class Plan:
    """What goes wrong: a ``share`` of all exchanges, each with one of ``faults``, drawn by ``seed``."""

    share: float = 0.0
    faults: Sequence[FaultName] = FAULTS
    seed: int = 0
    stall_s: float = 60.0
    """A stalled connection is closed after so long; clients are to have given up before."""

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def draw(self) -> tuple[FaultName | None, float]:
        """Return the next exchange's fault, if it has one, and where in the answer it strikes, from 0 to 1."""
        fails, where = self._random.random() < self.share, self._random.random()
        return (self._random.choice(self.faults) if fails else None), where


@dataclass
class FaultyProxy:
    """Passes connections on to a server, and spoils some exchanges. A context manager.

    Attributes:
        target: the server's URL.
        plan: what goes wrong; may be replaced at any time.
        exchanges: how many there were.
        injected: how many of each fault.
    """

    target: str
    plan: Plan = field(default_factory=Plan)
    exchanges: int = 0
    injected: Counter[str] = field(default_factory=Counter)

    @property
    def endpoint(self) -> str:
        """URL to use in place of the server's."""
        return f"http://127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="faulty-proxy", daemon=True)
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._loop.close()

    def _serve(self) -> None:
        self._loop.run_until_complete(self._run())

    async def _run(self) -> None:
        self._stop = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0, limit=1 << 20)
        self._port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stop.wait()
        server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        where = urlsplit(self.target)
        upstream: asyncio.StreamWriter | None = None
        try:
            answers, upstream = await asyncio.open_connection(where.hostname, where.port, limit=1 << 20)
            while await self._exchange(reader, writer, answers, upstream):
                pass
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            _break(writer)
        finally:
            self._tasks.discard(task)
            for end in (writer, upstream):
                if end is not None:
                    end.close()

    async def _exchange(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        answers: asyncio.StreamReader,
        upstream: asyncio.StreamWriter,
    ) -> bool:
        """Pass on one request and its answer; return whether the connection can take another."""
        request = await _head(reader)
        if request is None:
            return False
        fault, at = self.plan.draw()
        self.exchanges += 1
        if "expect" in request[1]:
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = await _body(reader, request[1], of_request=True)
        if fault is not None:
            self.injected[fault] += 1
        if fault == "reset":
            return _break(writer)
        if fault in ("500", "503"):
            return await _refuse(writer, fault)
        upstream.write(_without(request[0], "expect") + body)
        await upstream.drain()
        answer = await _head(answers)
        if answer is None:
            return _break(writer)
        method = request[0].split(b" ", 1)[0]
        if method != b"HEAD" and not {"content-length", "transfer-encoding"} & answer[1].keys() and _may_have(answer):
            return await self._stream(answers, writer, answer[0], fault)
        data = b"" if method == b"HEAD" else await _body(answers, answer[1])
        return await self._answer(writer, answer[0], data, fault, at)

    async def _answer(
        self, writer: asyncio.StreamWriter, head: bytes, body: bytes, fault: FaultName | None, at: float
    ) -> bool:
        whole = head + body
        match fault:
            case "drop":
                return _break(writer)
            case "cut" | "stall":
                writer.write(whole[: int(at * len(whole))])
                await writer.drain()
                if fault == "stall":
                    await asyncio.sleep(self.plan.stall_s)
                return _break(writer)
            case "long" | "short" if body and b"content-length:" in head.lower():
                length = len(body) + (1 + int(at * 1000) if fault == "long" else -1 - int(at * (len(body) - 1)))
                writer.write(
                    _without(head, "content-length")[:-2] + f"Content-Length: {length}\r\n\r\n".encode() + body
                )
                await writer.drain()
                return False
            case "corrupt" if body:
                bit = int(at * 8 * len(body))
                changed = bytearray(body)
                changed[bit // 8] ^= 1 << bit % 8
                whole = head + changed
        writer.write(whole)
        await writer.drain()
        return b"connection: close" not in head.lower()

    async def _stream(
        self, answers: asyncio.StreamReader, writer: asyncio.StreamWriter, head: bytes, fault: FaultName | None
    ) -> bool:
        writer.write(head)
        while data := await answers.read(_READ):
            writer.write(data)
            await writer.drain()
            if fault is not None:
                return _break(writer)
        return False


async def _head(reader: asyncio.StreamReader) -> _Head | None:
    """Return a request's or an answer's head and its fields, interim answers left out; None at the end."""
    while True:
        try:
            raw = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            return None
        lines = raw.decode("latin-1").split("\r\n")
        if not lines[0].startswith("HTTP/1.1 1"):
            break
    fields = (line.partition(":") for line in lines[1:] if line)
    return raw, {name.lower(): value.strip() for name, _, value in fields}


async def _body(reader: asyncio.StreamReader, fields: dict[str, str], *, of_request: bool = False) -> bytes:
    """Return a body as it is on the wire."""
    if "chunked" in fields.get("transfer-encoding", "").lower():
        raw = b""
        while True:
            line = await reader.readuntil(b"\r\n")
            chunk = await reader.readexactly(int(line.split(b";")[0], 16) + 2)
            raw += line + chunk
            if line.startswith(b"0"):
                return raw
    return await reader.readexactly(int(fields.get("content-length", 0)))


def _may_have(answer: _Head) -> bool:
    return answer[0].split(b" ", 2)[1] not in (b"204", b"304")


def _without(head: bytes, name: str) -> bytes:
    lines = head.split(b"\r\n")
    return b"\r\n".join(line for line in lines if not line.lower().startswith(f"{name}:".encode()))


async def _refuse(writer: asyncio.StreamWriter, status: str) -> bool:
    code = {"500": "InternalError", "503": "SlowDown"}[status]
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>injected</Message></Error>".encode()
    head = f"HTTP/1.1 {status} {code}\r\nContent-Type: application/xml\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    await writer.drain()
    return True


def _break(writer: asyncio.StreamWriter) -> bool:
    """Break a connection, so that the other end finds it reset."""
    connection = writer.get_extra_info("socket")
    if connection is not None:
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
    return False
