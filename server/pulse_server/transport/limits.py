"""Limits on requests, before any route sees them: rate, number under way, size and time of bodies, Content-Digest.

Pure ASGI. A body that is no object's is read here, whole, and handed on in one piece: a handler gets all of it,
unharmed, or is not called. Objects are counted and hashed as they stream. What its route would refuse, whatever the
body, is handed on without it.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from http import HTTPStatus
from typing import Final

from fastapi import FastAPI
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pulse_registry.errors import PulseError
from pulse_server.auth.access import Guard
from pulse_server.errors import (
    InvalidRequest,
    Refused,
    TooManyRequests,
    Unauthenticated,
)
from pulse_server.scheduling.turns import CALLER
from pulse_server.settings import Settings
from pulse_server.transport.addresses import network
from pulse_server.transport.buffer import Body, Buffer
from pulse_server.transport.rate import RateLimit
from pulse_server.transport.request_body import check_size, checked, content_digest, content_length, gone, once

_FREE: Final = frozenset({"/healthz", "/readyz"})
_PAGE_PER_S: Final = 500
_PAGE_BURST: Final = 5_000
"""Of the page's files, which come from memory: some 20 for a first load, of many people behind one address."""

_OBJECT: Final = re.compile(r"/v1/runs/[^/]+/(?:copy/|outer/)?objects/.+", re.DOTALL)
_WITHOUT_BODY: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_BUSY_RETRY_S: Final = 1.0
_CROWD: Final = 4
"""Callers that may each have as many requests under way as one may; where there are more, all have their part."""
_LOOKS: Final = 4
"""How often a body that is kept in memory is looked at in `body_seconds`: one that has stopped is given up sooner."""


Admit = Callable[[Scope], int | None]
"""Checks whether a request's token may make it, and tells how long its body may be; None: as the settings allow."""


def install(
    app: FastAPI,
    settings: Settings,
    *,
    clock: Callable[[], float] = time.monotonic,
    admit: Admit = lambda scope: None,
) -> None:
    """Put limits on all of the app's requests; ``app.state.guard`` says whose they are."""
    app.add_middleware(Limits, settings=settings, clock=clock, admit=admit)


