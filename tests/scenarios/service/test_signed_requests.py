"""Signed requests against a real S3 server: what the service hands out does what it says, once, and no more."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import httpx
import pytest
from fastapi.testclient import TestClient

from pulse_registry.store import PrefixStore, open_store
from pulse_server import Settings, create_app
from tests.support.apps import fill, run_of
from tests.support.records import DictStore
from tests.support.waiting import HANG_S
from tests.unit.server.test_objects import PATCH, RUN, SHARD, URL

MIB = 1 << 20


@pytest.fixture
def client(seaweedfs_url: str) -> Iterator[TestClient]:
    settings = Settings.read(
        root=seaweedfs_url, insecure_open=True, access_log=False, part_bytes=5 * MIB, single_put_bytes=MIB
    )
    with TestClient(create_app(settings), follow_redirects=False) as client:
        yield client


def send(request: dict[str, object], data: bytes) -> httpx.Response:
    """Send a signed PUT as a trainer does, which holds no key of the bucket."""
    return httpx.put(str(request["url"]), headers=dict(request["headers"]), content=data, timeout=HANG_S)  # type: ignore[call-overload]


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_a_signed_put_stores_these_bytes_once(client: TestClient, seaweedfs_url: str) -> None:
    data = bytes(range(256)) * 40
    asked = {"key": PATCH, "size": len(data), "sha256": sha256(data)}
    request = client.post(f"{URL}/uploads", json=asked).json()["request"]
    assert send(request, data[:-1] + b"~").status_code >= 400
    assert client.head(f"{URL}/{PATCH}").status_code == 404
    assert send(request, data).status_code == 200
    assert send(request, data).status_code == 412
    location = client.get(f"{URL}/{PATCH}").headers["location"]
    assert httpx.get(location, timeout=HANG_S).content == data
    assert httpx.get(location, headers={"range": "bytes=10-19"}, timeout=HANG_S).content == data[10:20]
    assert client.head(f"{URL}/{PATCH}").headers["content-length"] == str(len(data))
    assert PrefixStore(open_store(seaweedfs_url), RUN).get(PATCH) == data


def test_an_upload_in_parts_is_an_object_once_it_is_complete(client: TestClient) -> None:
    data = bytes(range(251)) * (6 * MIB // 251)
    begun = client.post(f"{URL}/uploads", json={"key": SHARD, "size": len(data)}).json()
    assert begun["kind"] == "parts"
    upload, parts = f"{URL}/uploads/{begun['upload_id']}", []
    for number, start in enumerate(range(0, len(data), begun["part_size"]), 1):
        piece = data[start : start + begun["part_size"]]
        part = {"key": SHARD, "number": number, "size": len(piece), "sha256": sha256(piece)}
        answer = send(client.post(f"{upload}/parts", json=part).json(), piece)
        assert answer.status_code == 200
        parts.append({"number": number, "etag": answer.headers["etag"], "sha256": part["sha256"]})
    assert client.head(f"{URL}/{SHARD}").status_code == 404
    assert client.post(f"{upload}/complete", json={"key": SHARD, "parts": parts}).status_code == 201
    urls = client.post(f"{URL}/urls", json={"keys": [SHARD]}).json()["urls"]
    assert httpx.get(urls[SHARD], timeout=HANG_S).content == data


def test_the_urls_of_a_route_read_its_objects_without_a_key(client: TestClient, seaweedfs_url: str) -> None:
    script = run_of(3)
    store = DictStore()
    fill(store, script)
    bucket = open_store(seaweedfs_url)
    for key in store.list(""):
        bucket.put(key, store.get(key))
    body = client.get(f"{URL}/route").json()
    assert body["target"] == 2
    assert body["expires_at"]
    for leg in body["legs"]:
        for item in leg["objects"]:
            answer = httpx.get(item["url"], timeout=HANG_S)
            assert (answer.status_code, len(answer.content)) == (200, item["size"])
