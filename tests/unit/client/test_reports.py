"""A worker's reports go out in a thread of their own, which nothing ends."""

from __future__ import annotations

import logging
import threading

import pytest

from pulse_registry.client.reports import Reporter, report_of
from pulse_registry.errors import StoreUnavailable
from pulse_registry.results import PullResult, PushResult
from pulse_schemas.api import WorkerReport
from tests.support.waiting import HANG_S

PULLED = PullResult(version=0, step=0, digest="0" * 32, nbytes=1, objects=1, changed=1, phases={"fetch": 0.5})
IDLE = PullResult(version=0, step=0, digest="0" * 32, nbytes=0, objects=0, changed=0, phases={"fetch": 0.0})
PUSHED = PushResult(
    version=1, step=1, kind="patch", changed=1, cells=2, nbytes=1, full_nbytes=4, digest="1" * 32, phases={}
)
LIFE = WorkerReport(version=0, digest="0" * 32)


class Told:
    """Takes all reports, and says what it was told."""

    def __init__(self, enough: int = 1) -> None:
        self.all: list[WorkerReport | str] = []
        self.enough = threading.Event()
        self._enough = enough

    def report(self, run: str, worker: str, report: WorkerReport) -> None:
        self.all.append(report)
        if len(self.all) >= self._enough:
            self.enough.set()

    def deregister(self, run: str, worker: str) -> None:
        self.all.append(f"{run}/{worker} is gone")


class Service(Told):
    """Takes reports, after it has failed in a way of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.failed, self.taken = threading.Event(), threading.Event()

    def report(self, run: str, worker: str, report: WorkerReport) -> None:
        if not self.failed.is_set():
            self.failed.set()
            raise RuntimeError("a bug")
        self.taken.set()


def test_a_report_that_fails_in_any_way_is_logged_and_the_next_one_goes_out(caplog: pytest.LogCaptureFixture) -> None:
    service = Service()
    reporter = Reporter(service, "run", "w1")
    reporter.tell(PULLED)
    assert service.failed.wait(HANG_S)
    reporter.tell(PULLED)
    reporter.close()
    assert service.taken.is_set()
    assert [(record.levelno, record.exc_info is not None) for record in caplog.records] == [(logging.ERROR, True)]


def test_a_worker_that_is_closed_is_none_any_more_and_says_so_once() -> None:
    service = Told()
    reporter = Reporter(service, "run", "w1")
    reporter.tell(PULLED)
    reporter.close()
    reporter.close()
    assert service.all == [report_of(PULLED), "run/w1 is gone"]


def test_what_has_not_pulled_and_a_trainer_have_nothing_to_take_back() -> None:
    for told in ((), (PULLED, PUSHED)):
        service = Told(enough=len(told))
        reporter = Reporter(service, "run", "w1")
        for result in told:
            reporter.tell(result)
        reporter.close()
        assert "run/w1 is gone" not in service.all


def test_a_rank_for_which_another_one_reports_takes_back_what_it_told_and_closes_without_a_word() -> None:
    service = Told()
    reporter = Reporter(service, "run", "w1")
    reporter.leave()  # nothing was told
    reporter.tell(PULLED)
    assert service.enough.wait(HANG_S)
    reporter.leave()
    reporter.close()
    reporter.close()
    assert service.all == [report_of(PULLED), "run/w1 is gone"]


def test_a_rank_that_pulls_again_is_a_worker_again() -> None:
    service = Told()
    reporter = Reporter(service, "run", "w1")
    reporter.tell(PULLED)
    assert service.enough.wait(HANG_S)
    reporter.leave()
    reporter.tell(IDLE)
    reporter.close()
    assert service.all[0] == report_of(PULLED)
    assert service.all[-2:] == [LIFE, "run/w1 is gone"]


def test_a_pull_that_finds_nothing_to_do_is_told_only_where_its_version_was_not() -> None:
    service = Told()
    reporter = Reporter(service, "run", "w1")
    reporter.tell(IDLE)
    assert service.enough.wait(HANG_S)
    for _ in range(100):
        reporter.tell(IDLE)
    reporter.close()
    assert service.all == [LIFE, "run/w1 is gone"]


def test_a_pull_that_finds_nothing_to_do_takes_no_place_of_one_that_waits_to_be_told() -> None:
    class Slow(Told):
        go = threading.Event()

        def report(self, run: str, worker: str, report: WorkerReport) -> None:
            assert self.go.wait(HANG_S)
            super().report(run, worker, report)

    service = Slow()
    reporter = Reporter(service, "run", "w1")
    newer = PullResult(version=1, step=1, digest="1" * 32, nbytes=1, objects=1, changed=1, phases={"fetch": 0.5})
    idle = PullResult(version=1, step=1, digest="1" * 32, nbytes=0, objects=0, changed=0, phases={"fetch": 0.0})
    for result in (PULLED, newer, idle):
        reporter.tell(result)
    service.go.set()
    reporter.close()
    assert service.all[-2:] == [report_of(newer), "run/w1 is gone"]


def test_a_worker_that_has_nothing_to_pull_tells_again_and_again_that_it_lives() -> None:
    service = Told(enough=4)
    reporter = Reporter(service, "run", "w1", renew_s=0.001)
    reporter.tell(PULLED)
    assert service.enough.wait(HANG_S)
    reporter.close()
    assert service.all[0] == report_of(PULLED)
    assert set(map(str, service.all[1:-1])) == {str(LIFE)}


def test_where_the_service_is_away_closing_tells_it_nothing_more() -> None:
    class Away(Told):
        def report(self, run: str, worker: str, report: WorkerReport) -> None:
            raise StoreUnavailable("away")

    service = Away()
    reporter = Reporter(service, "run", "w1")
    reporter.tell(PULLED)
    reporter.close()
    assert service.all == []


def test_an_old_service_that_knows_no_leaving_ends_no_close() -> None:
    class Old(Told):
        def deregister(self, run: str, worker: str) -> None:
            raise StoreUnavailable("405")

    service = Old()
    with_one = Reporter(service, "run", "w1")
    with_one.tell(PULLED)
    with_one.close()
    assert service.all == [report_of(PULLED)]
