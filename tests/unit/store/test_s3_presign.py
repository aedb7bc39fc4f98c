from __future__ import annotations

import base64
import hashlib
import uuid
from collections.abc import Iterator
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from pulse_registry.errors import AccessDenied, AlreadyExists, InvalidArgument
from pulse_registry.store import PrefixStore, Presigner, S3Location, S3Store, SignedPut, UploadedPart
from tests.support.servers import S3Bucket
from tests.support.waiting import HANG_S

DATA = b"some bytes of a patch" * 100
SHA256 = hashlib.sha256(DATA).hexdigest()
PART = bytes(range(256)) * (5 << 12)


@pytest.fixture(scope="module")
def store(seaweedfs_bucket: S3Bucket) -> Iterator[S3Store]:
    server = seaweedfs_bucket.server
    with pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment.items():
            patch.setenv(name, value)
        yield S3Store(S3Location(seaweedfs_bucket.name, server.endpoint, server.region, "path"))


@pytest.fixture
def key() -> str:
    return f"{uuid.uuid4().hex}/a b+ü?&=%.safetensors"


def send(request: SignedPut, data: bytes, **changes: str | None) -> httpx.Response:
    headers = {**request.headers, **{name.replace("_", "-"): value for name, value in changes.items()}}
    return httpx.put(
        request.url, content=data, headers={k: v for k, v in headers.items() if v is not None}, timeout=HANG_S
    )


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.mark.slow
def test_a_signed_url_reads_an_object_or_a_range_of_it_and_nothing_else(store: S3Store, key: str) -> None:
    url = store.presigner().presign(key, 60)
    assert httpx.get(url, timeout=HANG_S).status_code == 404
    store.put(key, DATA)
    assert httpx.get(url, timeout=HANG_S).content == DATA
    assert httpx.get(url, headers={"Range": "bytes=5-9"}, timeout=HANG_S).content == DATA[5:10]
    assert httpx.put(url, content=b"x", timeout=HANG_S).status_code == 403
    assert httpx.delete(url, timeout=HANG_S).status_code == 403
    assert httpx.get(url.replace("safetensors", "safetensor"), timeout=HANG_S).status_code == 403
    assert store.get(key) == DATA


def test_a_signed_put_creates_an_object_once(store: S3Store, key: str) -> None:
    request = store.presigner().presign_put(key, len(DATA), SHA256, 60)
    assert send(request, DATA).status_code == 200
    assert store.get(key) == DATA
    assert send(request, DATA).status_code == 412
    assert store.get(key) == DATA


def test_the_condition_the_length_and_the_checksum_of_a_put_are_signed(store: S3Store, key: str) -> None:
    request = store.presigner().presign_put(key, len(DATA), SHA256, 60)
    query = parse_qs(urlsplit(request.url).query)
    assert query["X-Amz-Algorithm"] == ["AWS4-HMAC-SHA256"]
    signed = query["X-Amz-SignedHeaders"][0].split(";")
    assert {"content-length", "host", "if-none-match", "x-amz-checksum-sha256"} <= {*signed}
    assert {name.lower() for name in request.headers} | {"host"} == {*signed}


@pytest.mark.parametrize(
    "changes",
    [{"If_None_Match": None}, {"x_amz_checksum_sha256": None}, {"If_None_Match": "another"}],
    ids=["no condition", "no checksum", "another condition"],
)
def test_a_put_with_a_header_changed_is_refused(store: S3Store, key: str, changes: dict[str, str | None]) -> None:
    assert send(store.presigner().presign_put(key, len(DATA), SHA256, 60), DATA, **changes).status_code == 403
    assert not store.exists(key)


def test_a_put_of_other_bytes_is_refused(store: S3Store, key: str) -> None:
    request = store.presigner().presign_put(key, len(DATA), SHA256, 60)
    other = DATA[:-1] + b"?"
    longer = DATA + b"?"
    own = base64.b64encode(hashlib.sha256(other).digest()).decode()
    assert send(request, other).status_code == 400
    assert send(request, other, x_amz_checksum_sha256=own).status_code == 403
    assert send(request, longer, Content_Length=str(len(longer))).status_code == 403
    assert not store.exists(key)


