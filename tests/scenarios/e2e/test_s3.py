"""What holds of a folder holds of a bucket: real trainers and workers over a real S3 server."""

from __future__ import annotations

import itertools
import uuid

import pytest

from pulse_registry.format import keys
from pulse_registry.options import ComputeOptions, Options
from pulse_registry.registry import Registry
from pulse_registry.retention import RetentionPolicy
from pulse_registry.store import PrefixStore, open_store
from tests.scenarios.e2e.test_processes import check_crash, check_race, trainers
from tests.scenarios.e2e.trainers import SCENARIOS, model_of, registry_of
from tests.support.registries import bits, garbage
from tests.support.servers import S3Bucket


@pytest.fixture
def root(seaweedfs_bucket: S3Bucket, monkeypatch: pytest.MonkeyPatch) -> str:
    """A root without a query in its URL: all else is in the environment, as the AWS SDKs take it."""
    server = seaweedfs_bucket.server
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", server.endpoint)
    monkeypatch.setenv("AWS_REGION", server.region)
    return f"s3://{seaweedfs_bucket.name}/{uuid.uuid4().hex[:12]}"


SWEPT = [pytest.param(scenario, 1, marks=pytest.mark.sweep) for scenario in SCENARIOS]


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [5, pytest.param(100, marks=pytest.mark.sweep)])
def test_two_trainers_that_race_over_a_bucket_commit_each_version_once_and_lose_nothing(root: str, rounds: int) -> None:
    check_race(open_store(root), trainers("race", root, rounds), rounds)


@pytest.mark.slow
@pytest.mark.parametrize(("scenario", "stride"), [("patch", 9), *SWEPT])
def test_a_trainer_killed_at_a_call_to_a_bucket_leaves_whole_versions_and_a_run_that_goes_on(
    root: str, scenario: str, stride: int
) -> None:
    told = trainers("crash", root, scenario, str(stride))
    assert told["killed"]
    check_crash(lambda name: open_store(f"{root}/{name}"), told, scenario)


def test_a_bucket_gives_every_version_from_any_other(root: str) -> None:
    versions = 6
    with registry_of(open_store(root), keyframe_every=3) as trainer:
        for step in range(versions):
            trainer.push(step, model_of(step))
    with Registry(open_store(root), "run", Options(compute=ComputeOptions(backend="reference"))) as worker:
        for start, end in itertools.product(range(versions), repeat=2):
            into = garbage(model_of(0))
            worker.pull(start, into=into)
            assert bits(into) == bits(model_of(start))
            worker.pull(end, into=into)
            assert bits(into) == bits(model_of(end)), (start, end)


def test_what_a_bucket_holds_is_retired_and_deleted_by_its_own_clock(root: str) -> None:
    with registry_of(open_store(root), keyframe_every=3) as trainer:
        for step in range(6):
            trainer.push(step, model_of(step))
        trainer.tag("best", 1)
    store = open_store(root)
    store.put(f"run/{keys.patch_key(0, 4, '0' * 32)}", b"an orphan")
    policy = RetentionPolicy(keep_last=1, keep_seconds=0, grace_seconds=0, orphan_seconds=0)
    with Registry(store, "run", Options(compute=ComputeOptions(backend="reference"))) as registry:
        first = registry.gc(policy, dry_run=False)
        assert len(first.plan.orphans) == 1
        kept = first.plan.kept.keys()
        assert {1, 5} <= kept < set(range(6))
        second = registry.gc(policy, dry_run=False)
        assert (second.deleted, second.plan.empty) == (first.plan.objects + 1, True)
        for version in kept:
            into = garbage(model_of(0))
            registry.pull(version, into=into)
            assert bits(into) == bits(model_of(version))
        state = registry.state()
        live = {item.key for frame in state.keyframes for item in (frame.index, *frame.shards)}
        live |= {ref.object.key for ref in state.patches}
        assert set(PrefixStore(store, "run").list(keys.OBJECTS)) == live
