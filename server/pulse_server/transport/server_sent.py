"""Server-sent events as bytes, made once for all streams that send them."""

from __future__ import annotations

from sse_starlette import ServerSentEvent


def event(kind: str, data: str, number: str | None = None) -> bytes:
    """Return an event; ``number`` is its id, from which a stream goes on when it broke off."""
    return ServerSentEvent(data, event=kind, id=number, sep="\n").encode()
