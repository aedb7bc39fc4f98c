"""Metrics say what happened, by names that can't grow without bound."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from pulse_registry.errors import NotFound
from pulse_registry.store import MemoryStore
from pulse_schemas.api import PhaseBody, WorkerReport
from pulse_server.settings import Settings
from pulse_server.telemetry.metrics import BEHIND, MAX_RUNS, Metrics, RunFigures
from pulse_server.telemetry.store_metrics import MetricsStore
from tests.unit.server.edges import bearer, client_of, one_token, small_app


def samples(metrics: Metrics) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Return every sample, read as Prometheus reads them."""
    text, media_type = metrics.render()
    assert media_type.startswith("text/plain")
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return samples(metrics).get((name, frozenset(labels.items())))


def ask(app: Any, *requests: tuple[str, str], **headers: str) -> None:
    async def main() -> None:
        async with client_of(app, headers=headers) as client:
            for method, path in requests:
                await client.request(method, path)

    asyncio.run(main())


def test_requests_are_counted_by_their_routes_template() -> None:
    token, tokens = one_token()
    app = small_app(Settings.read(root="memory://x", tokens=tokens))
    requests = [("GET", "/v1/runs/a"), ("GET", "/v1/runs/b"), ("GET", "/v1/runs/a/broken"), ("GET", "/nothing/here")]
    ask(app, *requests, **bearer(token))
    ask(app, ("GET", "/v1/runs/a"), ("POST", "/v1/runs/a/log"))
    metrics: Metrics = app.state.metrics
    counted = {
        tuple(dict(labels)[key] for key in ("method", "route", "status")): count
        for (name, labels), count in samples(metrics).items()
        if name == "pulse_requests_total"
    }
    assert counted == {
        ("GET", "/v1/runs/{run}", "200"): 2,
        ("GET", "/v1/runs/{run}", "401"): 1,
        ("GET", "/v1/runs/{run}/broken", "500"): 1,
        ("GET", "(none)", "404"): 1,
        ("POST", "(none)", "401"): 1,
    }
    assert value(metrics, "pulse_request_seconds_count", method="GET", route="/v1/runs/{run}") == 3
    assert value(metrics, "pulse_requests_pending") == 0


def test_requests_that_wait_are_counted_and_not_timed() -> None:
    token, tokens = one_token()
    app = small_app(Settings.read(root="memory://x", tokens=tokens))
    ask(app, ("GET", "/v1/runs/a?after=1&wait=5"), ("GET", "/v1/runs/a/events"), **bearer(token))
    for route in ("/v1/runs/{run}", "/v1/runs/{run}/events"):
        assert value(app.state.metrics, "pulse_requests_total", method="GET", route=route, status="200") == 1
        assert value(app.state.metrics, "pulse_request_seconds_count", method="GET", route=route) == 0


def test_methods_that_nobody_knows_make_one_label() -> None:
    token, tokens = one_token()
    app = small_app(Settings.read(root="memory://x", tokens=tokens))
    ask(app, ("BREW", "/v1/runs/a"), ("STEEP", "/v1/runs/a"), **bearer(token))
    methods = {dict(labels)["method"] for name, labels in samples(app.state.metrics) if name == "pulse_requests_total"}
    assert methods == {"other"}


def test_each_app_has_its_own() -> None:
    one, two = Metrics(), Metrics()
    one.commits.labels("ok").inc()
    assert value(one, "pulse_commits_total", outcome="ok") == 1
    assert value(two, "pulse_commits_total", outcome="ok") is None


