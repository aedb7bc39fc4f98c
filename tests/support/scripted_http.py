"""An HTTP server whose every answer a test writes: for what a real service or bucket does only on a bad day."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx

from pulse_registry.client.transport import Timeouts
from pulse_registry.store.watchdog import LowSpeedLimit
from tests.support.waiting import HANG_S

PATIENT = Timeouts(connect_s=HANG_S, silence_s=HANG_S, low_speed=LowSpeedLimit(0.01, HANG_S))
"""For answers that come: a busy machine is no bad link."""


@dataclass(frozen=True, slots=True)
class Asked:
    method: str
    path: str
    query: dict[str, list[str]]
    headers: Message
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer; ``pieces`` after the body are sent with pauses that only the server's end cuts short.

    ``lost``: the connection ends instead. ``length``: what is said of the body; below 0, nothing is.
    """

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    length: int | None = None
    pieces: Sequence[bytes] = ()
    pause_s: float = 0.0
    lost: bool = False


_FORWARDED = ("Content-Type", "Content-Digest", "Content-Range", "Date", "ETag", "Retry-After")
Script = Callable[[Asked], Reply]


def document(value: Any, status: int = 200, **headers: str) -> Reply:
    """Return an answer as the service gives it: JSON, with its digest."""
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    return Reply(status, {"Content-Type": "application/json", "Content-Digest": digest(body), **headers}, body)


def problem(name: str, status: int, detail: str = "it is so", **headers: str) -> Reply:
    kind = f"urn:pulse-registry:problem:{name}"
    reply = document({"type": kind, "title": name, "status": status, "detail": detail, "instance": "/"}, status)
    return Reply(status, {**reply.headers, "Content-Type": "application/problem+json", **headers}, reply.body)


def digest(body: bytes) -> str:
    return f"sha-256=:{base64.b64encode(hashlib.sha256(body).digest()).decode()}:"


def forward(asked: Asked, url: str) -> Reply:
    """Ask another server the same, and return its answer."""
    headers = {name: value for name, value in asked.headers.items() if name not in ("Host", "Connection")}
    query = urlencode(asked.query, doseq=True)
    with httpx.Client(timeout=HANG_S, verify=False) as client:
        answer = client.request(asked.method, f"{url}{asked.path}?{query}", headers=headers, content=asked.body)
    kept = {name: answer.headers[name] for name in _FORWARDED if name in answer.headers}
    return Reply(answer.status_code, kept, answer.content)


class Server(ThreadingHTTPServer):
    """What was asked is in ``asked``; what is answered is up to ``script``."""

    daemon_threads = False
    block_on_close = True

    def __init__(self, script: Script) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.script = script
        self.asked: list[Asked] = []
        self.ended = threading.Event()
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    def of(self, path: str) -> list[Asked]:
        return [one for one in self.asked if one.path == path]


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def _answer(self) -> None:
        parts = urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        asked = Asked(self.command, parts.path, parse_qs(parts.query), self.headers, body)
        self.server.asked.append(asked)
        reply = self.server.script(asked)
        self.close_connection = True
        if reply.lost:
            return
        self.send_response_only(reply.status)
        for name, value in reply.headers.items():
            self.send_header(name, value)
        size = len(reply.body) + sum(map(len, reply.pieces)) if reply.length is None else reply.length
        if size >= 0:
            self.send_header("Content-Length", str(size))
        self.send_header("Connection", "close")
        self.end_headers()
        try:
            self.wfile.write(reply.body)
            for piece in reply.pieces:
                if self.server.ended.wait(reply.pause_s):
                    return
                self.wfile.write(piece)
        except OSError:
            pass  # the client has gone: that is what the test is about

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = _answer  # noqa: N815 - the names that the base class calls

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def serving(script: Script) -> Iterator[Server]:
    server = Server(script)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.ended.set()
        server.shutdown()
        thread.join()
        server.server_close()
