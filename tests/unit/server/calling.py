"""Calls an app below any HTTP client, which would tidy up a path: as a server would after its parser."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import unquote

from tests.support.waiting import HANG_S


@dataclass(slots=True)
class Called:
    """What an app answered: its status and headers, and the body as far as it came."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


async def call(
    app: Any,
    method: str,
    target: str,
    *,
    headers: Mapping[str, str] | None = None,
    body: bytes = b"",
    seconds: float = HANG_S,
) -> Called:
    """Send one request; the client goes away once an answer has begun, so that streams end, too."""
    raw_path, _, query = target.partition("?")
    answer, begun = Called(), asyncio.Event()
    sent = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> dict[str, Any]:
        if sent:
            return sent.pop()
        await begun.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            answer.status = message["status"]
            answer.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            answer.body += message.get("body", b"")
            begun.set()

    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": unquote(raw_path),
        "raw_path": raw_path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(name.lower().encode(), value.encode()) for name, value in (headers or {}).items()],
        "client": ("127.0.0.1", 50_000),
        "server": ("127.0.0.1", 80),
        "state": {},
    }
    async with asyncio.timeout(seconds):
        await app(scope, receive, send)
    return answer


class Call(Protocol):
    """Calls one app; see `call`."""

    def __call__(
        self, method: str, target: str, *, headers: Mapping[str, str] | None = None, body: bytes = b""
    ) -> Called: ...


@contextmanager
def calling(app: Any) -> Iterator[Call]:
    """Start an app in an event loop of its own, which runs while it is called, and end it."""
    with asyncio.Runner() as runner:
        lifespan = app.router.lifespan_context(app)
        runner.run(lifespan.__aenter__())
        try:
            yield lambda method, target, **more: runner.run(call(app, method, target, **more))
        finally:
            runner.run(lifespan.__aexit__(None, None, None))
