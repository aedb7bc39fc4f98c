"""Metrics for Prometheus: requests, store calls, waiters, commits, and how fresh runs and their workers are.

Each app has a registry of its own. Labels are bounded: routes are templates, and runs are the first few hundred.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.metadata import version
from itertools import islice
from typing import Final

from fastapi import FastAPI
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pulse_schemas.api import WorkerReport

MAX_RUNS: Final = 500
"""Runs that have figures of their own; the most recently used ones first."""

BEHIND: Final = (1, 4, 16, 64)
"""Of how many workers are at least so many versions behind: what a run bears depends on its algorithm."""

_REQUEST_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_STORE_BUCKETS: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_PHASE_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_PHASES: Final = frozenset(
    {
        "wait",
        "diff",
        "code",
        "hash",
        "upload",
        "commit",
        "route",
        "fetch",
        "decode",
        "verify",
        "apply",
        "stage",
        "pause",
    }
)
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"})


@dataclass(frozen=True, slots=True)
class RunFigures:
    """How a run and its workers stand.

    Attributes:
        run: its name.
        version: the newest one; -1: none.
        log_age_s: since its log was last looked at.
        workers: that reported of late.
        staleness: versions that the worker furthest behind lacks.
        version_age_s: since the newest version was committed, by its writer's clock; None: there is none.
        behind: workers that are at least as many versions behind as each of `BEHIND` says.
        differing: workers whose cells are not those of their version.
        pause_s: the longest time that the last pull of a worker kept it from serving; None: nobody told.
    """

    run: str
    version: int
    log_age_s: float
    workers: int
    staleness: int
    version_age_s: float | None = None
    behind: tuple[int, ...] = ()
    differing: int = 0
    pause_s: float | None = None


class Metrics:
    """All metrics of one app; whoever does a thing counts it here."""

    def __init__(self) -> None:
        """Make them, all at zero."""
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        Info("pulse", "The release.", registry=registry).info({"version": version("pulse-registry")})
        self.requests = Counter(
            "pulse_requests", "Requests answered.", ("method", "route", "status"), registry=registry
        )
        self.request_seconds = Histogram(
            "pulse_request_seconds",
            "Time to an answer's end, of requests that don't wait for news.",
            ("method", "route"),
            buckets=_REQUEST_BUCKETS,
            registry=registry,
        )
        self.pending = Gauge("pulse_requests_pending", "Requests under way or waiting.", registry=registry)
        self.store_calls = Counter(
            "pulse_store_calls", "Calls of the store, retries each by itself.", ("verb", "outcome"), registry=registry
        )
        self.store_seconds = Histogram(
            "pulse_store_seconds", "Time of a store call.", ("verb",), buckets=_STORE_BUCKETS, registry=registry
        )
        self.store_age = Gauge("pulse_store_age_seconds", "Since the store last answered a probe.", registry=registry)
        self.waiters = Gauge("pulse_waiters", "Requests that wait for a new version or record.", registry=registry)
        self.streams = Gauge("pulse_event_streams", "Open event streams.", registry=registry)
        self.feeds = Gauge("pulse_feeds", "Runs whose log this process follows.", registry=registry)
        self.commits = Counter(
            "pulse_commits", "Records offered, by what became of them.", ("outcome",), registry=registry
        )
        self.outer_records = Counter(
            "pulse_outer_records",
            "Records of outer rounds offered, by what became of them.",
            ("outcome",),
            registry=registry,
        )
        self.signed = Counter("pulse_signed_urls", "URLs signed, by what for.", ("use",), registry=registry)
        self.signed_bytes = Counter(
            "pulse_signed_bytes", "Size of the objects behind them.", ("use",), registry=registry
        )
        self.avoided = Counter(
            "pulse_avoided_objects", "Objects that workers reported as gone or damaged.", registry=registry
        )
        self.reports = Counter("pulse_worker_reports", "Reports that workers sent.", registry=registry)
        self.collections = Counter(
            "pulse_gc_collections",
            "Collections of a run's garbage, by how they ended.",
            ("outcome",),
            registry=registry,
        )
        self.background = Gauge(
            "pulse_background_alive",
            "1, or 0 where a task that no request asks for has ended.",
            ("task",),
            registry=registry,
        )
        self.background_failures = Counter(
            "pulse_background_failures", "Turns of such tasks that failed unforeseen.", ("task",), registry=registry
        )
        self.retired_versions = Counter("pulse_gc_retired_versions", "Versions that were retired.", registry=registry)
        self.retired_bytes = Counter("pulse_gc_retired_bytes", "Size of objects that were retired.", registry=registry)
        self.deleted_objects = Counter("pulse_gc_deleted_objects", "Objects that were deleted.", registry=registry)
        self.phase_seconds = Histogram(
            "pulse_phase_seconds",
            "From the start of a phase of a reported pull or push to its end; phases overlap.",
            ("operation", "phase"),
            buckets=_PHASE_BUCKETS,
            registry=registry,
        )
        self._labelled: dict[tuple[str, str, int], Callable[[float | None], None]] = {}

    def watch_runs(self, figures: Callable[[], Iterable[RunFigures]]) -> None:
        """Show the figures of runs, as ``figures`` gives them when somebody looks: the first `MAX_RUNS` of them."""
        self.registry.register(_RunCollector(figures))

    def count_request(self, method: str, route: str, status: int, seconds: float | None) -> None:
        """Count an answered request; ``seconds`` None: it waited for news, so that its time says nothing."""
        key = (method, route, status)
        count = self._labelled.get(key)
        if count is None:
            count = self._labelled[key] = self._counter(*key)
        count(seconds)

    def count_report(self, report: WorkerReport, *, timed: bool = True) -> None:
        """Count what a worker or a trainer reported; phases that no release has count as one.

        ``timed`` False: it tells of no pull, so that its times say nothing.
        """
        self.reports.inc()
        self.avoided.inc(len(report.avoided))
        if not timed:
            return
        phases = {phase.phase: phase.end - phase.start for phase in report.timeline} or report.phases
        for name, seconds in phases.items():
            self.phase_seconds.labels(report.operation, name if name in _PHASES else "other").observe(max(0.0, seconds))

    def render(self) -> tuple[bytes, str]:
        """Return all metrics as Prometheus reads them, and their media type."""
        return generate_latest(self.registry), CONTENT_TYPE_LATEST

    def _counter(self, method: str, route: str, status: int) -> Callable[[float | None], None]:
        """Return what counts one kind of request: to look up labels each time costs more than to count."""
        total = self.requests.labels(method, route, str(status))
        times = self.request_seconds.labels(method, route)

        def count(seconds: float | None) -> None:
            total.inc()
            if seconds is not None:
                times.observe(seconds)

        return count


class _RunCollector(Collector):
    def __init__(self, figures: Callable[[], Iterable[RunFigures]]) -> None:
        self._figures = figures

    def describe(self) -> Iterable[GaugeMetricFamily]:
        return self._families()

    def collect(self) -> Iterable[GaugeMetricFamily]:
        families = versions, ages, log_ages, workers, staleness, behind, differing, pauses = self._families()
        for one in islice(self._figures(), MAX_RUNS):
            run = (one.run,)
            versions.add_metric(run, one.version)
            log_ages.add_metric(run, one.log_age_s)
            workers.add_metric(run, one.workers)
            staleness.add_metric(run, one.staleness)
            differing.add_metric(run, one.differing)
            for least, count in zip(BEHIND, one.behind, strict=False):
                behind.add_metric((one.run, str(least)), count)
            if one.version_age_s is not None:
                ages.add_metric(run, one.version_age_s)
            if one.pause_s is not None:
                pauses.add_metric(run, one.pause_s)
        return families

    @staticmethod
    def _families() -> tuple[GaugeMetricFamily, ...]:
        def family(name: str, says: str, *labels: str) -> GaugeMetricFamily:
            return GaugeMetricFamily(name, says, labels=("run", *labels))

        return (
            family("pulse_run_version", "The newest version of a run; -1: none."),
            family("pulse_run_version_age_seconds", "Since it was committed, by its writer's clock."),
            family("pulse_log_age_seconds", "Since a run's log was last looked at."),
            family("pulse_workers", "Workers that reported to any replica of late."),
            family("pulse_worker_staleness", "Versions that the last of them lacks."),
            family("pulse_workers_behind", "Of them, those that lack at least so many.", "by"),
            family("pulse_workers_differing", "Of them, those whose cells are not their version's."),
            family("pulse_worker_pause_seconds", "The longest time that one's last pull kept it from serving."),
        )


def route_of(scope: Scope) -> str:
    """Return the template of the route that took a request; what no route took has none."""
    return getattr(scope.get("route"), "path", "(none)")


def install(app: FastAPI) -> Metrics:
    """Count the app's requests in ``app.state.metrics``, which is made here unless it is there; return it."""
    metrics: Metrics | None = getattr(app.state, "metrics", None)
    if metrics is None:
        metrics = app.state.metrics = Metrics()
    app.add_middleware(CountRequests, metrics=metrics)
    return metrics


class CountRequests:
    """The middleware: counts and times each request by its route's template, never by its path."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        """Wrap an app."""
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand a request on, and count it when it has been answered."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status, began = 500, time.perf_counter()

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        self._metrics.pending.inc()
        try:
            await self._app(scope, receive, sending)
        finally:
            self._metrics.pending.dec()
            method, route = scope["method"], route_of(scope)
            waits = b"wait=" in scope["query_string"] or route.endswith("/events")
            seconds = None if waits else time.perf_counter() - began
            self._metrics.count_request(method if method in _METHODS else "other", route, status, seconds)
