"""Presigned requests to the bucket behind the service: sent as they are, without the caller's token."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

import httpx

from pulse_registry.client.http_body import range_header, read_range, read_range_into, read_size
from pulse_registry.client.transport import (
    MOST_PROBLEM_BYTES,
    BodyTransfer,
    Timeouts,
    failures,
    new_client,
    origin_of,
)
from pulse_registry.errors import (
    AccessDenied,
    PulseError,
    StoreUnavailable,
)
from pulse_registry.store.checks import ByteRange
from pulse_registry.store.s3.errors import error_of
from pulse_schemas.api import SignedRequest

_CODE: Final = re.compile(rb"<Code>([A-Za-z0-9.]{1,64})</Code>")
_READ: Final = (200, 206, 416)


class SignatureRefused(AccessDenied):
    """The bucket does not take a signed request, perhaps no longer: ask for a new one, once."""


class PresignedRequests:
    """Sends signed requests. Thread-safe."""

    def __init__(self, timeouts: Timeouts) -> None:
        """Prepare to send; no I/O yet.

        Raises:
            InvalidArgument: the environment names a proxy that can't be used.
        """
        self._timeouts = timeouts
        self._client = new_client(timeouts)

    def close(self) -> None:
        """Close the connections. Idempotent."""
        self._client.close()

    def get(self, url: str, key: str, byte_range: ByteRange | None, max_bytes: int) -> bytes:
        """Return an object's bytes, at most so many, or those of a range, which is not empty.

        Raises:
            SignatureRefused: the URL has expired, or access was withdrawn.
            NotFound, CorruptObject, StoreUnavailable: as `Store.get`.
        """
        what = f"{origin_of(url)}: {key}"
        with self._send("GET", url, key, range_header(byte_range), None, _READ) as response:
            if byte_range is None and response.status_code != 200:
                raise StoreUnavailable(f"{what}: all of it was asked for, and HTTP {response.status_code} came")
            return read_range(response, key, byte_range, BodyTransfer(self._timeouts, what), max_bytes)

    def get_into(self, url: str, key: str, byte_range: ByteRange, view: memoryview) -> None:
        """Read a range, which is not empty, into memory of its size; see `get`."""
        what = f"{origin_of(url)}: {key}"
        with self._send("GET", url, key, range_header(byte_range), None, _READ) as response:
            read_range_into(response, key, byte_range, view, BodyTransfer(self._timeouts, what))

    def size(self, url: str, key: str) -> int:
        """Return an object's size: a URL is signed for GET alone, so that this reads its first byte.

        Raises:
            SignatureRefused, NotFound, StoreUnavailable: as `get`.
        """
        what = f"{origin_of(url)}: {key}"
        with self._send("GET", url, key, range_header((0, 1)), None, _READ) as response:
            return read_size(response, key, BodyTransfer(self._timeouts, what))

    def put(self, signed: SignedRequest, key: str, views: Sequence[memoryview]) -> str:
        """Send the bytes that a PUT was signed for, and return the ETag that the bucket answers.

        Raises:
            AlreadyExists: the key is taken; perhaps by this very request, whose answer was lost.
            SignatureRefused: the request has expired, or access was withdrawn.
            InvalidArgument: the bucket does not take it.
            StoreUnavailable: the bucket did not do it, or the answer was lost.
        """
        what = f"{origin_of(signed.url)}: {key}"
        size = sum(view.nbytes for view in views)
        headers = {**signed.headers, "Content-Length": str(size)}
        body = BodyTransfer(self._timeouts, what).sent(views)
        with self._send("PUT", signed.url, key, headers, body, (200, 201, 204)) as response:
            for _ in BodyTransfer(self._timeouts, what).received(response, MOST_PROBLEM_BYTES):
                pass
            return str(response.headers.get("etag", ""))

    @contextmanager
    def _send(
        self,
        method: str,
        url: str,
        key: str,
        headers: Mapping[str, str],
        content: Iterator[bytes] | None,
        good: tuple[int, ...],
    ) -> Iterator[httpx.Response]:
        what = f"{origin_of(url)}: {key}"
        with failures(what, url), self._client.stream(method, url, headers=headers, content=content) as response:
            if response.status_code not in good:
                body = b"".join(BodyTransfer(self._timeouts, what).received(response, MOST_PROBLEM_BYTES))
                raise _refusal(key, origin_of(url), response, body)
            yield response


def _refusal(key: str, origin: str, response: httpx.Response, body: bytes) -> PulseError:
    """Return the error that a bucket's answer stands for; of its text, which may quote the signature, only the code."""
    found, status = _CODE.search(body[:4096]), response.status_code
    code = found.group(1).decode() if found else ""
    said = f"{origin}: {key}: HTTP {status}" + (f" {code}" if code else "")
    error = error_of(said, status, code, response.headers, key=key, url=origin)
    if isinstance(error, AccessDenied):
        return SignatureRefused(f"{said}: the signed request has expired, or the service's own access was withdrawn")
    return error
