"""The targets of what clients send to the service: bytes of a connection, and bodies of requests."""

from __future__ import annotations

import asyncio
import random
from typing import Any, Final

from pydantic import BaseModel

from pulse_schemas.api import CompleteRequest, PartDone, PartRequest, UploadRequest, UrlRequest, WorkerReport
from pulse_server.errors import InvalidRequest
from pulse_server.routes.json_body import body_of
from pulse_server.transport.connection import MAX_WAITING
from tests.security.fuzz.mutation import mutate_bytes, mutate_document
from tests.security.fuzz.target import Target, expect
from tests.support.peer import CHUNKED, LIMIT, REQUEST, Peer
from tests.unit.server.test_bodies import LONGEST

_WORDS: Final = (
    *(b"0\r\n", b"\r\n", b"a: b\r\n", b"1;a=b\r\n", b"1\r\na\r\n", b"transfer-encoding: chunked\r\n", b"HTTP/1.0"),
    *(
        b"content-length: 5\r\n",
        b"expect: 100-continue\r\n",
        b"upgrade: x\r\nconnection: upgrade\r\n",
        REQUEST,
        CHUNKED,
    ),
)


def connection_target() -> Target:
    """Return the target of a connection's bytes; the first says in pieces of how many bytes they come."""
    loop = asyncio.SelectorEventLoop()

    def check(data: bytes) -> bool:
        if len(data) < 2:
            return False
        peer = Peer(loop)
        peer.reads = data[0] % 2 == 0
        size, answered = max(1, data[0]), b""
        for at in range(1, len(data), size):
            answered += peer.send(data[at : at + size])
            if peer.wire.closed:
                break
            protocol = peer.protocol
            expect(len(protocol.pipeline) <= MAX_WAITING, "requests that wait are counted")
            kept = sum(len(name) + len(value) for name, value in protocol.headers or ())
            expect(kept <= LIMIT, "headers are counted")
            expect(protocol.framing <= LIMIT, "what is no body is counted")
            expect(protocol.cycle is None or len(protocol.cycle.body) <= LIMIT + 65_536 + size, "bodies are paused")
        peer.protocol.connection_lost(None)
        expect(not peer.protocol.of_network, "connections are counted down")
        for _ in range(10):
            loop.run_until_complete(asyncio.sleep(0))
        return b"HTTP/1.1 200" in answered

    chunks = b"5\r\nhello\r\n0\r\n"
    seeds = (
        REQUEST,
        REQUEST * 3,
        CHUNKED + chunks + b"\r\n",
        b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\nhello" + REQUEST,
        b"GET / HTTP/1.0\r\n\r\n",
        REQUEST[:-2] + b"expect: 100-continue\r\nx: " + b"a" * 1_000 + b"\r\n\r\n",
        CHUNKED + chunks + b"a: b\r\n\r\n",
    )
    return Target(
        "connection", check, tuple(bytes([255]) + seed for seed in seeds), _mutate_bytes, _WORDS, max_len=8192
    )


def body_target() -> Target:
    """Return the target of requests' bodies; the first byte says of which request."""
    kinds: tuple[type[BaseModel], ...] = (UrlRequest, UploadRequest, PartRequest, CompleteRequest, WorkerReport)

    class Sent:
        def __init__(self, data: bytes) -> None:
            self._data = data

        async def body(self) -> bytes:
            return self._data

    def check(data: bytes) -> bool:
        sent: Any = Sent(data[1:])
        try:
            body = asyncio.run(body_of(sent, kinds[data[0] % len(kinds)])) if data else None
        except InvalidRequest as refusal:
            expect(len(refusal.body("/")) < 8_000, "who sends a body does not choose how long the answer is")
            return False
        if body is None:
            return False
        expect(type(body).model_validate_json(body.model_dump_json()) == body, "it says what was sent")
        return True

    report = LONGEST["PUT", "/v1/runs/{run}/workers/{worker}"]
    bodies: tuple[BaseModel, ...] = (
        UrlRequest(keys=("a", "b")),
        UploadRequest(key="a", size=1, sha256="f" * 64),
        PartRequest(key="a", number=1, size=1, sha256="f" * 64),
        CompleteRequest(key="a", parts=(PartDone(number=1, etag="e", sha256="f" * 64),)),
        report,
    )
    seeds = tuple(bytes([kind]) + body.model_dump_json().encode() for kind, body in enumerate(bodies))
    return Target("body", check, seeds, _mutate_body, max_len=32_768)


def _mutate_bytes(data: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(data) + 1)
    if rng.randrange(2):
        data = data[:at] + rng.choice(_WORDS) * rng.choice((1, 1, 2, 40)) + data[at:]
    return bytes([rng.choice((1, 3, 60, 255))]) + mutate_bytes(data[1:], rng)


def _mutate_body(data: bytes, rng: random.Random) -> bytes:
    if not data or rng.randrange(8) == 0:
        return mutate_bytes(data, rng)
    return data[:1] + mutate_document(data[1:], rng)
