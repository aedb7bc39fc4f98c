"""What is no name is refused before anything is asked of the store, however it is written."""

from __future__ import annotations

import json
import uuid

import pytest

from pulse_registry.store import MemoryStore
from pulse_registry.testing import CountingStore
from pulse_server import create_app
from pulse_server.settings import Settings
from pulse_server.telemetry.probe import PROBE_KEY
from tests.unit.server.calling import calling

TRICKS = {
    "up": "..",
    "here": ".",
    "up-and-on": "../other",
    "up-encoded": "%2e%2e",
    "up-half-encoded": ".%2E",
    "up-encoded-slash": "%2e%2e%2fother",
    "up-doubly-encoded": "%252e%252e%252fother",
    "up-thrice-encoded": "%25252e%25252e",
    "up-backslash": "..%5cother",
    "backslash": "a%5Cb",
    "nul": "a%00",
    "nul-alone": "%00",
    "new-line": "a%0a",
    "carriage-return": "a%0d%0ax-injected:%20yes",
    "space": "a%20b",
    "overlong": "a" * 129,
    "very-overlong": "a" * 8_000,
    "overlong-utf-8": "%c0%ae%c0%ae",
    "not-utf-8": "%ff%fe",
    "full-width-dots": "%EF%BC%8E%EF%BC%8E",
    "other-digits": "%D9%A3",
    "right-to-left": "%E2%80%AEa",
    "combining": "a%CC%81",
    "percent": "%25",
    "star": "*",
    "temporary": ".pulse-tmp-a",
    "drive": "c:%5c",
    "tilde": "~root",
    "query": "a%3fb",
}
REQUESTS = {
    "run": ("GET", "/v1/runs/{}"),
    "run-chain": ("GET", "/v1/runs/{}/chain"),
    "run-layers": ("GET", "/v1/runs/{}/layers"),
    "run-versions": ("GET", "/v1/runs/{}/versions"),
    "run-latest": ("GET", "/v1/runs/{}/versions/latest"),
    "run-route": ("GET", "/v1/runs/{}/route"),
    "run-events": ("GET", "/v1/runs/{}/events"),
    "run-log": ("GET", "/v1/runs/{}/log"),
    "run-append": ("POST", "/v1/runs/{}/log"),
    "run-head": ("GET", "/v1/runs/{}/head"),
    "run-workers": ("GET", "/v1/runs/{}/workers"),
    "run-object": ("GET", "/v1/runs/{}/objects/patch/000000000000-000000000001-" + "0" * 32 + ".safetensors"),
    "version": ("GET", "/v1/runs/math/versions/{}"),
    "record": ("GET", "/v1/runs/math/log/{}"),
    "snapshot": ("GET", "/v1/runs/math/snapshots/{}"),
    "outer-snapshot": ("GET", "/v1/runs/math/outer/snapshots/{}"),
    "segment": ("GET", "/v1/runs/math/log/segments/{}"),
    "layout": ("GET", "/v1/runs/math/layouts/{}"),
    "layout-put": ("PUT", "/v1/runs/math/layouts/{}"),
    "object": ("GET", "/v1/runs/math/objects/{}"),
    "object-head": ("HEAD", "/v1/runs/math/objects/patch/{}"),
    "object-put": ("PUT", "/v1/runs/math/objects/keyframe/{}"),
    "object-in-keyframe": ("PUT", "/v1/runs/math/objects/keyframe/000000000000-" + "0" * 32 + "/{}"),
    "upload-aborted": ("DELETE", "/v1/runs/math/uploads/x?key={}"),
    "worker": ("PUT", "/v1/runs/math/workers/{}"),
    "anywhere": ("GET", "/{}"),
    "asset": ("GET", "/assets/{}"),
}


def asked(store: CountingStore) -> list[tuple[str, str]]:
    """Return what reached the store, but for the probe's own question."""
    return [(verb, key) for verb, key in store.ledger if key != PROBE_KEY]


@pytest.mark.parametrize("request_name", REQUESTS)
def test_what_is_no_name_does_not_reach_the_store(request_name: str) -> None:
    method, template = REQUESTS[request_name]
    store = CountingStore(MemoryStore(uuid.uuid4().hex))
    with calling(create_app(Settings.read(root="memory://unused", insecure_open=True), store)) as call:
        statuses = {name: call(method, template.format(trick), body=b"{}").status for name, trick in TRICKS.items()}
        assert {name: status for name, status in statuses.items() if status not in (400, 404, 405, 422)} == {}
        assert asked(store) == []


KEYS = {
    "empty": "",
    "record": "log/000000000000.json",
    "head": "head",
    "folder": "objects/",
    "up-and-on": "objects/../head",
    "up": "../x",
    "absolute": "/etc/passwd",
    "overlong": "objects/patch/" + "a" * 2_000,
    "nul": "objects/patch/\0",
    "surrogate": "objects/patch/\ud800",
}


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("what", ["urls", "uploads"])
def test_a_key_in_a_body_is_held_to_the_same_rules(what: str, key: str) -> None:
    store = CountingStore(MemoryStore(uuid.uuid4().hex))
    body = {"keys": [KEYS[key]]} if what == "urls" else {"key": KEYS[key], "size": 1, "sha256": "0" * 64}
    with calling(create_app(Settings.read(root="memory://unused", insecure_open=True), store)) as call:
        assert call("POST", f"/v1/runs/math/{what}", body=json.dumps(body).encode()).status in (400, 422)
        assert asked(store) == []
