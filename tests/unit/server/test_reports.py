"""Workers' reports: told with how far behind they are, shared between replicas, bounded in time and number."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import httpx
import pytest
from fastapi.testclient import TestClient

from pulse_registry.errors import StoreUnavailable
from pulse_registry.store import Store
from pulse_registry.testing import CountingStore
from pulse_schemas.api import PhaseBody, ReportFile, WorkerList, WorkerReport
from pulse_server.runs import reports as reports_module
from pulse_server.runs.reports import MAX_BYTES, Reports
from tests.support.apps import app_over, fill, run_of
from tests.support.records import RUN, DictStore
from tests.support.waiting import until

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
        ("c", 9, 0, None),
    ]
    assert (told.workers[1].reported_at, told.workers[1].phases, told.workers[1].nbytes) == (
        "2026-03-01T00:00:00.000Z",
        {"apply": 0.25},
        7,
    )
    assert told.workers[1].avoided == ("objects/a",)
    assert reports.figures(STATE, 0.5).staleness == 2


def test_figures_say_how_many_are_behind_whose_cells_differ_and_the_longest_pause(time: Time) -> None:
    reports, state = replica(DictStore(), time), run_of(70).state
    digest = state.version(69).digest
    figures = reports.figures(state, 0.5)
    assert (figures.workers, figures.behind, figures.differing, figures.pause_s) == (0, (0, 0, 0, 0), 0, None)
    for version in (69, 68, 65, 60, 5):
        told = WorkerReport(version=version, digest=state.version(version).digest, phases={"apply": version / 1000})
        reports.take(RUN, f"w{version}", told)
    reports.take(RUN, "engine", WorkerReport(version=69, digest=digest, phases={"stage": 9.0, "pause": 0.5}))
    reports.take(RUN, "wrong", WorkerReport(version=69, digest="f" * 32 if digest != "f" * 32 else "e" * 32))
    reports.take(RUN, "ahead", WorkerReport(version=90, digest="f" * 32))  # of a version that is not known here
    figures = reports.figures(state, 0.5)
    assert (figures.workers, figures.staleness) == (8, 64)
    assert figures.behind == (4, 3, 1, 1)
    assert figures.differing == 1
    assert figures.pause_s == 0.5
    latest = state.latest
    assert latest is not None
    made = datetime.fromisoformat(latest.created_at)
    assert figures.version_age_s == max(0.0, (time.now() - made).total_seconds())


def test_the_time_of_a_pull_is_that_of_its_timeline_and_without_one_of_its_phases(time: Time) -> None:
    reports = replica(DictStore(), time)
    spans = tuple(PhaseBody(phase=name, start=0.5, end=end, busy=9, nbytes=0) for name, end in (("a", 2.0), ("b", 1.0)))
    reports.take(RUN, "a", WorkerReport(version=0, digest="0" * 32, phases={"a": 1.5, "b": 0.5}, timeline=spans))
    reports.take(RUN, "b", WorkerReport(version=0, digest="0" * 32, phases={"a": 1.5, "b": 0.5}))
    reports.take(RUN, "c", WorkerReport(version=0, digest="0" * 32))
    assert [worker.seconds for worker in reports.listed(STATE).workers] == [2.0, 2.0, 0.0]
    reports.take(RUN, "b", WorkerReport(version=0, digest="0" * 32, phases={"a": 1.5, "b": 1.0}, nbytes=1))
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


def test_a_report_that_brings_nothing_says_that_the_worker_lives_and_nothing_of_its_last_pull(time: Time) -> None:
    reports = replica(DictStore(), time)
    idle = REPORT.model_copy(update={"phases": {"fetch": 0.0}, "nbytes": 0, "avoided": ()})
    assert reports.take(RUN, "a", REPORT)
    time.passed += 600
    assert not reports.take(RUN, "a", idle)
    time.passed += 600
    (told,) = reports.listed(STATE).workers
    assert (told.phases, told.nbytes, told.avoided) == (REPORT.phases, REPORT.nbytes, REPORT.avoided)
    assert told.reported_at == "2026-03-01T00:10:00.000Z"
    assert reports.take(RUN, "a", idle.model_copy(update={"version": 1}))


def test_a_sign_of_life_by_another_replica_keeps_what_the_first_one_heard(time: Time) -> None:
    store = DictStore()
    one, two = replica(store, time, "one"), replica(store, time, "two")
    one.take(RUN, "a", REPORT)
    one.share()
    two.gather(RUN)
    time.passed += 1
    two.take(RUN, "a", WorkerReport(version=2, digest="f" * 32))
    assert [(w.nbytes, w.reported_at) for w in two.listed(STATE).workers] == [(7, "2026-03-01T00:00:01.000Z")]


def test_a_worker_that_has_gone_is_listed_by_no_replica_until_it_reports_again(time: Time) -> None:
    store = DictStore()
    one, two, three = (replica(store, time, name) for name in ("one", "two", "three"))
    one.take(RUN, "a", REPORT)
    one.take(RUN, "b", REPORT)
    one.share()
    assert not two.forget(RUN, "a")  # it has not heard of it yet
    two.share()
    for reports in (one, two, three):
        reports.gather(RUN)
        assert names(reports) == ["b"]
    assert two.forget(RUN, "b")
    assert names(two) == []
    time.passed += 1
    three.take(RUN, "a", REPORT)
    three.share()
    two.share()
    for reports in (one, two, three):
        reports.gather(RUN)
        assert names(reports) == ["a"]


def test_a_worker_has_gone_although_the_clock_of_the_replica_that_heard_so_is_behind(time: Time) -> None:
    store, late = DictStore(), Time()
    one, two = replica(store, time, "one"), replica(store, late, "two")
    time.passed += 3
    one.take(RUN, "a", REPORT)
    one.share()
    two.gather(RUN)
    two.forget(RUN, "a")
    two.share()
    one.gather(RUN)
    assert names(one) == []


def test_that_a_worker_has_gone_is_remembered_as_long_as_a_report_counts_and_no_longer(time: Time) -> None:
    store = DictStore()
    one, two = replica(store, time, "one"), replica(store, time, "two")
    one.forget(RUN, "a")
    one.share()
    time.passed += 899
    two.gather(RUN)
    assert set(store.objects) == {f"{RUN}/reports/one.json"}
    time.passed += 2
    two.gather(RUN)
    assert store.objects == {}


def test_only_a_file_that_tells_of_workers_that_have_gone_is_of_the_second_format(time: Time) -> None:
    store = DictStore()
    reports = replica(store, time)
    reports.take(RUN, "a", WorkerReport(version=1, digest="f" * 32))
    reports.share()
    assert store.objects[f"{RUN}/reports/one.json"] == (
        b'{"format":"pulse-reports/1","workers":[{"worker":"a","version":1,"digest":"ffffffffffffffffffffffffffffffff",'
        b'"phases":{},"seconds":0.0,"nbytes":0,"avoided":[],"reported_at":"2026-03-01T00:00:00.000Z"}]}'
    )
    reports.forget(RUN, "a")
    reports.share()
    assert store.objects[f"{RUN}/reports/one.json"] == (
        b'{"format":"pulse-reports/2","workers":[],"gone":{"a":"2026-03-01T00:00:00.000Z"}}'
    )


def test_what_others_heard_is_due_soon_where_they_heard_of_workers_and_seldom_where_not(time: Time) -> None:
    store = DictStore()
    one, two = replica(store, time, "one"), replica(store, time, "two")
    one.take(RUN, "own", REPORT)
    assert one.is_due(RUN)
    one.gather(RUN)
    time.passed += 59
    assert not one.is_due(RUN)
    time.passed += 1
    two.take(RUN, "a", REPORT)
    two.share()
    assert one.is_due(RUN)
    one.gather(RUN)
    time.passed += 5
    assert one.is_due(RUN)
    one.gather(RUN)
    two.forget(RUN, "a")
    two.share()
    time.passed += 5
    one.gather(RUN)
    time.passed += 5
    assert one.is_due(RUN)  # it is known who is gone


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


def test_what_is_old_is_forgotten_and_leaves_nothing_in_the_bucket_or_in_memory(time: Time) -> None:
    store = DictStore()
    one, two = replica(store, time, "one"), replica(store, time, "two")
    for number in range(100):
        one.take(f"run-{number}", "a", REPORT)
    one.forget(RUN, "b")
    one.share()
    two.gather("run-0")
    time.passed += 800
    one.take("run-1", "young", REPORT)
    time.passed += 200
    for reports in (one, two):
        reports.share()
    assert [*store.objects] == ["run-1/reports/one.json"]
    assert [number for number in range(100) if one.heard(f"run-{number}")] == [1]
    time.passed = 0  # what is remembered would count again
    for number in range(100):
        assert (
            all(reports.listed(run_of(1, f"run-{number}").state).workers == () for reports in (one, two)) or number == 1
        )
    one.take(RUN, "c", REPORT)
    one.share()
    assert ReportFile.model_validate_json(store.get(f"{RUN}/reports/one.json")).gone == {}


def test_the_reports_of_a_run_are_bounded_in_bytes_in_the_bucket_and_in_memory(time: Time) -> None:
    store = DictStore()
    long = REPORT.model_copy(update={"avoided": ("objects/" + "x" * 900,) * 64})
    one, two = replica(store, time, "one"), replica(store, time, "two", max_bytes=4_600)
    for number in range(100):
        time.passed += 1
        for reports in (one, two):
            reports.take(RUN, f"{number % 2:012d}:w{number}", long)
    quiet = "f" * 12 + ":quiet"  # a token's only worker stays, however many another one makes up
    two.take(RUN, quiet, REPORT)
    two.forget(RUN, "gone")
    two.share()
    assert len(store.get(f"{RUN}/reports/two.json")) <= 4_600
    kept = {("f" * 12, "quiet"), *((f"{number % 2:012d}", f"w{number}") for number in (97, 98, 99))}
    assert {(worker.token, worker.worker) for worker in two.listed(STATE).workers} == kept
    one.share()
    reader = replica(store, time, "reader", max_bytes=4_600)
    reader.gather(RUN)
    assert len(reader.listed(STATE).workers) == 4


def test_a_list_as_it_is_answered_says_what_the_list_says_and_is_bounded_in_bytes(time: Time) -> None:
    reports = replica(DictStore(), time, max_bytes=3_000)
    assert reports.listing(STATE).body() == reports.listed(STATE).model_dump_json().encode()
    reports.take(RUN, f"{'f' * 12}:quiet", REPORT)
    reports.take(RUN, "an-admins", REPORT)
    assert reports.listing(STATE).body() == reports.listed(STATE).model_dump_json().encode()
    for number in range(100):
        time.passed += 1
        reports.take(RUN, f"{0:012d}:w{number}", REPORT)
    listed = WorkerList.model_validate_json(reports.listing(STATE).body())
    assert len(reports.listing(STATE).body()) < 4_000
    assert {(worker.token, worker.worker) for worker in listed.workers} > {("f" * 12, "quiet"), ("", "an-admins")}


def test_of_what_a_worker_avoided_the_first_keys_are_listed(time: Time) -> None:
    reports = replica(DictStore(), time)
    keys = tuple(f"objects/{number:0100d}" for number in range(64))
    reports.take(RUN, "w", REPORT.model_copy(update={"avoided": keys}))
    (worker,) = reports.listed(STATE).workers
    assert worker.avoided == keys[:9]


def test_however_many_files_a_bucket_has_of_replicas_what_is_kept_of_them_is_bounded(time: Time) -> None:
    store = DictStore()
    held = replica(store, time, max_bytes=3_000, max_workers=30)
    gone = [f"g{number}-{worker}" for number in range(50) for worker in range(20)]
    for worker in gone:
        held.take(RUN, worker, REPORT)
    time.passed += 1
    for number in range(50):
        one = replica(store, time, f"planted-{number}")
        for worker in range(20):
            one.take(RUN, f"w{number}-{worker}", REPORT)
            one.forget(RUN, f"g{number}-{worker}")
        one.share()
    held.gather(RUN)
    assert 0 < len([worker for worker in gone if not held.knows(RUN, worker)]) <= 30
    for worker in gone:
        held.drop(RUN, worker)
    assert 0 < len(names(held)) < 20


def test_two_thousand_long_reports_make_no_long_object(time: Time) -> None:
    store = DictStore()
    reports = replica(store, time)
    long = REPORT.model_copy(update={"avoided": ("objects/" + "x" * 900,) * 64})
    for number in range(2_000):
        reports.take(RUN, f"w{number}", long)
    reports.share()
    assert len(store.get(f"{RUN}/reports/one.json")) <= MAX_BYTES


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
        for needed, found in ((0, [worker]), (1, [worker]), (2, [])):
            assert one.get(f"{URL}/workers", params={"min_version": needed}).json()["workers"] == found
        assert one.get(f"{URL}/workers", params={"min_version": "latest"}).status_code == 422
        for _ in range(400):
            if two.get(f"{URL}/workers").json()["workers"] == [worker]:
                break
        else:
            pytest.fail("the other replica never heard of it")
        assert one.put("/v1/runs/ghost/workers/w", json=body).status_code == 404
        assert one.put(f"{URL}/workers/trainer", json=body | {"operation": "push"}).status_code == 204
        assert [told["worker"] for told in one.get(f"{URL}/workers").json()["workers"]] == ["rollout-1:0"]
        assert 'pulse_phase_seconds_count{operation="push",phase="fetch"} 1.0' in one.get("/metrics").text


def gauges(client: TestClient) -> dict[str, float]:
    """Return what a replica shows of the run's workers, by metric."""
    text = client.get("/metrics").text
    found = re.findall(rf'^(pulse_workers|pulse_worker_staleness){{run="{RUN}"}} (.*)$', text, re.MULTILINE)
    return {name: float(value) for name, value in found}


