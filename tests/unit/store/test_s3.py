from __future__ import annotations

import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from pulse_registry.store import S3Location, S3Store, Store, open_store
from pulse_registry.store.s3.body import Parcel
from pulse_registry.store.s3.client import make_client
from pulse_registry.store.s3.listing import Listing
from pulse_registry.store.watchdog import LowSpeedLimit
from tests.support.servers import S3Bucket


@pytest.fixture(scope="module")
def environment() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        yield patch


def opened(bucket: S3Bucket, patch: pytest.MonkeyPatch) -> Store:
    for name, value in bucket.server.environment.items():
        patch.setenv(name, value)
    return open_store(bucket.url())


@pytest.fixture(scope="module")
def moto_store(moto_bucket: S3Bucket, environment: pytest.MonkeyPatch) -> Store:
    return opened(moto_bucket, environment)


@pytest.fixture(scope="module")
def seaweedfs_store(seaweedfs_bucket: S3Bucket, environment: pytest.MonkeyPatch) -> Store:
    return opened(seaweedfs_bucket, environment)


@pytest.mark.slow
@pytest.mark.parametrize("server", ["moto", "seaweedfs"])
def test_a_listing_of_many_pages_is_whole_and_in_order(server: str, request: pytest.FixtureRequest) -> None:
    bucket: S3Bucket = request.getfixturevalue(f"{server}_bucket")
    store: S3Store = request.getfixturevalue(f"{server}_store")
    folder = uuid.uuid4().hex[:12]
    names = [
        "math/1",
        "math/2/x",
        "math/2-/x",
        "math-7b/1",
        "math-7b.x",
        "math.x",
        "math0",
        "m",
        "n/1",
        "n-",
        "n ",
        "é",
    ]
    keys = sorted(f"{folder}/{name}" for name in names)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda key: store.put(key, b""), keys))
    client = bucket.server.client()
    for page_keys in (1, 2, 3, 5, 1000):
        listing = Listing(client, bucket.name, store.url, page_keys)
        assert [*listing.keys(f"{folder}/", "")] == keys
        for after in (*keys, f"{folder}/math/", f"{folder}/math-7b0", f"{folder}/n.", f"{folder}/math/2-/"):
            assert [*listing.keys(f"{folder}/m", after)] == [k for k in keys if k > after and k[13] == "m"], after


def test_a_folder_that_was_emptied_lists_nothing(seaweedfs_store: Store) -> None:
    folder = uuid.uuid4().hex[:12]
    seaweedfs_store.put(f"{folder}/a/b", b"")
    seaweedfs_store.delete(f"{folder}/a/b")
    for prefix in (folder, f"{folder}/", f"{folder}/a", f"{folder}/a/"):
        assert [*seaweedfs_store.list(prefix)] == []


@pytest.mark.parametrize(("folders", "lists"), [(0, 1), (3, 1), (10, 1), (11, 2), (25, 3)])
def test_folders_take_a_request_for_each_page_however_much_is_in_them(
    folders: int, lists: int, moto_bucket: S3Bucket, moto_store: S3Store
) -> None:
    top = f"{uuid.uuid4().hex[:12]}/"
    for number in range(folders):
        for key in ("head", "log/0", "log/1", "objects/patch/0"):
            moto_store.put(f"{top}run-{number:02d}/{key}", b"")
    client = moto_bucket.server.client()
    sent: list[str] = []
    client.meta.events.register("before-call.s3", lambda model, **_: sent.append(model.name))
    listing = Listing(client, moto_bucket.name, moto_store.url, page_keys=10)
    assert [*listing.folders(top, "")] == [f"{top}run-{number:02d}/" for number in range(folders)]
    assert sent == ["ListObjectsV2"] * lists


@pytest.mark.parametrize(("nbytes", "asks"), [(0, False), (100_000, False), (2 << 20, True)])
def test_only_before_a_large_body_the_store_is_asked_whether_it_takes_it(
    nbytes: int, asks: bool, moto_bucket: S3Bucket, environment: pytest.MonkeyPatch
) -> None:
    for name, value in moto_bucket.server.environment.items():
        environment.setenv(name, value)
    client = make_client(
        S3Location(moto_bucket.name, moto_bucket.server.endpoint, moto_bucket.server.region, "path"), 5.0
    )
    sent: list[bool] = []
    client.meta.events.register("before-send.s3", lambda request, **_: sent.append("Expect" in request.headers))
    body = Parcel([memoryview(bytes(nbytes))] if nbytes else [], LowSpeedLimit(), "a test")
    client.put_object(Bucket=moto_bucket.name, Key=uuid.uuid4().hex, Body=body)
    assert sent == [asks]