def test_runs_are_shown_as_they_stand_and_not_more_than_the_bound() -> None:
    metrics, figures = Metrics(), [RunFigures("a", 7, 0.25, 3, 2)]
    metrics.watch_runs(lambda: figures)
    assert value(metrics, "pulse_run_version", run="a") == 7
    assert value(metrics, "pulse_log_age_seconds", run="a") == 0.25
    assert value(metrics, "pulse_workers", run="a") == 3
    assert value(metrics, "pulse_worker_staleness", run="a") == 2
    assert value(metrics, "pulse_workers_differing", run="a") == 0
    for unknown in ("pulse_run_version_age_seconds", "pulse_worker_pause_seconds"):
        assert value(metrics, unknown, run="a") is None  # not 0: nobody told
    figures[:] = [RunFigures("a", 7, 0.25, 30, 20, 61.5, (9, 5, 1, 0), 2, 0.004)]
    assert value(metrics, "pulse_run_version_age_seconds", run="a") == 61.5
    assert [value(metrics, "pulse_workers_behind", run="a", by=str(least)) for least in BEHIND] == [9, 5, 1, 0]
    assert value(metrics, "pulse_workers_differing", run="a") == 2
    assert value(metrics, "pulse_worker_pause_seconds", run="a") == 0.004
    figures[:] = [RunFigures(f"run-{number}", 0, 0, 0, 0) for number in range(MAX_RUNS + 10)]
    assert sum(name == "pulse_run_version" for name, _ in samples(metrics)) == MAX_RUNS
    assert value(metrics, "pulse_run_version", run="a") is None


def test_the_release_and_the_process_are_among_them() -> None:
    names = {name for name, _ in samples(Metrics())}
    assert {"pulse_info", "process_resident_memory_bytes", "process_open_fds", "process_cpu_seconds_total"} <= names


def test_store_calls_are_counted_by_verb_and_by_how_they_end() -> None:
    metrics = Metrics()
    store = MetricsStore(MemoryStore(uuid.uuid4().hex), metrics)
    store.put("a/b", b"12")
    assert (store.get("a/b"), store.size("a/b"), store.exists("a/b")) == (b"12", 2, True)
    assert (list(store.list("")), list(store.list("none"))) == (["a/b"], [])
    with pytest.raises(NotFound):
        store.get("a/c")
    store.delete("a/b")
    outcomes = {
        (dict(labels)["verb"], dict(labels)["outcome"]): count
        for (name, labels), count in samples(metrics).items()
        if name == "pulse_store_calls_total"
    }
    ok = {(verb, "ok"): 1.0 for verb in ("put", "get", "size", "exists", "delete")}
    assert outcomes == ok | {("list", "ok"): 2, ("get", "NotFound"): 1}
    assert value(metrics, "pulse_store_seconds_count", verb="get") == 2


def test_phases_of_reported_pulls_and_pushes_are_timed_by_what_they_are() -> None:
    metrics = Metrics()
    spans = (PhaseBody(phase="fetch", start=0.5, end=2.0, busy=9.0, nbytes=5),)
    metrics.count_report(WorkerReport(version=1, digest="f" * 32, phases={"fetch": 7.0}, timeline=spans))
    metrics.count_report(WorkerReport(version=1, digest="f" * 32, phases={"apply": 0.25}))
    metrics.count_report(
        WorkerReport(operation="push", version=1, digest="f" * 32, phases={"diff": 3.0, "made-up": 1.0})
    )
    assert value(metrics, "pulse_phase_seconds_sum", operation="pull", phase="fetch") == 1.5
    assert value(metrics, "pulse_phase_seconds_sum", operation="pull", phase="apply") == 0.25
    assert value(metrics, "pulse_phase_seconds_count", operation="push", phase="diff") == 1
    assert value(metrics, "pulse_phase_seconds_sum", operation="push", phase="other") == 1
    assert value(metrics, "pulse_phase_seconds_sum", operation="push", phase="made-up") is None
    assert value(metrics, "pulse_worker_reports_total") == 3


def test_objects_that_pulls_went_around_are_counted() -> None:
    metrics = Metrics()
    assert value(metrics, "pulse_avoided_objects_total") == 0
    for keys in ((), ("objects/a", "objects/b")):
        metrics.count_report(WorkerReport(version=1, digest="f" * 32, avoided=keys))
    assert value(metrics, "pulse_avoided_objects_total") == 2


def test_a_phase_that_ends_before_it_began_counts_as_none() -> None:
    metrics = Metrics()
    spans = (PhaseBody(phase="fetch", start=5.0, end=2.0, busy=0.0, nbytes=0),)
    metrics.count_report(WorkerReport(version=1, digest="f" * 32, timeline=spans))
    assert value(metrics, "pulse_phase_seconds_sum", operation="pull", phase="fetch") == 0
