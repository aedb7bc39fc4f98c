"""The target of what a bucket answers: XML, headers and bodies, from memory, over no network.

Whatever an answer says, the call ends, in a value of the right kind or in the library's own error.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from io import BytesIO
from typing import Any

import httpx
import pytest
from botocore import UNSIGNED  # type: ignore[import-untyped]
from botocore.awsrequest import AWSResponse  # type: ignore[import-untyped]

from pulse_registry.errors import PulseError
from pulse_registry.store.s3 import store as s3_store
from pulse_registry.store.s3.client import make_client
from pulse_registry.store.s3.location import S3Location
from pulse_registry.store.s3.store import S3Store
from tests.security.fuzz.answers import KEY, STATUS, mutate_answer
from tests.security.fuzz.target import Target, expect

_LISTED = 200
"""Keys of a listing that are taken: one that has no end is the caller's to end."""


class _Raw:
    """The body of an answer, as botocore reads it."""

    def __init__(self, body: bytes) -> None:
        self._file = BytesIO(body)

    def read(self, amount: int | None = None, **_: Any) -> bytes:
        return self._file.read(-1 if amount is None else amount)

    def read1(self, amount: int | None = None, **_: Any) -> bytes:
        return self.read(amount)

    def stream(self, amount: int = 65536, **_: Any) -> Any:
        return iter(lambda: self._file.read(amount), b"")

    def close(self) -> None:
        pass

    def release_conn(self) -> None:
        pass


def bucket_target() -> Target:
    """Return the target of a bucket's answers."""
    clients: list[Any] = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(s3_store, "make_client", lambda *place: clients.append(make_client(*place)) or clients[-1])
        store = S3Store(S3Location("bucket", "http://127.0.0.1:1", "us-east-1"))
    [client] = clients
    answer: list[Any] = [200, {}, b""]

    def send(request: Any, **_: Any) -> Any:
        status, headers, body = answer
        return AWSResponse(request.url, status, httpx.Headers(headers), _Raw(body))

    client.meta.events.register("choose-signer.s3", lambda **_: UNSIGNED)
    client.meta.events.register("before-send.s3", send)
    calls: tuple[Callable[[], Any], ...] = (
        lambda: list(itertools.islice(store.list("run/log/"), _LISTED)),
        lambda: list(itertools.islice(store.list("run/", after="run/log/000000000003.json"), _LISTED)),
        lambda: store.get("run/head"),
        lambda: store.get(KEY, (4, 20)),
        lambda: store.size(KEY),
        lambda: store.exists(KEY),
        lambda: store.put(KEY, b"data", if_absent=True),
        lambda: store.delete(KEY),
    )

    def check(data: bytes) -> bool:
        if len(data) < 3:
            return False
        status, kind, body = STATUS[data[0] % len(STATUS)], data[1], data[3:]
        answer[:] = [status, _bucket_headers(kind, body), body]
        try:
            found = calls[data[2] % len(calls)]()
        except PulseError as error:
            expect(len(str(error)) < 2000, "a message quotes no whole answer")
            return False
        expect(found is None or isinstance(found, list | bytes | int | bool), f"{type(found).__name__} came")
        if isinstance(found, list):
            expect(found == sorted(set(found)) and all(isinstance(key, str) for key in found), "keys rise")
        return True

    return Target("s3", check, _bucket_seeds(), mutate_answer, (b"<Key>", b"<Code>", b"&#x0;", b"]]>", b"<!DOCTYPE x>"))


def _bucket_headers(kind: int, body: bytes) -> dict[str, str]:
    lengths = (str(len(body)), str(len(body) + 1), str(2**62), "-1", "a", "")
    headers = {"content-type": "application/xml", "etag": '"a"', "last-modified": "Wed, 21 Oct 2026 07:28:00 GMT"}
    if kind % 8 < len(lengths):
        headers["content-length"] = lengths[kind % 8]
    if kind & 8:
        headers["content-range"] = ("bytes 4-19/100", "bytes 0-3/2", "bytes x")[kind // 16 % 3]
    if kind & 64:
        headers["retry-after"] = "9" * 30
    if kind & 128:
        headers["last-modified"] = "not a time"
    return headers


def _bucket_seeds() -> tuple[bytes, ...]:
    contents = "".join(f"<Contents><Key>run/log/{n:012d}.json</Key><Size>5</Size></Contents>" for n in range(3))
    page = "<IsTruncated>{}</IsTruncated>{}<CommonPrefixes><Prefix>run/log/snapshots/</Prefix></CommonPrefixes>"
    listing = f'<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{contents}{page}</ListBucketResult>'
    token = "<NextContinuationToken>t</NextContinuationToken>"
    seeds = [bytes((0, 0, call)) + listing.format("false", "").encode() for call in (0, 1)]
    seeds += [bytes((0, 0, 0)) + listing.format("true", token).encode()]
    seeds += [bytes((0, 0, 2)) + b"0123456789abcdef", bytes((3, 8, 3)) + b"0123456789abcdef"]
    seeds += [bytes((0, 0, call)) for call in (4, 5, 6, 7)]
    codes = (
        "NoSuchKey",
        "SlowDown",
        "AccessDenied",
        "PreconditionFailed",
        "InvalidRange",
        "NoSuchBucket",
        "ExpiredToken",
    )
    for number, code in enumerate(codes):
        body = f"<Error><Code>{code}</Code><Message>so it is</Message><RequestId>1</RequestId></Error>"
        seeds.append(bytes((4 + number, 0, number)) + body.encode())
    return tuple(seeds)
