"""Objects over HTTP: through the service from a store that can't sign, by signed requests from one that can."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st

from pulse_registry.errors import AlreadyExists, InvalidArgument
from pulse_registry.format import keys
from pulse_registry.store.presigner import Presigner, SignedPut, UploadedPart
from pulse_registry.testing import CountingStore
from pulse_server.routes import objects
from pulse_server.transport import spool
from tests.support.apps import app_over, fill, run_of
from tests.support.records import DictStore, write_id

RUN = "math"
URL = f"/v1/runs/{RUN}"
PATCH = keys.patch_key(1, 2, write_id(1))
SHARD = keys.keyframe_key(3, write_id(2), "model-00001-of-00002.safetensors")
DATA = bytes(range(256)) * 4
SHA = hashlib.sha256(DATA).hexdigest()


class SigningStore(DictStore):
    """A store that signs requests, and takes down which."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[object, ...]] = []
        self.parts: dict[str, str] = {}

    def presigner(self) -> Presigner:
        return self

    def presign(self, key: str, expires_s: int) -> str:
        self.asked.append(("get", key, expires_s))
        return f"https://bucket.example/{key}?signature={len(self.asked)}"

    def presign_put(self, key: str, size: int, sha256: str, expires_s: int) -> SignedPut:
        self.asked.append(("put", key, size, sha256, expires_s))
        return SignedPut(f"https://bucket.example/{key}?put", {"if-none-match": "*", "content-length": str(size)})

    def begin_parts(self, key: str) -> str:
        self.parts[f"2~/{key}+="] = key
        return f"2~/{key}+="

    def presign_part(self, key: str, upload_id: str, number: int, size: int, sha256: str, expires_s: int) -> SignedPut:
        self._check(key, upload_id)
        return SignedPut(f"https://bucket.example/{key}?part={number}", {"content-length": str(size)})

    def finish_parts(self, key: str, upload_id: str, parts: Sequence[UploadedPart]) -> None:
        self._check(key, upload_id)
        if key in self.objects:
            raise AlreadyExists(f"object {key} is there")
        self.objects[key] = b"".join(part.etag.encode() for part in parts)

    def abort_parts(self, key: str, upload_id: str) -> None:
        self.parts.pop(upload_id, None)

    def _check(self, key: str, upload_id: str) -> None:
        if self.parts.get(upload_id) != key:
            raise InvalidArgument(f"{upload_id} is no upload of {key}")


@pytest.fixture
def store() -> DictStore:
    return DictStore()


@pytest.fixture
def client(store: DictStore) -> Iterator[TestClient]:
    with TestClient(app_over(store)) as client:
        yield client


@pytest.fixture
def signing() -> SigningStore:
    return SigningStore()


@pytest.fixture
def signed(signing: SigningStore) -> Iterator[TestClient]:
    with TestClient(app_over(signing, part_bytes=5 << 20, single_put_bytes=1 << 20), follow_redirects=False) as client:
        yield client


# -- through the service -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", [PATCH, SHARD])
def test_an_object_goes_through_the_service_where_the_store_can_not_sign(
    client: TestClient, store: DictStore, key: str
) -> None:
    body = client.post(f"{URL}/uploads", json={"key": key, "size": len(DATA), "sha256": SHA})
    assert (body.status_code, body.json()["kind"]) == (201, "direct")
    where = body.json()["request"]["url"]
    assert where == f"{URL}/{key}"
    assert client.put(where, content=DATA).status_code == 201
    assert store.get(f"{RUN}/{key}") == DATA
    assert client.get(where).content == DATA
    again = client.put(where, content=b"other")
    assert (again.status_code, again.json()["type"].rpartition(":")[2]) == (409, "AlreadyExists")
    assert store.get(f"{RUN}/{key}") == DATA


def test_an_object_of_many_chunks_arrives_whole(
    client: TestClient, store: DictStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "_PIECE", 1000)
    monkeypatch.setattr(spool, "CHUNK", 1000)
    data = bytes(range(251)) * 100
    assert client.put(f"{URL}/{PATCH}", content=data).status_code == 201
    assert store.get(f"{RUN}/{PATCH}") == data
    assert client.get(f"{URL}/{PATCH}").content == data


