"""Reports of pulls and pushes to the service.

A worker's report counts for some time only. While there is nothing to pull, it is repeated; when the worker is closed,
it is taken back.
"""

from __future__ import annotations

import logging
from dataclasses import asdict
from enum import Enum
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

from pulse_registry.errors import PulseError
from pulse_registry.process.background_thread import BackgroundThread
from pulse_registry.results import PullResult, PushResult

if TYPE_CHECKING:
    from pulse_schemas.api import WorkerReport

_RENEW_S: Final = 240.0
"""How long after a worker's report it is repeated: a service counts one for 15 minutes, unless it is told otherwise."""

_logger = logging.getLogger(__name__)


class _Leave(Enum):
    """What a worker tells that is none any more."""

    LEFT = 1


@runtime_checkable
class TakesReports(Protocol):
    """A gateway to which workers can report."""

    def report(self, run: str, worker: str, report: WorkerReport) -> None:
        """Tell which version a worker serves, and how its last pull went."""
        ...

    def deregister(self, run: str, worker: str) -> None:
        """Tell that a worker is none any more."""
        ...


def rank_name(name: str, rank: int, ranks: int) -> str:
    """Return what one of the ranks that pull together is called: they have one name, and each reports by itself.

    The page of the service takes it apart again.
    """
    return f"{name}.rank-{rank}-of-{ranks}"


def report_of(result: PullResult | PushResult) -> WorkerReport:
    """Return what is told of a pull or a push; of a pull that found nothing to do, that the worker lives."""
    if _is_idle(result):
        return _life(result)
    from pulse_schemas.api import MAX_AVOIDED, PhaseBody, WorkerReport  # made by pydantic, which a bucket's user spares

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

    def __init__(self, service: TakesReports, run: str, worker: str, *, renew_s: float = _RENEW_S) -> None:
        """Report to a service as a worker of a run, again after ``renew_s`` seconds without a pull; no I/O yet."""
        self._service = service
        self._run = run
        self._worker = worker
        self._renew_s = renew_s
        self._thread = BackgroundThread("pulse-report", self._work)
        self._newest: PullResult | PushResult | WorkerReport | _Leave | None = None
        self._serves: PullResult | WorkerReport | None = (
            None  # what was told last; None: nothing, or that it is a trainer
        )
        self._failed = False  # that did not go through

    def tell(self, result: PullResult | PushResult | WorkerReport) -> None:
        """Report a pull or a push soon, or what a worker says of itself.

        Not a pull that found nothing to do, where its version was told before.
        """
        with self._thread.changed:
            last = self._newest or (None if self._failed else self._serves)
            known = None if last is None or isinstance(last, _Leave) else last.version
            if not self._thread.stopping and not (_is_idle(result) and known == result.version):
                self._tell(result)

    def leave(self) -> None:
        """Take back soon what was told of a worker: of the ranks of a trainer, one reports for all."""
        with self._thread.changed:
            if not self._thread.stopping and (self._newest is not None or self._serves is not None):
                self._tell(_Leave.LEFT)

    def stop(self) -> None:
        """Repeat no report any more, and return at once. Idempotent."""
        self._thread.stop()

    def close(self) -> None:
        """Wait for what is to be told, and take back what was told of a worker. Idempotent."""
        self._thread.close()
        if self._serves is None or self._failed:  # the service is away: it hears no more, and forgets the worker
            return
        self._serves = None
        self._take_back()

    def _tell(self, news: PullResult | PushResult | WorkerReport | _Leave) -> None:
        self._newest = news
        try:
            self._thread.wake()
        except RuntimeError as error:  # no more threads for this process
            self._newest = None
            self._warn(error)

    def _take_back(self) -> None:
        try:
            self._service.deregister(self._run, self._worker)
        except PulseError as error:
            _logger.info("run %s: worker %s stays listed until its report expires: %s", self._run, self._worker, error)

    def _work(self) -> None:
        while (news := self._next()) is not None:
            try:
                if isinstance(news, _Leave):
                    self._take_back()
                    continue
                report = report_of(news) if isinstance(news, (PullResult, PushResult)) else news
                self._service.report(self._run, self._worker, report)
                self._failed = False
            except PulseError as error:
                self._failed = True
                self._warn(error)
            except Exception:
                # The thread's outermost edge: nobody looks at what a report ended with.
                self._failed = True
                _logger.exception("run %s: the report of worker %s could not be made", self._run, self._worker)

    def _next(self) -> PullResult | PushResult | WorkerReport | _Leave | None:
        """Wait for what is to be told next, and return it; None: nothing more."""
        with self._thread.changed:
            renew_s = None if self._serves is None else self._renew_s
            stopping = self._thread.rest(renew_s, lambda: self._newest is not None)
            result, self._newest = self._newest, None
            if result is not None:
                self._serves = None if isinstance(result, PushResult | _Leave) else result
                return result
            return None if stopping or self._serves is None else _life(self._serves)

    def _warn(self, error: Exception) -> None:
        _logger.warning("run %s: the report of worker %s did not go through: %s", self._run, self._worker, error)


def _is_idle(result: PullResult | PushResult | WorkerReport) -> bool:
    return isinstance(result, PullResult) and not result.objects and not result.changed


def _life(result: PullResult | PushResult | WorkerReport) -> WorkerReport:
    from pulse_schemas.api import WorkerReport

    return WorkerReport(version=result.version, digest=result.digest)