def test_the_figures_of_all_replicas_become_the_same_and_nobody_needs_to_ask_for_the_workers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reports_module, "_QUIET_S", 0.05)
    store = DictStore()
    fill(store, run_of(3))
    with TestClient(app_over(store)) as one, TestClient(app_over(store)) as two:

        def all_show(workers: int, staleness: int) -> None:
            shown = {"pulse_workers": workers, "pulse_worker_staleness": staleness}
            until(lambda: gauges(one) == gauges(two) == shown)

        for client in (one, two):
            assert client.get(URL).status_code == 200
        body = {"digest": "f" * 32, "phases": {"fetch": 0.5}, "nbytes": 100}
        one.put(f"{URL}/workers/a", json=body | {"version": 0})
        one.put(f"{URL}/workers/b", json=body | {"version": 1})
        all_show(2, 2)
        two.put(f"{URL}/workers/a", json=body | {"version": 2})
        all_show(2, 1)
        assert two.delete(f"{URL}/workers/b").status_code == 204
        all_show(1, 0)
        one.put(f"{URL}/workers/trainer", json=body | {"version": 0})
        all_show(2, 2)
        one.put(f"{URL}/workers/trainer", json=body | {"version": 2, "operation": "push"})
        all_show(1, 0)
        assert one.delete("/v1/runs/ghost/workers/a").status_code == 404