def test_an_empty_object_is_one(client: TestClient) -> None:
    assert client.put(f"{URL}/{PATCH}", content=b"").status_code == 201
    answer = client.get(f"{URL}/{PATCH}")
    assert (answer.status_code, answer.content, answer.headers["content-length"]) == (200, b"", "0")


def test_an_object_without_a_length_or_with_damage_is_not_stored(client: TestClient, store: DictStore) -> None:
    assert client.put(f"{URL}/{PATCH}", content=iter([DATA])).status_code == 411
    digest = f"sha-256=:{base64.b64encode(hashlib.sha256(b'other').digest()).decode()}:"
    answer = client.put(f"{URL}/{PATCH}", content=DATA, headers={"content-digest": digest})
    assert (answer.status_code, answer.json()["type"].rpartition(":")[2]) == (400, "DamagedRequest")
    assert store.objects == {}


def test_an_object_that_is_not_as_long_as_was_announced_is_not_stored(client: TestClient, store: DictStore) -> None:
    answer = client.put(f"{URL}/{PATCH}", content=DATA, headers={"content-length": "7"})
    assert (answer.status_code, store.objects) == (400, {})


def test_the_size_of_an_object_is_told(client: TestClient, store: DictStore) -> None:
    store.put(f"{RUN}/{PATCH}", DATA)
    answer = client.head(f"{URL}/{PATCH}")
    assert (answer.status_code, answer.headers["content-length"], answer.content) == (200, "1024", b"")
    for method in ("GET", "HEAD"):
        assert client.request(method, f"{URL}/{SHARD}").status_code == 404


def expected_range(header: str) -> tuple[int, bytes]:
    """What RFC 9110 asks for, of one range."""
    first, _, last = header.removeprefix("bytes=").partition("-")
    if not first:
        data = DATA[-int(last) :] if int(last) else b""
    else:
        if last and int(last) < int(first):
            return 200, DATA
        data = DATA[int(first) : int(last) + 1 if last else None]
    return (206, data) if data else (416, b"")


@pytest.fixture(scope="module")
def ranged() -> Iterator[TestClient]:
    store = DictStore()
    store.put(f"{RUN}/{PATCH}", DATA)
    with TestClient(app_over(store)) as client:
        yield client


positions = st.one_of(st.just(""), st.integers(0, 1100).map(str))


@given(pair=st.tuples(positions, positions).filter(lambda pair: pair != ("", "")))
def test_any_range_of_an_object_is_answered(ranged: TestClient, pair: tuple[str, str]) -> None:
    header = f"bytes={pair[0]}-{pair[1]}"
    status, data = expected_range(header)
    answer = ranged.get(f"{URL}/{PATCH}", headers={"range": header})
    assert answer.status_code == status
    if status == 416:
        assert answer.headers["content-range"] == "bytes */1024"
        return
    assert answer.content == data
    if status == 206:
        start = int(answer.headers["content-range"].removeprefix("bytes ").partition("-")[0])
        assert DATA[start : start + len(data)] == data
        assert answer.headers["content-range"].endswith(f"-{start + len(data) - 1}/1024")


@pytest.mark.parametrize("header", ["bytes=0-1,5-6", "lines=1-2", "bytes=-", "bytes=a-b", "bytes"])
def test_a_range_of_another_kind_is_answered_with_all(ranged: TestClient, header: str) -> None:
    answer = ranged.get(f"{URL}/{PATCH}", headers={"range": header})
    assert (answer.status_code, answer.content) == (200, DATA)


BAD_KEYS = [
    "objects/patch/1-2-3.safetensors",
    "objects/patch/000000000001-000000000002-xyz.safetensors",
    f"objects/keyframe/000000000003-{write_id(2)}/a/b",
    f"objects/keyframe/000000000003-{write_id(2)}/..",
    f"objects/keyframe/000000000003-{write_id(2)}/.pulse-tmp-1",
    "objects/../log/000000000000.json",
    "log/000000000000.json",
    f"/{PATCH}",
    f"{PATCH}\x00",
    "objects/",
    "head",
    f"{PATCH}/",
]


