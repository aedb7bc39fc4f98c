"""Answers as bytes: rendered once, with the digest that lets a client see damage on the way (RFC 9530)."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final, Self

from fastapi.responses import Response
from starlette.types import Receive, Scope, Send

from pulse_schemas.api import Answer

JSON: Final = b"application/json"


def content_digest(content: bytes) -> str:
    """Return the value of the Content-Digest header for a body."""
    return f"sha-256=:{base64.b64encode(hashlib.sha256(content).digest()).decode()}:"


class Rendered(Response):
    """A JSON answer whose bytes and headers are made once; it may be sent any number of times, by many requests.

    ``age_s`` adds an Age header to one sending of it: see ``aged``.
    """

    media_type = "application/json"

    def __init__(self, content: bytes, status: int = HTTPStatus.OK) -> None:
        """Render a body that is JSON already."""
        self.status_code = status
        self.background = None
        self.body = content
        self.raw_headers = [
            (b"content-type", JSON),
            (b"content-length", b"%d" % len(content)),
            (b"content-digest", content_digest(content).encode()),
        ]

    @classmethod
    def of(cls, body: Answer, status: int = HTTPStatus.OK) -> Self:
        """Render a body."""
        return cls(body.model_dump_json().encode(), status)

    def aged(self, age_s: float) -> Aged:
        """Return this answer as one that is ``age_s`` seconds old."""
        return Aged(self, age_s)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        await _send(send, self.status_code, self.raw_headers, bytes(self.body))


@dataclass(frozen=True, slots=True)
class FreshRoute:
    """A route as it is answered, until its URLs are too old, in the signer's seconds."""

    rendered: Rendered
    fresh_until: float


class Aged(Response):
    """A rendered answer with its age."""

    def __init__(self, rendered: Rendered, age_s: float) -> None:
        """Add the Age header, in whole seconds."""
        self.status_code = rendered.status_code
        self.background = None
        self.body = rendered.body
        self.raw_headers = [*rendered.raw_headers, (b"age", b"%d" % age_s)]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        await _send(send, self.status_code, self.raw_headers, bytes(self.body))


def no_content(status: int = HTTPStatus.NO_CONTENT) -> Response:
    """Return an answer without a body."""
    return Response(status_code=status)


async def _send(send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
