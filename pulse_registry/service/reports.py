"""What workers and trainers tell the service of their pulls and pushes, so that whoever runs the training sees who is
behind, and where the time goes.
"""

from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Protocol, runtime_checkable

from pulse_registry.errors import PulseError
from pulse_registry.versions import PullResult, PushResult
from pulse_schemas.api import MAX_AVOIDED, PhaseBody, WorkerReport

_logger = logging.getLogger(__name__)


@runtime_checkable
class TakesReports(Protocol):
    """A gateway to which workers can report."""

    def report(self, run: str, worker: str, report: WorkerReport) -> None:
        """Tell which version a worker serves, and how its last pull went."""
        ...


def report_of(result: PullResult | PushResult) -> WorkerReport:
    """Return what is told of a pull or a push."""
    return WorkerReport(
        operation="pull" if isinstance(result, PullResult) else "push",
        version=result.version,
        digest=result.digest,
        phases=dict(result.phases),
        timeline=tuple(PhaseBody(**asdict(phase)) for phase in result.timeline),
        nbytes=result.nbytes,
        avoided=result.avoided[:MAX_AVOIDED] if isinstance(result, PullResult) else (),
    )


class Reporter:
    """Reports one worker's pulls, or a trainer's pushes, in the background: none waits for it or fails because of it.

    While a report is on its way, only the newest of those that follow is kept.
    """

    def __init__(self, service: TakesReports, run: str, worker: str) -> None:
        """Report to a service as a worker of a run; no I/O yet."""
        self._service = service
        self._run = run
        self._worker = worker
        self._lock = threading.Lock()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="pulse-report")
        self._newest: PullResult | PushResult | None = None

    def tell(self, result: PullResult | PushResult) -> None:
        """Report a pull or a push soon."""
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
        except Exception:
            # The thread's outermost edge: nobody looks at what a report ended with.
            _logger.exception("run %s: the report of worker %s could not be made", self._run, self._worker)
