"""A bad network between client and service, and between both and the bucket: bits are exact, or errors typed."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pulse_registry.client.store import ServiceStore
from pulse_registry.client.transport import Timeouts
from pulse_registry.store import Store
from tests.scenarios.faults.network import travel
from tests.support.proxy import FAULTS, FaultyProxy, Plan
from tests.support.servers import S3Bucket
from tests.support.service import Service, serving

pytestmark = pytest.mark.slow


@contextmanager
def over_files(folder: Path) -> Iterator[tuple[Service, list[FaultyProxy]]]:
    """A service that carries objects itself; a proxy before it."""
    with serving(str(folder / "root"), folder) as service, FaultyProxy(service.url) as front:
        yield service, [front]


@contextmanager
def over_a_bucket(folder: Path, bucket: S3Bucket) -> Iterator[tuple[Service, list[FaultyProxy]]]:
    """A service that signs requests; a proxy before it, and one before the bucket, which the service uses too."""
    with FaultyProxy(bucket.server.endpoint) as back:
        root = bucket.url(f"faults-{uuid.uuid4().hex}").replace(bucket.server.endpoint, back.endpoint)
        with serving(root, folder, bucket.server.environment) as service, FaultyProxy(service.url) as front:
            yield service, [front, back]


def store_of(service: Service, front: FaultyProxy) -> Store:
    return ServiceStore(front.endpoint, service.token, timeouts=Timeouts(silence_s=5.0))


def spoil(proxies: list[FaultyProxy], share: float, seed: int) -> None:
    # The service waits for a bucket that says nothing as long as its settings say, and these workers far less.
    answering = [fault for fault in FAULTS if fault != "stall"]
    for number, proxy in enumerate(proxies):
        proxy.plan = Plan(share, FAULTS if number == 0 else answering, seed=10 * seed + number)


def test_at_one_fault_in_ten_every_push_and_pull_through_the_service_succeeds(tmp_path: Path) -> None:
    with over_files(tmp_path) as (service, proxies):
        spoil(proxies, 0.1, 3)
        journey = travel(lambda: store_of(service, proxies[0]), 5)
        assert journey.errors == []
        assert sum(proxies[0].injected.values()) >= 4, "something went wrong"


def test_at_one_fault_in_ten_before_the_service_and_the_bucket_every_push_and_pull_succeeds(
    tmp_path: Path, seaweedfs_bucket: S3Bucket
) -> None:
    with over_a_bucket(tmp_path, seaweedfs_bucket) as (service, proxies):
        spoil(proxies, 0.1, 1)
        journey = travel(lambda: store_of(service, proxies[0]), 4)
        assert journey.errors == []
        assert all(sum(proxy.injected.values()) >= 3 for proxy in proxies), "something went wrong with both"


@pytest.mark.sweep
@pytest.mark.parametrize("share", [0.05, 0.1, 0.2])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", ["files", "bucket"])
def test_pushes_and_pulls_through_a_service_over_a_bad_network_are_exact(
    tmp_path: Path, seaweedfs_bucket: S3Bucket, kind: str, share: float, seed: int
) -> None:
    with over_files(tmp_path) if kind == "files" else over_a_bucket(tmp_path, seaweedfs_bucket) as (service, proxies):
        spoil(proxies, share, seed)
        journey = travel(lambda: store_of(service, proxies[0]), 10)
        print(
            f"{kind} share {share} seed {seed}: {journey.seconds:.1f} s, {[p.exchanges for p in proxies]} exchanges, "
            f"{[dict(p.injected) for p in proxies]}, errors {[str(error) for error in journey.errors]}"
        )
        assert share > 0.1 or journey.errors == []
