"""Request bodies: bounded in size and time, and checked against their Content-Digest, as they come in."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import time
from base64 import b64decode
from collections.abc import Callable
from http import HTTPStatus
from typing import Final

from starlette.types import Message, Receive, Scope

from pulse_server.errors import DamagedRequest, InvalidRequest, SlowRequest

_CLOSE: Final = {"connection": "close"}
_DIGESTS: Final = 16
"""Members of a Content-Digest that are looked at."""
_PACED_BYTES: Final = 2 << 20
"""Of a body: so many must come in the time that the settings give. Clients give up at twice the pace."""


def check_size(size: int | None, limit: int) -> None:
    """Refuse a body of more than ``limit`` bytes; None: it is not known how long it is."""
    if size is not None and size > limit:
        status = HTTPStatus.REQUEST_ENTITY_TOO_LARGE
        raise InvalidRequest(f"the body is longer than {limit:,} bytes", status, headers=_CLOSE)


def content_length(scope: Scope) -> int | None:
    """Return what the request says its body's size is; a server hands on none that is no number."""
    given = next((value for name, value in scope["headers"] if name == b"content-length"), b"")
    return int(given) if given.isdigit() else None


def content_digest(scope: Scope) -> bytes | None:
    """Return the SHA-256 that the request says its body has; other algorithms are passed over (RFC 9530)."""
    for name, value in scope["headers"]:
        if name != b"content-digest":
            continue
        for member in value.split(b",", _DIGESTS):
            algorithm, _, digest = member.strip().partition(b"=")
            if algorithm != b"sha-256":
                continue
            coded = digest.partition(b";")[0].strip()
            try:
                decoded = b64decode(coded[1:-1], validate=True)
            except ValueError:
                decoded = b""
            if len(decoded) != 32 or not (coded.startswith(b":") and coded.endswith(b":")):
                raise InvalidRequest("Content-Digest is not sha-256=:<base64 of 32 bytes>:", HTTPStatus.BAD_REQUEST)
            return decoded
    return None


def checked(
    receive: Receive,
    digest: bytes | None,
    most: int,
    seconds: float,
    *,
    looks: int = 1,
    clock: Callable[[], float] = time.monotonic,
) -> Receive:
    """Return what gives a body's messages, and refuses one that is too long, too slow or damaged.

    Args:
        receive: gives the connection's messages.
        digest: SHA-256 that the body must have; None: any.
        most: bytes that it may have.
        seconds: the time that 2 MiB of it may take.
        looks: how often it is looked at in that time.
        clock: monotonic time in seconds.
    """
    size, hasher, ended = 0, hashlib.sha256(), False
    paced = _paced(receive, _PACED_BYTES // looks, seconds / looks, clock)

    async def next_message() -> Message:
        nonlocal size, ended
        if ended:
            return await receive()  # waits for the client to go
        message = await paced()
        piece: bytes = message.get("body", b"")
        size += len(piece)
        check_size(size, most)
        ended = message["type"] != "http.request" or not message.get("more_body", False)
        if digest is not None and message["type"] == "http.request":
            hasher.update(piece)
            if ended and not hmac.compare_digest(hasher.digest(), digest):
                raise _damaged()
        return message

    return next_message


async def gone() -> Message:
    """Stand for a client that has gone: of its body, nothing is read."""
    return {"type": "http.disconnect"}


def once(body: bytes, receive: Receive) -> Receive:
    """Return what gives a body in one piece, and then what the connection gives."""
    pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def next_message() -> Message:
        return pending.pop() if pending else await receive()

    return next_message


def _paced(receive: Receive, nbytes: int, seconds: float, clock: Callable[[], float]) -> Receive:
    """Return what gives a body's messages, and refuses one of which ``nbytes`` don't come in so many seconds."""
    left, moved = seconds, 0

    async def paced() -> Message:
        nonlocal left, moved
        began = clock()
        try:
            async with asyncio.timeout(left):
                message = await receive()
        except TimeoutError:
            raise _slow(nbytes, seconds) from None
        left -= clock() - began  # what passes between two calls is the service's own time
        moved += len(message.get("body", b""))
        if moved >= nbytes:
            left, moved = seconds, 0
        if left <= 0 and message.get("more_body", False):
            raise _slow(nbytes, seconds)
        return message

    return paced


def _damaged() -> DamagedRequest:
    return DamagedRequest("the body does not hash to its Content-Digest: nothing was done; send it again")


def _slow(nbytes: int, seconds: float) -> SlowRequest:
    return SlowRequest(f"{nbytes:,} bytes of the body, or its end, did not come within {seconds:g} s", headers=_CLOSE)
