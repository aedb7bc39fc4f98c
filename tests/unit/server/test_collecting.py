"""The service collects garbage in every run, when it is told to, and says how it went."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest
from fastapi.testclient import TestClient

from pulse_registry.errors import InvalidArgument, StoreUnavailable
from pulse_registry.format import keys
from pulse_registry.log import LogReader
from pulse_registry.log.mirror_mark import write_mark
from pulse_registry.process.parallel import ParallelMap
from pulse_registry.retention import RetentionPolicy
from pulse_registry.roots import NearestStore
from pulse_registry.store import PrefixStore, Store, WrapperStore
from pulse_registry.testing import Fault, FaultStore
from pulse_schemas import BASES
from pulse_server.runs.collecting import Collecting
from pulse_server.settings import Settings
from pulse_server.telemetry.metrics import Metrics
from tests.support.apps import app_over, run_of, store_objects
from tests.support.bases import LENDER, base_files, lend, opened, tuned
from tests.support.records import RUN, DictStore, keyframe
from tests.support.registries import bits, garbage
from tests.support.waiting import HANG_S
from tests.unit.server.test_metrics import value

START = datetime(2026, 1, 2, tzinfo=UTC)
GC = {"gc_keep_last": 2, "gc_keep_seconds": 0, "gc_grace_seconds": 0}


def filled(store: DictStore, *runs: str) -> DictStore:
    for run in runs:
        script = run_of(6, run).attach(keyframes=(keyframe(4, tag=1),))
        for record in script.records:
            store_objects(store, record)
        script.store_in(PrefixStore(store, run))
    return store


def versions(store: DictStore, run: str) -> list[int]:
    state = LogReader(PrefixStore(store, run), run).refresh()
    return [entry.version for entry in state.versions if not state.is_retired(entry.version)]


def test_a_run_is_collected_and_counted() -> None:
    now = [START]
    store, metrics = filled(DictStore(lambda: now[0]), RUN), Metrics()
    with ThreadPoolExecutor(2) as pool:
        policy = RetentionPolicy(keep_last=2, keep_seconds=0, grace_seconds=60)
        collecting = Collecting(
            store, lambda run: LogReader(PrefixStore(store, run), run), policy, metrics, ParallelMap(pool)
        )
        collecting.collect(RUN)
        assert versions(store, RUN) == [4, 5]
        now[0] += timedelta(minutes=2)
        collecting.collect(RUN)
        collecting.collect("nothing-here")
    assert value(metrics, "pulse_gc_collections_total", outcome="done") == 2
    assert value(metrics, "pulse_gc_retired_versions_total") == 4
    assert value(metrics, "pulse_gc_retired_bytes_total") == 4 * 100 + 1010
    assert value(metrics, "pulse_gc_deleted_objects_total") == 4 + 2


def test_what_goes_wrong_is_counted_and_harms_nothing() -> None:
    class Failing(WrapperStore):
        def list(self, prefix: str, after: str | None = None):  # type: ignore[no-untyped-def]
            raise StoreUnavailable(prefix)

    store, metrics = filled(DictStore(), RUN), Metrics()
    with ThreadPoolExecutor(2) as pool:
        failing = Failing(store)
        reader = LogReader(PrefixStore(store, RUN), RUN)
        Collecting(failing, lambda run: reader, RetentionPolicy(keep_last=1), metrics, ParallelMap(pool)).collect(RUN)
    assert value(metrics, "pulse_gc_collections_total", outcome="StoreUnavailable") == 1
    assert versions(store, RUN) == [0, 1, 2, 3, 4, 5]


def test_a_copy_is_left_to_its_mirror_which_is_no_failure() -> None:
    store, metrics = filled(DictStore(), RUN), Metrics()
    write_mark(PrefixStore(store, RUN), RUN, "dict://home")
    with ThreadPoolExecutor(2) as pool:
        policy = RetentionPolicy(keep_last=1, keep_seconds=0)
        collecting = Collecting(
            store, lambda run: LogReader(PrefixStore(store, run), run), policy, metrics, ParallelMap(pool)
        )
        collecting.collect(RUN)
    assert versions(store, RUN) == [0, 1, 2, 3, 4, 5]
    assert b"pulse_gc_collections_total{" not in metrics.render()[0]


def test_a_service_that_is_told_to_collects_all_runs_again_and_again() -> None:
    deleted, wanted = threading.Event(), {"a", "b"}

    class Noting(WrapperStore):
        def delete(self, key: str) -> None:
            super().delete(key)
            wanted.discard(key.split("/")[0])
            if not wanted:
                deleted.set()

    store = filled(DictStore(), "a", "b")
    with TestClient(app_over(Noting(store), gc_seconds=0.01, **GC)):
        assert deleted.wait(HANG_S)
    for run in ("a", "b"):
        assert versions(store, run) == [4, 5]


def test_a_service_that_is_not_told_to_collects_nothing() -> None:
    store = filled(DictStore(), RUN)
    with TestClient(app_over(store, **GC)) as client:
        assert client.get(f"/v1/runs/{RUN}/versions/0").status_code == 200
    assert not store.exists(f"{RUN}/{keys.CLOCK}")


@pytest.mark.parametrize("field", ["gc_seconds", "gc_keep_last", "gc_keep_every", "gc_grace_seconds"])
def test_a_policy_that_makes_no_sense_is_refused_at_the_start(field: str) -> None:

    with pytest.raises(InvalidArgument, match=field):
        Settings.read(root="memory://x", insecure_open=True, **{field: -1})


def test_shared_bases_are_collected_and_what_goes_wrong_is_counted() -> None:
    now = [START]
    store, metrics = DictStore(lambda: now[0]), Metrics()
    model = lend(store)
    with opened(store, "tuned", LENDER) as registry:
        registry.push(0, tuned(model, 1))
    for key in [key for key in store.list("") if "/bases/" in key]:
        store.delete(key)

    collect_bases(store, metrics)
    assert len(base_files(store)) == 2
    now[0] += timedelta(minutes=2)
    collect_bases(FaultStore(store, [Fault("fail_before", "list")]), metrics)
    assert value(metrics, "pulse_gc_collections_total", outcome="StoreUnavailable") == 1
    collect_bases(store, metrics)
    assert base_files(store) == []
    assert value(metrics, "pulse_gc_deleted_objects_total") == 2


def test_each_root_of_several_keeps_the_bases_that_its_own_runs_need() -> None:
    now = [START]
    near, home, metrics = DictStore(lambda: now[0]), DictStore(lambda: now[0]), Metrics()
    near.url, home.url = "dict://near", "dict://home"
    model = lend(home)
    for run in ("gone", "kept"):
        with opened(home, run, LENDER) as registry:
            registry.push(0, tuned(model, 1))
    for key in [key for key in home.list("") if key.startswith((BASES, "gone/"))]:
        near.put(key, home.get(key))
    for store in (near, home):  # what the collector of the run that was copied leaves, once it needs the base no more
        for key in [key for key in store.list("") if key.startswith((f"gone/{keys.REFERENCES}", f"{LENDER}/bases/"))]:
            store.delete(key)
    roots = NearestStore([near, home])
    roots.write_at_home("kept")
    for _ in range(3):
        collect_bases(roots, metrics)
        now[0] += timedelta(minutes=2)
    assert len(base_files(home)) == 2
    assert not [key for key in home.list(BASES) if key.endswith("/closed")]
    assert base_files(near) == []
    into = garbage(model)
    with opened(home, "kept") as registry:
        registry.pull(into=into)
    assert bits(into) == bits(tuned(model, 1))


def collect_bases(store: Store, metrics: Metrics) -> None:
    with ThreadPoolExecutor(1) as pool:
        policy = RetentionPolicy(grace_seconds=60)
        read = lambda run: LogReader(PrefixStore(store, run), run)  # noqa: E731
        Collecting(store, read, policy, metrics, ParallelMap(pool)).collect_bases()
