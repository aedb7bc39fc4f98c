"""What workers tell the service of themselves, so that whoever runs the training sees who is behind."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, runtime_checkable

from pulse_registry.errors import PulseError
from pulse_registry.versions import PullResult
from pulse_schemas.api import WorkerReport

_logger = logging.getLogger(__name__)


@runtime_checkable
class TakesReports(Protocol):
    """A gateway to which workers can report."""

    def report(self, run: str, worker: str, report: WorkerReport) -> None:
        """Tell which version a worker serves, and how its last pull went."""
        ...


def report_of(result: PullResult) -> WorkerReport:
    """Return what is told of a pull."""
    return WorkerReport(version=result.version, digest=result.digest, phases=dict(result.phases), nbytes=result.nbytes)


class Reporter:
    """Reports one worker's pulls in the background: no pull waits for it, and none fails because of it.

    While a report is on its way, only the newest of those that follow is kept.
    """

    def __init__(self, service: TakesReports, run: str, worker: str) -> None:
        """Report to a service as a worker of a run; no I/O yet."""
        self._service = service
        self._run = run
        self._worker = worker
        self._lock = threading.Lock()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="pulse-report")
        self._newest: PullResult | None = None

    def tell(self, result: PullResult) -> None:
        """Report a pull soon."""
        with self._lock:
            idle = self._newest is None
            self._newest = result
            if idle:
                try:
                    self._thread.submit(self._send)
                except RuntimeError:  # closed
                    self._newest = None

    def close(self) -> None:
        """Wait for what is to be told. Idempotent."""
        self._thread.shutdown(wait=True)

    def _send(self) -> None:
        with self._lock:
            result, self._newest = self._newest, None
        if result is None:
            return
        try:
            self._service.report(self._run, self._worker, report_of(result))
        except PulseError as error:
            _logger.warning("run %s: the report of worker %s did not go through: %s", self._run, self._worker, error)