def test_an_upload_in_parts_makes_an_object_once(store: S3Store, key: str) -> None:
    def upload() -> tuple[str, list[UploadedPart]]:
        upload_id = store.presigner().begin_parts(key)
        parts = []
        for number, data in enumerate((PART, DATA), 1):
            request = store.presigner().presign_part(key, upload_id, number, len(data), sha256(data), 60)
            answer = send(request, data)
            assert answer.status_code == 200
            parts.append(UploadedPart(number, answer.headers["ETag"], sha256(data)))
        return upload_id, parts

    first, second = upload(), upload()
    assert not store.exists(key)
    store.presigner().finish_parts(key, *first)
    assert store.get(key) == PART + DATA
    with pytest.raises(AlreadyExists):
        store.presigner().finish_parts(key, *second)
    store.presigner().abort_parts(key, second[0])
    assert store.get(key) == PART + DATA


def test_a_part_of_other_bytes_is_refused(store: S3Store, key: str) -> None:
    upload_id = store.presigner().begin_parts(key)
    request = store.presigner().presign_part(key, upload_id, 1, len(PART), sha256(PART), 60)
    assert send(request, b"?" + PART[1:]).status_code == 400
    assert send(request, PART, x_amz_checksum_sha256=None).status_code == 403
    assert send(request, PART + b"?", Content_Length=str(len(PART) + 1)).status_code == 403
    store.presigner().abort_parts(key, upload_id)


def test_an_upload_that_was_given_up_can_not_be_finished(store: S3Store, key: str) -> None:
    upload_id = store.presigner().begin_parts(key)
    answer = send(store.presigner().presign_part(key, upload_id, 1, len(DATA), SHA256, 60), DATA)
    store.presigner().abort_parts(key, upload_id)
    store.presigner().abort_parts(key, upload_id)
    with pytest.raises(InvalidArgument, match="no upload"):
        store.presigner().finish_parts(key, upload_id, [UploadedPart(1, answer.headers["ETag"], SHA256)])
    assert not store.exists(key)


def test_an_upload_that_lacks_a_part_can_not_be_finished(store: S3Store, key: str) -> None:
    upload_id = store.presigner().begin_parts(key)
    with pytest.raises(InvalidArgument):
        store.presigner().finish_parts(key, upload_id, [UploadedPart(1, '"0123456789abcdef0123456789abcdef"', SHA256)])
    with pytest.raises(InvalidArgument, match="no parts"):
        store.presigner().finish_parts(key, upload_id, [])
    store.presigner().abort_parts(key, upload_id)


def test_what_makes_no_sense_is_not_signed(store: S3Store) -> None:
    signer: Presigner = store.presigner()
    for call in (
        lambda: signer.presign("../a", 60),
        lambda: signer.presign("a", 0),
        lambda: signer.presign("a", 7 * 24 * 3600 + 1),
        lambda: signer.presign_put("a", -1, SHA256, 60),
        lambda: signer.presign_put("a", (5 << 30) + 1, SHA256, 60),
        lambda: signer.presign_put("a", 1, SHA256.upper(), 60),
        lambda: signer.presign_part("a", "", 1, 1, SHA256, 60),
        lambda: signer.presign_part("a", "id", 0, 1, SHA256, 60),
        lambda: signer.presign_part("a", "id", 10_001, 1, SHA256, 60),
    ):
        with pytest.raises(InvalidArgument):
            call()


def test_signing_asks_nothing_of_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}.items():
        monkeypatch.setenv(name, value)
    store = S3Store(S3Location("bucket", "https://store.invalid:9", "eu-central-1", "virtual"))
    signer = PrefixStore(store, "runs").presigner()
    assert signer is not None
    assert signer.presign("a/b", 60).startswith("https://bucket.store.invalid:9/runs/a/b?")
    put = signer.presign_put("a/b", 3, SHA256, 60)
    part = signer.presign_part("a/b", "id", 7, 3, SHA256, 60)
    assert "/runs/a/b?" in put.url
    assert "partNumber=7" in part.url
    assert "uploadId=id" in part.url


def test_without_credentials_nothing_is_signed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"AWS_CONFIG_FILE": "/dev/null", "AWS_SHARED_CREDENTIALS_FILE": "/dev/null"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    store = S3Store(S3Location("bucket", "http://127.0.0.1:9"))
    with pytest.raises(AccessDenied, match="AWS_ACCESS_KEY_ID"):
        store.presigner().presign("key", 60)
    with pytest.raises(AccessDenied, match="AWS_ACCESS_KEY_ID"):
        store.get("key")
