"""Two regions over real servers: a service with a list of roots, its signed URLs, and the root that they point at."""

from __future__ import annotations

from contextlib import suppress

import ml_dtypes
import numpy as np
import pytest
from botocore.exceptions import ClientError

import pulse_registry
from pulse_registry.errors import Conflict
from pulse_registry.mirror import Mirror
from pulse_registry.store import open_store
from tests.support.servers import moto
from tests.support.service import Service, serving

RUN = "math-7b"


def weights(step: int) -> dict[str, np.ndarray]:
    cells = np.arange(4096, dtype=np.float32)
    cells[step::97] += step + 1
    return {"w": cells.astype(ml_dtypes.bfloat16)}


def pulled(registry: pulse_registry.Registry) -> tuple[int, bytes]:
    into = registry.load(framework="numpy")
    return registry.version().version, into["w"].tobytes()


@pytest.fixture(scope="module")
def bucket():
    with moto() as server:
        yield server


@pytest.fixture
def regions(bucket, monkeypatch):
    for name, value in bucket.environment.items():
        monkeypatch.setenv(name, value)
    home, near = bucket.new_bucket(), bucket.new_bucket()
    yield home, near, bucket
    home.remove()
    with suppress(ClientError):  # a test may have removed it
        near.remove()


def mirror(source: str, destination: str) -> None:
    with Mirror(open_store(source), open_store(destination), RUN) as one:
        one.catch_up()


@pytest.mark.slow
def test_workers_push_and_pull_through_a_service_of_two_roots(regions, tmp_path):
    home, near, server = regions
    far_url, near_url = home.url("policies"), near.url("policies")
    with pulse_registry.open(far_url, run=RUN) as trainer:
        for step in range(3):
            trainer.push(step, weights(step))
    mirror(far_url, near_url)
    with pulse_registry.open(far_url, run=RUN) as trainer:
        trainer.push(3, weights(3))
    service = Service(f"{near_url},{far_url}", tmp_path, server.environment)
    service.start()
    try:
        with pulse_registry.open(service.url, run=RUN, token=service.token, name="rollout-0") as worker:
            assert pulled(worker) == (2, weights(2)["w"].tobytes())  # as far as the near root is
            mirror(far_url, near_url)
            assert next(worker.watch(after=2, timeout=60)).version == 3
            assert pulled(worker) == (3, weights(3)["w"].tobytes())
        with pulse_registry.open(service.url, run=RUN, token=service.token) as trainer:
            assert trainer.push(4, weights(4)).version == 4
            assert pulled(trainer) == (4, weights(4)["w"].tobytes())  # at the home, from then on
        assert pulled_at(far_url) == (4, weights(4)["w"].tobytes())
        assert pulled_at(near_url) == (3, weights(3)["w"].tobytes())
    finally:
        service.stop()


@pytest.mark.slow
def test_a_service_goes_on_at_the_far_root_when_the_near_bucket_is_lost(regions, tmp_path):
    home, near, server = regions
    far_url, near_url = home.url("policies"), near.url("policies")
    with (
        pulse_registry.open(far_url, run=RUN) as trainer,
        serving(f"{near_url},{far_url}", tmp_path, server.environment) as service,
    ):
        trainer.push(0, weights(0))
        mirror(far_url, near_url)
        with pulse_registry.open(service.url, run=RUN, token=service.token) as worker:
            assert pulled(worker) == (0, weights(0)["w"].tobytes())
            near.remove()
            trainer.push(1, weights(1))
            assert next(worker.watch(after=0, timeout=60)).version == 1
            assert pulled(worker) == (1, weights(1)["w"].tobytes())
    assert "is left alone for" in service.log


def pulled_at(url: str) -> tuple[int, bytes]:
    with pulse_registry.open(url, run=RUN) as registry:
        return pulled(registry)


@pytest.mark.slow
def test_a_near_bucket_that_is_gone_is_left_for_the_far_one_by_workers_with_a_list(regions):
    home, near, _ = regions
    far_url, near_url = home.url("policies"), near.url("policies")
    with pulse_registry.open(far_url, run=RUN) as trainer:
        trainer.push(0, weights(0))
        mirror(far_url, near_url)
        store = open_store(near_url)
        with pulse_registry.open([near_url, far_url], run=RUN) as worker:
            assert pulled(worker) == (0, weights(0)["w"].tobytes())
            for key in [*store.list(f"{RUN}/objects/")]:
                store.delete(key)
            assert pulled(worker) == (0, weights(0)["w"].tobytes())
            trainer.push(1, weights(1))
            assert worker.version(1).version == 1
            assert pulled(worker) == (1, weights(1)["w"].tobytes())
    with pulse_registry.open(near_url, run=RUN) as stray, pytest.raises(Conflict, match="holds a copy of"):
        stray.push(2, weights(2))
