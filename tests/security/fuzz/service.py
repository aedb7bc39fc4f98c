"""The target of what the service answers and the bucket that it sends its clients to: from memory, over no network."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable
from typing import Any

import httpx

from pulse_registry.client.store import ServiceStore
from pulse_registry.client.transport import Timeouts
from pulse_registry.errors import PulseError
from pulse_registry.store.wrappers.retry import retrying_at_most
from tests.security.fuzz.answers import KEY, STATUS, mutate_answer
from tests.security.fuzz.target import Target, expect
from tests.support.mock_http import answered_by


def service_target() -> Target:
    """Return the target of the service's answers, and of those of the bucket that it sends its clients to."""
    answer: list[Any] = [200, {}, b""]

    def handle(request: httpx.Request) -> httpx.Response:
        status, headers, body = answer
        return httpx.Response(status, headers=headers, stream=httpx.ByteStream(body))

    def calls(store: ServiceStore) -> tuple[Callable[[], Any], ...]:
        return (
            lambda: store.get("run/log/000000000000.json"),
            lambda: store.wait_for_record("run", 0, 0),
            lambda: list(store.list("run/log/snapshots/")),
            lambda: store.get(f"run/{KEY}", (4, 20)),
            lambda: store.get(f"run/{KEY}"),
            lambda: store.size(f"run/{KEY}"),
            lambda: store.get("run/head"),
            lambda: store.put(f"run/{KEY}", b"data", if_absent=True),
            lambda: store.put("run/log/000000000000.json", b"data", if_absent=True),
            lambda: store.get("run/layouts/" + "a" * 64 + ".json"),
        )

    def check(data: bytes) -> bool:
        if len(data) < 3:
            return False
        status, kind, body = STATUS[data[0] % len(STATUS)], data[1], data[3:]
        answer[:] = [status, _service_headers(kind, body), body]
        with answered_by(handle):
            store = ServiceStore("https://service", "token", timeouts=Timeouts())
        try:
            made = calls(store)
            with retrying_at_most(0.0):  # the answer would be the same again
                found = made[data[2] % len(made)]()
        except PulseError as error:
            expect(len(str(error)) < 5000, "a message quotes no whole answer")
            expect("token" not in str(error).replace("token=", ""), "no message holds the token")
            return False
        finally:
            store.close()
        expect(found is None or isinstance(found, list | bytes | int), f"{type(found).__name__} came")
        return True

    return Target("service", check, _service_seeds(), mutate_answer, (b'"urls":{', b"http://", b'"records":['))


def _service_headers(kind: int, body: bytes) -> dict[str, str]:
    digest = base64.b64encode(hashlib.sha256(body).digest()).decode()
    headers = {"content-type": "application/json"}
    headers["content-digest"] = (f"sha-256=:{digest}:", f"sha-256=:{digest}:", "sha-256=:====:", "")[kind % 4]
    if kind & 4:
        headers["content-range"] = ("bytes 4-19/100", "bytes 0-0/7", "bytes */3", "bytes 9-1/0")[kind // 16 % 4]
    if kind & 8:
        headers["content-length"] = (str(len(body)), "7", "9" * 30)[kind // 16 % 3]
    if kind & 64:
        headers |= {"date": "Wed, 99 Foo 2026", "retry-after": "9" * 400}
    return headers


def _service_seeds() -> tuple[bytes, ...]:
    urls = {"urls": {KEY: "http://bucket/x?y"}, "expires_at": "2126-01-02T03:04:05.678Z"}
    own = {"urls": {KEY: "/v1/runs/run/objects/x"}, "expires_at": None}
    problem = {"type": "urn:pulse-registry:problem:Fenced", "title": "x", "status": 409, "detail": "y", "instance": "/"}
    request = {"url": "/v1/x", "headers": {"a": "b"}}
    bodies: list[tuple[int, int, int, Any]] = [
        (0, 0, 0, {"run": "run", "seq": 0}),
        (0, 0, 1, {"run": "run", "since": 0, "records": ["{}", "é"]}),
        (0, 0, 1, {"run": "run", "since": 0, "records": [""] * 101}),
        (0, 0, 1, {"run": "run", "since": 0, "records": [], "new": [[]] * 2_000}),
        (0, 0, 2, {"snapshots": [1, 64]}),
        (0, 4, 3, urls),
        (0, 0, 3, own),
        (0, 0, 4, urls),
        (0, 4, 5, own),
        (0, 0, 6, {}),
        (0, 0, 7, {"kind": "put", "request": request | {"url": "http://bucket/x"}}),
        (0, 0, 7, {"kind": "direct", "request": request}),
        (0, 0, 7, {"kind": "parts", "upload_id": "u", "part_size": 5}),
        (0, 0, 8, {"run": "run", "seq": 0}),
        (8, 0, 8, problem),
        (9, 64, 9, problem),
    ]
    return tuple(bytes(head) + json.dumps(body).encode() for *head, body in bodies)