@pytest.mark.parametrize("key", BAD_KEYS, ids=ascii)
def test_a_key_that_no_writer_makes_never_reaches_the_store(key: str) -> None:
    store = CountingStore(DictStore())
    with TestClient(app_over(store, probe_seconds=600, ready_seconds=601)) as client:
        for path, body in (
            ("uploads", {"key": key, "size": 1, "sha256": SHA}),
            ("urls", {"keys": [PATCH, key]}),
            ("uploads/dXA/parts", {"key": key, "number": 1, "size": 1, "sha256": SHA}),
            ("uploads/dXA/complete", {"key": key, "parts": [{"number": 1, "etag": "e", "sha256": SHA}]}),
        ):
            answer = client.post(f"{URL}/{path}", json=body)
            assert (answer.status_code, answer.json()["type"].rpartition(":")[2]) == (400, "InvalidArgument"), path
    assert [call for call in store.ledger if call[1] != "pulse-probe"] == []


def test_urls_of_a_store_that_can_not_sign_are_the_services_own(client: TestClient) -> None:
    body = client.post(f"{URL}/urls", json={"keys": [PATCH, SHARD]}).json()
    assert body == {"urls": {PATCH: f"{URL}/{PATCH}", SHARD: f"{URL}/{SHARD}"}, "expires_at": None}


@pytest.mark.parametrize(
    "body", [b"", b"[]", b'{"keys":[]}', b'{"keys":["k"],"more":1}', b'{"keys":[""]}', b"\xff", b'{"keys":"k"}']
)
def test_a_body_that_is_no_such_document_is_refused(client: TestClient, body: bytes) -> None:
    answer = client.post(f"{URL}/urls", content=body)
    assert (answer.status_code, answer.json()["type"].rpartition(":")[2]) == (422, "InvalidRequest")


@pytest.mark.parametrize("path", ["parts", "complete"])
def test_a_store_that_can_not_sign_has_no_parts(client: TestClient, path: str) -> None:
    body: dict[str, Any] = {"key": PATCH, "number": 1, "size": 1, "sha256": SHA}
    if path == "complete":
        body = {"key": PATCH, "parts": [{"number": 1, "etag": "e", "sha256": SHA}]}
    answer = client.post(f"{URL}/uploads/dXA/{path}", json=body)
    assert (answer.status_code, "one piece" in answer.json()["detail"]) == (400, True)


# -- by signed requests ------------------------------------------------------------------------------------------------


def test_a_small_object_gets_one_signed_put(signed: TestClient, signing: SigningStore) -> None:
    answer = signed.post(f"{URL}/uploads", json={"key": PATCH, "size": 1024, "sha256": SHA})
    assert answer.status_code == 201
    assert answer.json() == {
        "kind": "put",
        "request": {
            "url": f"https://bucket.example/{RUN}/{PATCH}?put",
            "headers": {"if-none-match": "*", "content-length": "1024"},
        },
        "upload_id": None,
        "part_size": None,
    }
    assert signing.asked == [("put", f"{RUN}/{PATCH}", 1024, SHA, 900)]