def test_a_run_that_is_followed_no_more_has_no_figures_that_stand_still() -> None:
    store = DictStore()
    fill(store, run_of(3))
    with TestClient(app_over(store)) as client:
        assert client.get("/v1/runs").json()["runs"][0]["run"] == RUN
        assert f'run="{RUN}"' not in client.get("/metrics").text
        client.get(URL)
        assert f'pulse_run_version{{run="{RUN}"}} 2.0' in client.get("/metrics").text


def test_pulls_that_brought_nothing_are_not_timed() -> None:
    store = DictStore()
    fill(store, run_of(3))
    with TestClient(app_over(store)) as client:
        body = {"version": 1, "digest": "f" * 32, "phases": {"fetch": 0.5}, "nbytes": 100}
        for change in ({}, {"phases": {"fetch": 0.0}, "nbytes": 0}, {"phases": {}, "nbytes": 0}):
            assert client.put(f"{URL}/workers/a", json=body | change).status_code == 204
        assert 'pulse_phase_seconds_count{operation="pull",phase="fetch"} 1.0' in client.get("/metrics").text
        (told,) = client.get(f"{URL}/workers").json()["workers"]
        assert (told["phases"], told["nbytes"]) == ({"fetch": 0.5}, 100)


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


def test_who_needs_a_version_is_told_of_the_workers_that_are_sure_to_serve_it_or_a_newer_one(time: Time) -> None:
    reports = replica(DictStore(), time)
    digests = [entry.digest for entry in STATE.versions]
    for version, digest in enumerate(digests):
        reports.take(RUN, f"w{version}", WorkerReport(version=version, digest=digest))
    reports.take(RUN, "other-cells", WorkerReport(version=2, digest="0" * 32))
    reports.take(RUN, "another-run", WorkerReport(version=9, digest=digests[2]))

    def serving(min_version: int | None) -> list[str]:
        body = reports.listing(STATE).body(min_version)
        return [worker.worker for worker in WorkerList.model_validate_json(body).workers]

    assert serving(None) == ["another-run", "other-cells", "w0", "w1", "w2"]
    assert serving(0) == ["w0", "w1", "w2"]
    assert serving(2) == ["w2"]
    assert serving(3) == []
    time.passed += 800
    reports.take(RUN, "w1", WorkerReport(version=1, digest=digests[1]))  # a sign of life
    time.passed += 200
    assert serving(1) == ["w1"]
    reports.forget(RUN, "w1")
    assert serving(1) == []
