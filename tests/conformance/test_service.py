"""The service's client is a store, as far as it goes: objects of a run, created once, in any bucket behind it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from blake3 import blake3

from pulse_registry.client.store import ServiceStore
from pulse_registry.format import keys
from pulse_registry.store import MemoryStore, Store, open_store
from pulse_registry.testing import ObjectTests, Subject
from tests.support.apps import app_over, running
from tests.support.servers import S3Bucket

_runs = (f"run-{number}" for number in itertools.count())


@dataclass(frozen=True, slots=True)
class Served:
    """A service, and the store that it is over."""

    url: str
    below: Store


@pytest.fixture(scope="module")
def over_memory() -> Iterator[Served]:
    below = MemoryStore("test-conformance-service")
    with running(app_over(below)) as service:
        yield Served(service.url, below)


@pytest.fixture(scope="module")
def over_s3(seaweedfs_bucket: S3Bucket) -> Iterator[Served]:
    with pytest.MonkeyPatch.context() as patched:
        for name, value in seaweedfs_bucket.server.environment.items():
            patched.setenv(name, value)
        below = open_store(seaweedfs_bucket.url("service"))
        with running(app_over(below)) as service:
            yield Served(service.url, below)


class ServiceTests(ObjectTests):
    """What a service keeps has keys of its own: they are of patches here. It lists, replaces and deletes none."""

    @pytest.fixture(autouse=True)
    def run(self) -> str:
        self._run = next(_runs)
        return self._run

    def key_of(self, name: str) -> str:
        return f"{self._run}/{keys.patch_key(0, 1, blake3(name.encode()).hexdigest()[:32])}"

    def told(self, key: str) -> str:
        return super().told(key.removeprefix(f"{self._run}/"))


def subject_of(served: Served) -> Iterator[Subject]:
    store = ServiceStore(served.url)
    yield Subject(store, raw_get=served.below.get, raw_set=served.below.put)
    store.close()


class TestServiceOverMemory(ServiceTests):
    """The service sends and takes the bytes itself."""

    @pytest.fixture
    def subject(self, over_memory: Served) -> Iterator[Subject]:
        yield from subject_of(over_memory)


class TestServiceOverS3(ServiceTests):
    """The bytes go between the client and the bucket, by requests that the service signs."""

    @pytest.fixture
    def subject(self, over_s3: Served) -> Iterator[Subject]:
        yield from subject_of(over_s3)