@pytest.mark.parametrize(
    ("body", "part_size"),
    [
        ({"size": 1024}, 5 << 20),
        ({"size": (1 << 20) + 1, "sha256": SHA}, 5 << 20),
        ({"size": 10**12}, 96 << 20),
    ],
    ids=["no-hash", "too-long", "parts-must-grow"],
)
def test_a_long_object_goes_in_parts(
    signed: TestClient, signing: SigningStore, body: dict[str, Any], part_size: int
) -> None:
    begun = signed.post(f"{URL}/uploads", json={"key": SHARD, **body}).json()
    assert (begun["kind"], begun["part_size"]) == ("parts", part_size)
    assert -(-body["size"] // begun["part_size"]) <= 10_000
    upload = f"{URL}/uploads/{begun['upload_id']}"
    part = signed.post(f"{upload}/parts", json={"key": SHARD, "number": 2, "size": 77, "sha256": SHA})
    assert part.json() == {
        "url": f"https://bucket.example/{RUN}/{SHARD}?part=2",
        "headers": {"content-length": "77"},
    }
    parts = [{"number": number, "etag": f"e{number}", "sha256": SHA} for number in (1, 2)]
    done = signed.post(f"{upload}/complete", json={"key": SHARD, "parts": parts})
    assert (done.status_code, signing.objects[f"{RUN}/{SHARD}"]) == (201, b"e1e2")
    again = signed.post(f"{upload}/complete", json={"key": SHARD, "parts": parts})
    assert (again.status_code, again.json()["type"].rpartition(":")[2]) == (409, "AlreadyExists")


def test_an_upload_is_of_one_key_and_one_run(signed: TestClient) -> None:
    begun = signed.post(f"{URL}/uploads", json={"key": SHARD, "size": 1024}).json()
    part = {"key": PATCH, "number": 1, "size": 77, "sha256": SHA}
    for run, key in ((RUN, PATCH), ("other", SHARD)):
        path = f"/v1/runs/{run}/uploads/{begun['upload_id']}/parts"
        assert signed.post(path, json={**part, "key": key}).status_code == 400
    assert signed.post(f"{URL}/uploads/_/parts", json=part).status_code == 400


def test_an_upload_can_be_given_up(signed: TestClient, signing: SigningStore) -> None:
    begun = signed.post(f"{URL}/uploads", json={"key": SHARD, "size": 1024}).json()
    for _ in range(2):
        assert signed.delete(f"{URL}/uploads/{begun['upload_id']}", params={"key": SHARD}).status_code == 204
    assert signing.parts == {}
    assert signed.delete(f"{URL}/uploads/{begun['upload_id']}").status_code == 422


def test_an_object_is_read_where_the_store_says(signed: TestClient, signing: SigningStore) -> None:
    answer = signed.get(f"{URL}/{PATCH}")
    assert (answer.status_code, answer.headers["location"]) == (
        307,
        f"https://bucket.example/{RUN}/{PATCH}?signature=1",
    )
    assert signed.get(f"{URL}/{PATCH}").headers["location"] == answer.headers["location"]
    assert signing.asked == [("get", f"{RUN}/{PATCH}", 900)]
    signing.put(f"{RUN}/{PATCH}", DATA)
    assert signed.head(f"{URL}/{PATCH}").headers["content-length"] == "1024"
    assert signed.put(f"{URL}/{PATCH}", content=DATA).status_code == 400


@pytest.mark.parametrize("since", [0, 4])
def test_the_end_of_the_log_tells_where_the_newest_patch_is(signing: SigningStore, since: int) -> None:
    """Whoever waited for its record reads it next; who reads a long log wants something else."""
    run = run_of(6)
    fill(signing, run)
    newest = run.state.latest
    assert newest is not None
    [ref] = run.state.patches_into(newest.version)
    with TestClient(app_over(signing)) as client:
        page = client.get(f"/v1/runs/{run.state.run}/log?since={since}").json()
        assert len(page["records"]) == run.state.seq + 1 - since
        assert client.get(f"/v1/runs/{run.state.run}/log?since={since}&limit=1").json()["urls"] is None
    if since == 0:
        assert page["urls"] is None
    else:
        [(key, url)] = page["urls"]["urls"].items()
        assert key == ref.object.key
        assert url.startswith(f"https://bucket.example/{run.state.run}/{key}?signature=")
        assert page["urls"]["expires_at"] is not None


def test_signed_urls_say_until_when_they_are_good(signed: TestClient, signing: SigningStore) -> None:
    body = signed.post(f"{URL}/urls", json={"keys": [PATCH, SHARD, PATCH]}).json()
    assert set(body["urls"]) == {PATCH, SHARD}
    assert body["expires_at"].endswith("Z")
    assert [key for _, key, _ in signing.asked] == [f"{RUN}/{PATCH}", f"{RUN}/{SHARD}"]