class Limits:
    """The middleware. Health checks pass freely; what has no good token is limited by its address, the page apart."""

    def __init__(
        self,
        app: ASGIApp,
        settings: Settings,
        clock: Callable[[], float] = time.monotonic,
        admit: Admit = lambda scope: None,
    ) -> None:
        """Wrap an app."""
        self._app, self._settings, self._may = app, settings, admit
        self._known = RateLimit(settings.rate_per_s, settings.rate_burst, clock=clock)
        self._strangers = RateLimit(settings.anonymous_per_s, settings.anonymous_burst, clock=clock)
        self._page = RateLimit(_PAGE_PER_S, _PAGE_BURST, clock=clock)
        self._clock = clock
        self._pending: Counter[str] = Counter()
        self._under_way = 0
        self._buffer = Buffer(settings.max_buffered_bytes, settings.max_body_bytes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand a request on, or refuse it."""
        if scope["type"] != "http" or scope["path"] in _FREE:
            await self._app(scope, receive, send)
            return
        try:
            caller = self._admit(scope)
        except Refused as refusal:
            await _refuse(refusal, scope, send)
            return
        CALLER.set(caller)
        self._pending[caller] += 1
        self._under_way += 1
        try:
            if scope["method"] in _WITHOUT_BODY:
                await self._app(scope, receive, send)
            else:
                await self._with_body(scope, receive, send, caller)
        finally:
            self._under_way -= 1
            self._pending[caller] -= 1
            if not self._pending[caller]:
                del self._pending[caller]

    def _admit(self, scope: Scope) -> str:
        """Return who asks: a token's id, or an address for a request without a good token."""
        guard: Guard = scope["app"].state.guard
        address = network(scope["client"][0]) if scope.get("client") else "-"
        if _is_page(scope):
            caller, whose = f"page at {address}", f"the page from {address}"
            self._check(caller, whose, self._page.take(caller), scope)
            return caller
        try:
            caller, whose = guard.identify(scope).id, "this token"
            limit = self._known
        except Unauthenticated:
            caller, whose = f"at {address}", f"requests without a token from {address}"
            limit = self._strangers
            wait_s = limit.take(caller)
            if not wait_s and scope["method"] not in _WITHOUT_BODY:
                raise  # before its body is read
        else:
            caller = caller or f"at {address}"  # nobody needs a token here
            wait_s = limit.take(caller)
        self._check(caller, whose, wait_s, scope)
        return caller

    def _check(self, caller: str, whose: str, wait_s: float, scope: Scope) -> None:
        if wait_s:
            raise TooManyRequests(f"too many requests a second for {whose}", wait_s)
        if not scope["path"].isprintable():  # routes are less strict about the end of a line
            raise InvalidRequest("the path has a character that no name may have", HTTPStatus.BAD_REQUEST)
        if self._pending[caller] >= self._most_pending():
            raise TooManyRequests(f"too many requests at the same time for {whose}", _BUSY_RETRY_S)

    def _most_pending(self) -> int:
        """Return how many requests one caller may have under way; where there are very many, as many as its part is."""
        most = self._settings.max_pending
        return most if self._under_way < _CROWD * most else min(most, self._under_way // len(self._pending))

    async def _with_body(self, scope: Scope, receive: Receive, send: Send, caller: str) -> None:
        """Hand on a request that may have a body."""
        try:
            longest = self._may(scope)
        except PulseError:
            await self._app(scope, gone, send)  # its route says why not, and reads nothing
            return
        try:
            digest, announced = content_digest(scope), content_length(scope)
            if scope["method"] == "PUT" and _OBJECT.fullmatch(scope["path"]):
                await self._stream(scope, receive, send, digest, announced)
                return
            most = self._settings.max_body_bytes
            most = min(most, longest or most)
            check_size(announced, most)
            held = self._buffer.body(caller, _run_of(scope), most if announced is None else announced)
        except Refused as refusal:
            await _refuse(refusal, scope, send)
            return
        with ExitStack() as stack:
            try:
                body = stack.enter_context(held)
                if not await self._read(
                    checked(receive, digest, most, self._settings.body_seconds, looks=_LOOKS, clock=self._clock), body
                ):
                    return  # the client has gone: nobody to answer, nothing to do
            except Refused as refusal:
                await _refuse(refusal, scope, send)
            else:
                await self._app(scope, once(body.whole(), receive), send)

    async def _read(self, receive: Receive, body: Body) -> bool:
        """Read a whole body; return False if the client went away first."""
        while True:
            with body.coming_in():
                message = await receive()
            if message["type"] != "http.request":
                return False
            body.add(message.get("body", b""))
            if not message.get("more_body", False):
                return True

    async def _stream(
        self, scope: Scope, receive: Receive, send: Send, digest: bytes | None, announced: int | None
    ) -> None:
        """Hand on a request whose body is an object, piece by piece; a bad one raises where the handler reads it."""
        check_size(announced, self._settings.max_object_bytes)
        started = False

        async def sending(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            settings = self._settings
            body = checked(receive, digest, settings.max_object_bytes, settings.body_seconds, clock=self._clock)
            await self._app(scope, body, sending)
        except Refused:
            if started:
                return
            raise


def _is_page(scope: Scope) -> bool:
    return scope["method"] in ("GET", "HEAD") and (scope["path"] == "/" or scope["path"].startswith("/assets/"))


def _run_of(scope: Scope) -> str:
    """Return the run that a request is about, "" where it is about none."""
    parts: list[str] = scope["path"].split("/", 4)
    return parts[3] if parts[1:3] == ["v1", "runs"] and len(parts) > 3 else ""


async def _refuse(refusal: Refused, scope: Scope, send: Send) -> None:
    body = refusal.body(scope["path"])
    headers = {
        "content-type": "application/problem+json",
        "content-length": str(len(body)),
        "cache-control": "no-store",
        **refusal.headers,
    }
    encoded = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": refusal.status.value, "headers": encoded})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})
