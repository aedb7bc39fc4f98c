"""HTTP bodies: their Content-Digest (RFC 9530), and ranges of objects."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import sys
from collections.abc import Iterator
from itertools import islice
from typing import Final

import httpx

from pulse_registry.client.transport import MOST_PROBLEM_BYTES, BodyTransfer, declared_length
from pulse_registry.errors import CorruptObject, StoreUnavailable
from pulse_registry.store.checks import ByteRange

_VALUE: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[{,]', re.DOTALL)
_SHA256: Final = re.compile(r"(?:^|,)\s*sha-256=:([A-Za-z0-9+/=]+):")
_MOST_COUNTED_BYTES: Final = 1 << 30
"""Of a body that is read to see how long it is."""
_CONTENT_RANGE: Final = re.compile(r"bytes (?:([0-9]{1,18})-([0-9]{1,18})|\*)/([0-9]{1,18}|\*)")


def has_more_values(body: bytes, most: int) -> bool:
    """Tell whether JSON has more than so many strings, lists, objects and entries of these; none of them is made.

    An empty text takes three bytes of an answer, and hundreds of who reads it.
    """
    return next(islice(_VALUE.finditer(body), most, None), None) is not None


def content_digest(sha256: bytes) -> str:
    """Return the ``Content-Digest`` of a body with this SHA-256."""
    return f"sha-256=:{base64.b64encode(sha256).decode()}:"


def digest_fits(header: str, body: bytes) -> bool:
    """Tell whether a body hashes to its ``Content-Digest``; False where that has no SHA-256."""
    found = _SHA256.search(header)
    if found is None:
        return False
    try:
        return base64.b64decode(found.group(1), validate=True) == hashlib.sha256(body).digest()
    except binascii.Error:
        return False


def range_header(byte_range: ByteRange | None) -> dict[str, str]:
    """Return the header that asks for a range, which is not empty; none for the whole."""
    return {} if byte_range is None else {"Range": f"bytes={byte_range[0]}-{byte_range[1] - 1}"}


def read_range(
    response: httpx.Response, key: str, byte_range: ByteRange | None, transfer: BodyTransfer, max_bytes: int = 0
) -> bytes:
    """Read what was asked for from an answer of 200, 206 or 416: a range, or a whole of at most ``max_bytes``.

    Raises:
        CorruptObject: the range reaches past the end of the object, or the whole is longer.
        StoreUnavailable: the answer is not what was asked for, or is cut off.
        httpx.HTTPError: as the transport.
    """
    if byte_range is None:
        return _exactly(transfer.whole(response, max_bytes), declared_length(response), key)
    start, stop = byte_range
    if response.status_code == 200:  # a server, or a proxy, that takes no notice of ranges
        length = declared_length(response)
        if length is not None and length < stop:
            raise _too_short(key, byte_range, length)
        return _skipped(transfer.received(response, sys.maxsize), key, byte_range)
    _check_part(response, key, byte_range)
    return _exactly(b"".join(transfer.received(response, stop - start)), stop - start, key)


def read_range_into(
    response: httpx.Response, key: str, byte_range: ByteRange, view: memoryview, transfer: BodyTransfer
) -> None:
    """Read a range into memory of its size; see `read_range`."""
    if response.status_code == 200:
        view[:] = read_range(response, key, byte_range, transfer)
        return
    _check_part(response, key, byte_range)
    at = 0
    for chunk in transfer.received(response, view.nbytes):
        view[at : at + len(chunk)] = chunk
        at += len(chunk)
    if at != view.nbytes:
        raise StoreUnavailable(f"{key}: {at} bytes came of {view.nbytes}")


def read_size(response: httpx.Response, key: str, transfer: BodyTransfer) -> int:
    """Read an object's size from the answer to a request for its first byte."""
    if response.status_code == 200:
        length = declared_length(response)
        received = transfer.received(response, _MOST_COUNTED_BYTES)
        return length if length is not None else sum(len(chunk) for chunk in received)
    _, _, total = _content_range(response, key)
    for _ in transfer.received(response, MOST_PROBLEM_BYTES):
        pass  # a byte: once it is read, the connection is free again
    if total is None and response.status_code == 416:
        return 0  # there is no first byte; S3 does not say so in its headers
    if total is None:
        raise StoreUnavailable(f"{key}: the server does not say how long it is")
    return total


def _check_part(response: httpx.Response, key: str, byte_range: ByteRange) -> None:
    """Check that an answer of 206 or 416 is the range that was asked for."""
    start, stop = byte_range
    first, last, total = _content_range(response, key)
    if response.status_code == 416 or (first == start and last is not None and last + 1 < stop):
        raise _too_short(key, byte_range, total)
    if first != start or last != stop - 1:
        raise StoreUnavailable(f"{key}: bytes {start} to {stop} were asked for, {first} to {last} came")


def _exactly(data: bytes, size: int | None, key: str) -> bytes:
    if size is not None and len(data) != size:
        raise StoreUnavailable(f"{key}: {len(data)} bytes came of {size}")
    return data


def _skipped(chunks: Iterator[bytes], key: str, byte_range: ByteRange) -> bytes:
    """Return a range of a body that begins at 0, without keeping what is before it or reading what is after it."""
    start, stop = byte_range
    kept, at = [], 0
    for chunk in chunks:
        kept.append(chunk[max(0, start - at) : stop - at] if at + len(chunk) > start else b"")
        at += len(chunk)
        if at >= stop:
            return b"".join(kept)
    raise _too_short(key, byte_range, at)


def _content_range(response: httpx.Response, key: str) -> tuple[int | None, int | None, int | None]:
    found = _CONTENT_RANGE.fullmatch(response.headers.get("content-range", ""))
    if found is None:
        if response.status_code == 416:
            return None, None, None
        raise StoreUnavailable(f"{key}: a part of it was asked for, and the answer does not say which part it is")
    first, last, total = found.groups()
    return (
        None if first is None else int(first),
        None if last is None else int(last),
        None if total == "*" else int(total),
    )


def _too_short(key: str, byte_range: ByteRange, size: int | None) -> CorruptObject:
    length = "shorter" if size is None else f"{size} bytes long"
    return CorruptObject(f"{key}: bytes {byte_range[0]} to {byte_range[1]} were asked for, and it is {length}")
