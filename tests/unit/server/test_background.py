"""Whatever one turn of the service's own work raises, the next one comes; what ends all the same is told loudly."""

from __future__ import annotations

import asyncio
import logging
import threading
from datetime import timedelta
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient

from pulse_registry.format import keys
from pulse_registry.store import WrapperStore
from pulse_schemas.api import WorkerReport
from pulse_server.scheduling.background import Background
from pulse_server.telemetry.metrics import Metrics
from pulse_server.telemetry.probe import StoreProbe
from tests.support.apps import app_over, fill, run_of, running, store_record
from tests.support.records import RUN, DictStore
from tests.support.waiting import HANG_S, until
from tests.unit.server.edges import Clock
from tests.unit.server.test_collecting import GC, filled, versions
from tests.unit.server.test_metrics import value
from tests.unit.server.test_reports import Time, replica

DEFECTS = [ValueError("a defect"), MemoryError(), RecursionError(), KeyError("x"), OSError(5, "I/O"), OverflowError()]


def failed(metrics: Metrics, task: str) -> float:
    return value(metrics, "pulse_background_failures_total", task=task) or 0.0


@pytest.mark.parametrize("error", DEFECTS, ids=lambda error: type(error).__name__)
def test_a_turn_that_fails_is_counted_and_the_next_one_comes(error: Exception) -> None:
    metrics, turns = Metrics(), 0

    async def main() -> None:
        enough = asyncio.Event()

        async def turn() -> None:
            nonlocal turns
            turns += 1
            if turns == 5:
                enough.set()
            raise error

        background = Background(metrics)
        task = background.begin("sweep", background.repeat("sweep", 0, turn))
        async with asyncio.timeout(HANG_S):
            await enough.wait()
        assert value(metrics, "pulse_background_alive", task="sweep") == 1
        task.cancel()
        await asyncio.wait((task,))

    asyncio.run(main())
    assert failed(metrics, "sweep") >= 4


def test_the_same_failure_is_logged_once_a_minute_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    background = Background(Metrics(), clock=clock.monotonic)

    def turns(count: int, error: Exception) -> None:
        for _ in range(count):
            with background.surviving("sweep"):
                raise error

    turns(100, ValueError("one"))
    turns(100, KeyError("two"))
    clock.seconds += 61
    turns(1, ValueError("three"))
    assert [str(record.exc_info[1]) for record in caplog.records if record.exc_info] == ["one", "'two'", "three"]


def test_a_task_that_ends_all_the_same_is_told_loudly_and_shown(caplog: pytest.LogCaptureFixture) -> None:
    metrics = Metrics()

    async def main() -> None:
        async def ends() -> None:
            raise SystemError("the loop itself")

        await asyncio.wait((Background(metrics).begin("sweep", ends()),))

    asyncio.run(main())
    assert value(metrics, "pulse_background_alive", task="sweep") == 0
    assert [(record.levelno, "sweep: has ended" in record.message) for record in caplog.records] == [
        (logging.CRITICAL, True)
    ]


@pytest.mark.parametrize("error", DEFECTS, ids=lambda error: type(error).__name__)
def test_a_run_that_breaks_the_collector_keeps_it_from_no_other_run_and_from_no_other_time(error: Exception) -> None:
    class Broken(WrapperStore):
        def list(self, prefix: str, after: str | None = None) -> Any:
            if prefix.startswith(f"a/{keys.LEASES}"):
                raise error
            return super().list(prefix, after)

    store = filled(DictStore(), "a", "b")
    app = app_over(Broken(store), gc_seconds=0.01, **GC)
    with TestClient(app):
        metrics: Metrics = app.state.metrics
        until(lambda: failed(metrics, "collect garbage") >= 3)
        until(lambda: versions(store, "b") == [4, 5])
    assert (value(metrics, "pulse_gc_collections_total", outcome=type(error).__name__) or 0) >= 3


def test_a_look_that_breaks_ends_no_following_and_those_who_wait_hear_of_what_comes() -> None:
    base, broken = DictStore(), threading.Event()
    met = threading.Semaphore(0)

    class Broken(WrapperStore):
        def get(self, key: str, byte_range: Any = None, **more: Any) -> bytes:
            if broken.is_set() and "/log/" in key:
                met.release()
                raise TypeError("a defect")
            return super().get(key, byte_range, **more)

    script = fill(base, run_of(2))
    with running(app_over(Broken(base))) as served:
        url = f"{served.url}/v1/runs/{RUN}/versions/latest"
        assert httpx.get(url, timeout=HANG_S).json()["version"] == 1
        answers: list[Any] = []
        waiter = threading.Thread(
            target=lambda: answers.append(httpx.get(f"{url}?after=1&wait=600", timeout=HANG_S).json())
        )
        waiter.start()
        until(lambda: sum(feed.waiting for feed in served.service.feeds))
        broken.set()
        for _ in range(3):
            assert met.acquire(timeout=HANG_S)
        store_record(base, script.commit(layout=script.state.versions[0].layout).records[-1])
        broken.clear()
        waiter.join(HANG_S)
        assert [answer["version"] for answer in answers] == [2]
        assert failed(served.service.metrics, "follow runs") >= 2


def test_reports_of_a_run_that_breaks_their_sharing_are_shared_once_it_does_not_and_others_at_once() -> None:
    class Broken(DictStore):
        broken = True

        def put(self, key: str, data: Any, *, if_absent: bool = False) -> None:
            if self.broken and key.startswith("a/"):
                raise TypeError("a defect")
            super().put(key, data, if_absent=if_absent)

    store = Broken()
    reports = replica(store, Time())
    for run in ("a", "b"):
        reports.take(run, "w", WorkerReport(version=0, digest="0" * 32))
    with pytest.raises(TypeError):
        reports.share()
    assert [*store.objects] == ["b/reports/one.json"]
    store.broken = False
    reports.share()
    assert sorted(store.objects) == ["a/reports/one.json", "b/reports/one.json"]


def test_a_probe_goes_on_whatever_its_question_raises() -> None:
    asked = threading.Semaphore(0)

    class Broken(DictStore):
        broken = True

        def get(self, key: str, byte_range: Any = None, **more: Any) -> bytes:
            asked.release()
            if self.broken:
                raise TypeError("a defect")
            return super().get(key, byte_range, **more)

    store = Broken()
    probe = StoreProbe(store, every_s=0.001, limit_s=timedelta(hours=1).total_seconds())
    probe.start()
    try:
        for _ in range(20):  # more than may be out at a time
            assert asked.acquire(timeout=HANG_S)
        assert not probe.ready
        assert "TypeError" in str(probe.problem)
        store.broken = False
        until(lambda: probe.ready)
    finally:
        probe.stop()
