from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from pulse_registry.store import PrefixStore, RetryStore, S3Location, S3Store, Store, open_store
from pulse_registry.store.wrappers.retry import RetryPolicy
from pulse_registry.testing import StoreTests, Subject
from tests.conformance.model import StoreMachine
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


def subject_of(store: Store, bucket: S3Bucket) -> Subject:
    prefix = uuid.uuid4().hex[:12]  # the longest key of the suite leaves room for 14 bytes
    client = bucket.server.client()
    return Subject(
        store=PrefixStore(store, prefix),
        raw_get=lambda key: client.get_object(Bucket=bucket.name, Key=f"{prefix}/{key}")["Body"].read(),
        raw_set=lambda key, data: client.put_object(Bucket=bucket.name, Key=f"{prefix}/{key}", Body=data),
    )


class TestS3StoreOnMoto(StoreTests):
    @pytest.fixture
    def subject(self, moto_bucket: S3Bucket, moto_store: Store) -> Subject:
        # moto answers 500 to one who reads what another one replaces.
        return subject_of(RetryStore(moto_store, RetryPolicy(first_pause_s=0.01)), moto_bucket)


class TestS3StoreOnSeaweedFS(StoreTests):
    create_rounds = 2  # those who lose may wait for seconds

    @pytest.fixture
    def subject(self, seaweedfs_bucket: S3Bucket, seaweedfs_store: Store) -> Subject:
        return subject_of(seaweedfs_store, seaweedfs_bucket)


@pytest.mark.parametrize(("server", "examples"), [("moto", 8), ("seaweedfs", 5)])
def test_an_s3_store_behaves_like_a_dict(
    server: str, examples: int, request: pytest.FixtureRequest, environment: pytest.MonkeyPatch
) -> None:
    bucket: S3Bucket = request.getfixturevalue(f"{server}_bucket")
    opened(bucket, environment)
    place = S3Location(bucket.name, bucket.server.endpoint, bucket.server.region, "path")
    below = S3Store(place, page_keys=2)  # so that most listings are of several pages

    class Machine(StoreMachine):
        def fresh(self) -> Store:
            return PrefixStore(below, uuid.uuid4().hex[:12])

    run_state_machine_as_test(Machine, settings=settings(max_examples=examples, stateful_step_count=12))
