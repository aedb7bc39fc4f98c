"""A worker's reports go out in a thread of their own, which nothing ends."""

from __future__ import annotations

import logging
import threading

import pytest

from pulse_registry.service.reports import Reporter
from pulse_registry.versions import PullResult
from pulse_schemas.api import WorkerReport


class Service:
    """Takes reports, after it has failed in a way of its own."""

    def __init__(self) -> None:
        self.failed, self.taken = threading.Event(), threading.Event()

    def report(self, run: str, worker: str, report: WorkerReport) -> None:
        if not self.failed.is_set():
            self.failed.set()
            raise RuntimeError("a bug")
        self.taken.set()


def test_a_report_that_fails_in_any_way_is_logged_and_the_next_one_goes_out(caplog: pytest.LogCaptureFixture) -> None:
    service = Service()
    reporter = Reporter(service, "run", "w1")
    result = PullResult(version=0, step=0, digest="0" * 32, nbytes=1, objects=1, changed=1, phases={})
    reporter.tell(result)
    assert service.failed.wait(60)
    reporter.tell(result)
    reporter.close()
    assert service.taken.is_set()
    assert [(record.levelno, record.exc_info is not None) for record in caplog.records] == [(logging.ERROR, True)]
