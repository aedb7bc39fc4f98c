"""Connections that break, stall, lie and lose answers between client and store: bits are exact, or errors typed."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import numpy as np
import pytest

from pulse_registry.errors import CorruptObject, StoreUnavailable
from pulse_registry.options import ComputeOptions, Options
from pulse_registry.registry import Registry
from pulse_registry.runtime.dependencies import Dependencies
from pulse_registry.store import RetryStore
from pulse_registry.store.wrappers.retry import RetryPolicy
from tests.scenarios.faults.network import model_at, s3_store, travel
from tests.support.proxy import FAULTS, FaultName, FaultyProxy, Plan
from tests.support.registries import bits
from tests.support.servers import S3Bucket

pytestmark = pytest.mark.slow


@pytest.fixture
def bucket(seaweedfs_bucket: S3Bucket, monkeypatch: pytest.MonkeyPatch) -> S3Bucket:
    for name, value in seaweedfs_bucket.server.environment.items():
        monkeypatch.setenv(name, value)
    return seaweedfs_bucket


@pytest.fixture
def proxy(bucket: S3Bucket) -> Iterator[FaultyProxy]:
    with FaultyProxy(bucket.server.endpoint) as proxy:
        yield proxy


def root() -> str:
    return f"faults-{uuid.uuid4().hex}"


def test_a_network_without_faults_passes_everything_on(bucket: S3Bucket, proxy: FaultyProxy) -> None:
    prefix = root()
    journey = travel(lambda: s3_store(bucket, proxy.endpoint, prefix), 3)
    assert journey.errors == []
    assert proxy.exchanges > 20
    assert not proxy.injected


@pytest.mark.parametrize("fault", FAULTS)
def test_a_pull_over_a_network_that_does_but_one_thing_wrong_gets_there(
    bucket: S3Bucket, proxy: FaultyProxy, fault: FaultName
) -> None:
    prefix = root()
    with Registry(
        s3_store(bucket, bucket.server.endpoint, prefix), "run", Options(compute=ComputeOptions(backend="reference"))
    ) as trainer:
        trainer.push(0, model_at(0))
    proxy.plan = Plan(0.3, (fault,), seed=1)
    with Registry(
        s3_store(bucket, proxy.endpoint, prefix, answer_s=1.5),
        "run",
        Options(compute=ComputeOptions(backend="reference")),
    ) as worker:
        assert bits(worker.load()) == bits(model_at(0))
    assert proxy.injected[fault], "something went wrong"


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault != "stall"])
def test_a_pull_that_nothing_answers_right_ends_in_a_typed_error_with_the_weights_as_they_were(
    bucket: S3Bucket, proxy: FaultyProxy, fault: FaultName
) -> None:
    prefix = root()
    store = s3_store(bucket, proxy.endpoint, prefix)
    with Registry(
        s3_store(bucket, bucket.server.endpoint, prefix), "run", Options(compute=ComputeOptions(backend="reference"))
    ) as trainer:
        trainer.push(0, model_at(0))
        brief = Dependencies(retrying=lambda store: RetryStore(store, RetryPolicy(total_s=0.5)))
        with Registry(store, "run", Options(compute=ComputeOptions(backend="reference")), dependencies=brief) as worker:
            into = {name: np.full_like(cells, 7) for name, cells in model_at(0).items()}
            was = bits(into)
            worker.versions()
            proxy.plan = Plan(1.0, (fault,), seed=2)
            with pytest.raises((StoreUnavailable, CorruptObject)):
                worker.pull(into=into)
            assert bits(into) == was
            proxy.plan = Plan()
            worker.pull(into=into)
            assert bits(into) == bits(model_at(0))


def test_at_one_fault_in_ten_every_push_and_pull_succeeds(bucket: S3Bucket, proxy: FaultyProxy) -> None:
    proxy.plan = Plan(0.1, seed=3)
    prefix = root()
    journey = travel(lambda: s3_store(bucket, proxy.endpoint, prefix), 6)
    assert journey.errors == []
    assert sum(proxy.injected.values()) >= 4, "something went wrong"


@pytest.mark.sweep
@pytest.mark.parametrize("share", [0.05, 0.1, 0.2])
@pytest.mark.parametrize("seed", range(8))
def test_pushes_and_pulls_over_a_bad_network_are_exact(
    bucket: S3Bucket, proxy: FaultyProxy, share: float, seed: int
) -> None:
    proxy.plan = Plan(share, seed=seed)
    prefix = root()
    journey = travel(lambda: s3_store(bucket, proxy.endpoint, prefix, answer_s=1.0), 12)
    print(
        f"share {share} seed {seed}: {journey.seconds:.1f} s, {proxy.exchanges} exchanges, "
        f"{dict(proxy.injected)}, errors {[str(error) for error in journey.errors]}"
    )
    assert share > 0.1 or journey.errors == []
