"""Workers' reports: told with how far behind they are, shared between replicas, bounded in time and number."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import httpx
import pytest
from fastapi.testclient import TestClient

from pulse_registry.errors import StoreUnavailable
from pulse_registry.store import CountingStore, Store
from pulse_schemas.api import PhaseBody, WorkerReport
from pulse_server.reports import Reports
from tests.log.builders import RUN, DictStore
from tests.server.running import app_over, fill, run_of

URL = f"/v1/runs/{RUN}"
STATE = run_of(3).state
REPORT = WorkerReport(version=2, digest="f" * 32, phases={"apply": 0.25}, nbytes=7, avoided=("objects/a",))


class Time:
    """One time for clocks of both kinds."""

    def __init__(self) -> None:
        self.passed = 0.0

    def now(self) -> datetime:
        return datetime(2026, 3, 1, tzinfo=UTC) + timedelta(seconds=self.passed)

    def clock(self) -> float:
        return self.passed


@pytest.fixture
def time() -> Time:
    return Time()


def replica(store: Store, time: Time, name: str = "one", **options: int) -> Reports:
    return Reports(store, replica=name, now=time.now, clock=time.clock, share_s=5, keep_s=900, **options)


def names(reports: Reports) -> list[str]:
    return [worker.worker for worker in reports.listed(STATE).workers]


def test_a_report_is_told_with_how_far_behind_the_worker_is(time: Time) -> None:
    reports = replica(DictStore(), time)
    reports.take(RUN, "b", REPORT)
    reports.take(RUN, "a", WorkerReport(version=0, digest="0" * 32))
    reports.take(RUN, "c", WorkerReport(version=9, digest="f" * 32))
    told = reports.listed(STATE)
    assert [(w.worker, w.version, w.staleness, w.digest_matches) for w in told.workers] == [
        ("a", 0, 2, False),
        ("b", 2, 0, True),
        ("c", 9, 0, False),
    ]
    assert (told.workers[1].reported_at, told.workers[1].phases, told.workers[1].nbytes) == (
        "2026-03-01T00:00:00.000Z",
        {"apply": 0.25},
        7,
    )
    assert told.workers[1].avoided == ("objects/a",)
    assert reports.figures(STATE, 0.5).staleness == 2


def test_the_time_of_a_pull_is_that_of_its_timeline_and_without_one_of_its_phases(time: Time) -> None:
    reports = replica(DictStore(), time)
    spans = tuple(PhaseBody(phase=name, start=0.5, end=end, busy=9, nbytes=0) for name, end in (("a", 2.0), ("b", 1.0)))
    reports.take(RUN, "a", WorkerReport(version=0, digest="0" * 32, phases={"a": 1.5, "b": 0.5}, timeline=spans))
    reports.take(RUN, "b", WorkerReport(version=0, digest="0" * 32, phases={"a": 1.5, "b": 0.5}))
    reports.take(RUN, "c", WorkerReport(version=0, digest="0" * 32))
    assert [worker.seconds for worker in reports.listed(STATE).workers] == [2.0, 2.0, 0.0]
    reports.take(RUN, "b", WorkerReport(version=0, digest="0" * 32, phases={"a": 1.5, "b": 1.0}))
    assert [worker.seconds for worker in reports.listed(STATE).workers] == [2.0, 2.5, 0.0]


def test_replicas_hear_of_each_others_workers_and_the_newest_report_counts(time: Time) -> None:
    store = DictStore()
    one, two = replica(store, time, "one"), replica(store, time, "two")
    one.take(RUN, "a", WorkerReport(version=0, digest="f" * 32))
    time.passed += 1
    two.take(RUN, "a", REPORT)
    two.take(RUN, "b", REPORT)
    for reports in (one, two):
        reports.share()
    for reports in (one, two):
        assert reports.is_stale(RUN)
        reports.gather(RUN)
        assert not reports.is_stale(RUN)
        assert [(w.worker, w.version) for w in reports.listed(STATE).workers] == [("a", 2), ("b", 2)]
    time.passed += 5
    assert one.is_stale(RUN)


def test_only_what_is_new_is_written(time: Time) -> None:
    store = CountingStore(DictStore())
    reports = replica(store, time)
    reports.share()
    assert store.ledger == []
    for number in range(50):
        reports.take(RUN, f"w{number}", REPORT)
    reports.share()
    reports.share()
    assert store.ledger == [("put", f"{RUN}/reports/one.json")]


def test_old_reports_count_no_more_and_a_replica_that_has_none_leaves_nothing(time: Time) -> None:
    store = DictStore()
    one, two = replica(store, time, "one"), replica(store, time, "two")
    one.take(RUN, "old", REPORT)
    one.share()
    time.passed += 899
    two.gather(RUN)
    assert names(two) == ["old"]
    time.passed += 2
    assert names(one) == names(two) == []
    two.gather(RUN)
    assert store.objects == {}


def test_reports_that_can_not_be_written_are_written_the_next_time(time: Time) -> None:
    class Failing(DictStore):
        down = True

        def put(self, key: str, data: object, *, if_absent: bool = False) -> None:
            if self.down:
                raise StoreUnavailable(key)
            super().put(key, data, if_absent=if_absent)  # type: ignore[arg-type]

    store = Failing()
    reports = replica(store, time)
    reports.take(RUN, "a", REPORT)
    reports.share()
    assert store.objects == {}
    store.down = False
    reports.share()
    assert set(store.objects) == {f"{RUN}/reports/one.json"}


def test_a_damaged_object_of_another_replica_is_passed_over(time: Time) -> None:
    store = DictStore()
    store.put(f"{RUN}/reports/bad.json", b'{"workers":[{"worker":"<script>"}]}')
    good = replica(store, time, "good")
    good.take(RUN, "a", REPORT)
    good.share()
    reports = replica(store, time)
    reports.gather(RUN)
    assert names(reports) == ["a"]


def test_of_too_many_workers_the_last_to_report_are_remembered(time: Time) -> None:
    store = DictStore()
    one, two = replica(store, time, "one", max_workers=10), replica(store, time, "two", max_workers=10)
    for number in range(25):
        time.passed += 1
        (one, two)[number % 2].take(RUN, f"w{number:02d}", REPORT)
    one.share()
    two.share()
    one.gather(RUN)
    assert names(one) == [f"w{number}" for number in range(15, 25)]


def test_workers_report_over_http_to_any_replica() -> None:
    store = DictStore()
    fill(store, run_of(3))
    with TestClient(app_over(store)) as one, TestClient(app_over(store)) as two:
        body = {"version": 1, "digest": "f" * 32, "phases": {"fetch": 0.5}, "nbytes": 100}
        assert one.put(f"{URL}/workers/rollout-1:0", json=body).status_code == 204
        (worker,) = one.get(f"{URL}/workers").json()["workers"]
        assert (worker["worker"], worker["staleness"], worker["digest_matches"]) == ("rollout-1:0", 1, True)
        for _ in range(400):
            if two.get(f"{URL}/workers").json()["workers"] == [worker]:
                break
        else:
            pytest.fail("the other replica never heard of it")
        assert one.put("/v1/runs/ghost/workers/w", json=body).status_code == 404
        assert one.put(f"{URL}/workers/trainer", json=body | {"operation": "push"}).status_code == 204
        assert [told["worker"] for told in one.get(f"{URL}/workers").json()["workers"]] == ["rollout-1:0"]
        assert 'pulse_phase_seconds_count{operation="push",phase="fetch"} 1.0' in one.get("/metrics").text


@pytest.mark.parametrize(
    "change",
    [
        {"version": -1},
        {"digest": "xyz"},
        {"phases": {f"p{n}": 0.0 for n in range(17)}},
        {"phases": {"x" * 65: 1.0}},
        {"phases": {"<b>": 1.0}},
        {"phases": {"apply": -1.0}},
        {"timeline": [{"phase": "fetch", "start": 0.0, "end": 1.0, "busy": -1.0, "nbytes": 0}]},
        {"timeline": [{"phase": "fetch", "start": 0.0, "end": 1.0, "busy": 1.0, "nbytes": 0}] * 17},
        {"avoided": ["objects/a"] * 65},
        {"avoided": ["x" * 2000]},
        {"operation": "peek"},
        {"more": 1},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_report_that_is_none_is_refused(change: dict[str, object]) -> None:
    store = DictStore()
    fill(store, run_of(1))
    with TestClient(app_over(store)) as client:
        body = {"version": 0, "digest": "f" * 32, **change}
        assert client.put(f"{URL}/workers/w", json=body).status_code == 422
        for name in ("-w", "w" * 129, "a b", "é"):
            answer: httpx.Response = client.put(f"{URL}/workers/{name}", json={"version": 0, "digest": "f" * 32})
            assert answer.status_code == 422
        assert client.get(f"{URL}/workers").json()["workers"] == []
