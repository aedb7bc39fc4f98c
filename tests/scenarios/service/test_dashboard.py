"""What dashboard and alerts ask for is there: in what a real service says of itself after each kind of traffic."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

import pulse_registry
from pulse_registry import errors
from pulse_registry.client.store import ServiceStore
from pulse_registry.options import ComputeOptions
from pulse_schemas.api import WorkerReport
from tests.support.promql import groups, parsed, selectors
from tests.support.servers import S3Bucket
from tests.support.service import Service, serving
from tests.support.waiting import HANG_S, until

ROOT = Path(__file__).resolve().parents[3]
DASHBOARD = ROOT / "deploy" / "grafana" / "dashboards" / "pulse.json"
TARGET = {"job", "instance", "copy"}
"""Labels that a target has: `copy` is given in prometheus.yml."""
REFERENCE = ComputeOptions(backend="reference")

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None and not os.environ.get("PULSE_REQUIRE_PROMTOOL"),
    reason="promtool, of Prometheus, is not here",
)

Exposed = dict[str, dict[str, set[str]]]
"""Of each metric its labels, and the values that they have."""


def dashboard() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return document


def panels() -> list[dict[str, Any]]:
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def rules() -> list[dict[str, Any]]:
    document = yaml.safe_load((ROOT / "deploy" / "alerts.yml").read_text())
    return [rule for group in document["groups"] for rule in group["rules"]]


EXPRESSIONS = {
    **{
        f"{one['id']} {one['title']} {target['refId']}": target["expr"] for one in panels() for target in one["targets"]
    },
    **{rule["alert"]: rule["expr"] for rule in rules()},
}


def traffic(service: Service) -> None:
    """Do once what is counted: pushes, pulls, reports of any operation, streams, outer records, what is refused."""
    weights = {"w": np.zeros(64, np.uint16)}
    store = ServiceStore(service.url, service.token)
    bearer = {"Authorization": f"Bearer {service.token}"}
    with pulse_registry.open(
        service.url, run="math", token=service.token, name="trainer", compute=REFERENCE
    ) as trainer:
        for step in range(3):
            weights["w"][step] = 1
            trainer.push(step, weights)
    with pulse_registry.open(service.url, run="math", token=service.token, name="w0") as worker:
        pulled = worker.pull(1, into={"w": np.zeros(64, np.uint16)})
        until(lambda: store.workers("math"))
        waits = WorkerReport(operation="push", version=2, digest=pulled.digest, phases={"wait": 1.0, "commit": 0.1})
        store.report("math", "trainer", waits)
        paused = WorkerReport(version=1, digest=pulled.digest, phases={"stage": 1.0, "pause": 0.01}, nbytes=1)
        store.report("math", "engine", paused)
        with httpx.Client(base_url=service.url, headers=bearer, timeout=HANG_S) as client:
            with client.stream("GET", "/v1/runs/math/events") as events:
                next(events.iter_bytes())
            for path in ("/v1/runs/math/log", "/v1/runs/math/outer/log"):
                assert client.post(path, content=b"{}").status_code == 400
            assert client.get("/v1/runs/none").status_code == 404
    store.close()


@pytest.fixture(scope="module")
def scraped(moto_bucket: S3Bucket, tmp_path_factory: pytest.TempPathFactory) -> str:
    """What the service says after traffic, over a bucket: there it signs URLs."""
    settings = {"PULSE_OPEN_METRICS": "true", "PULSE_GC_SECONDS": "0.05", **moto_bucket.server.environment}
    root = moto_bucket.server.new_bucket().url("root")
    with serving(root, tmp_path_factory.mktemp("watched"), settings) as service:
        traffic(service)
        found: list[str] = []

        def scrape() -> bool:
            found[:] = [httpx.get(f"{service.url}/metrics", timeout=HANG_S).text]
            return {"pulse_gc_collections_total", "pulse_worker_pause_seconds"} <= series(found[0]).keys()

        until(scrape)
        return found[0]


@pytest.fixture(scope="module")
def exposed(scraped: str) -> Exposed:
    """The same, by metric."""
    return series(scraped)


def series(text: str) -> Exposed:
    found: Exposed = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = found.setdefault(sample.name, {})
            for label, value in sample.labels.items():
                labels.setdefault(label, set()).add(value)
    return found


def is_known(pattern: str, values: set[str]) -> bool:
    """Tell whether a value, an error's name or a status fits each of a pattern's alternatives."""
    names = {name for name, kind in vars(errors).items() if isinstance(kind, type)}
    names |= {str(status.value) for status in HTTPStatus}
    return all(any(re.fullmatch(one, value) for value in values | names) for one in pattern.split("|"))


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_every_expression_asks_for_what_the_service_exposes(exposed: Exposed, name: str) -> None:
    tree = parsed(EXPRESSIONS[name])
    assert selectors(tree)
    for one in selectors(tree):
        if one.name == "up":  # Prometheus' own
            continue
        assert one.name in exposed
        for label, pattern in one.matchers:
            if label in TARGET:
                continue
            assert label in exposed[one.name], f"{one.name} has no label {label}"
            assert is_known(pattern, exposed[one.name][label]), f"no {label} of {one.name} is {pattern}"
    for labels, beneath in groups(tree):
        for one in beneath:
            assert labels <= exposed.get(one.name, {}).keys() | TARGET, one.name


def test_every_series_of_ours_is_on_the_dashboard(exposed: Exposed) -> None:
    shown = {one.name for panel in panels() for target in panel["targets"] for one in selectors(parsed(target["expr"]))}
    ours = {re.sub(r"_(bucket|sum|count)$", "", name) for name in exposed if name.startswith("pulse_")}
    ours = {name for name in ours if not name.endswith("_created")} - {"pulse_info", "pulse_signed_urls_total"}
    assert ours == {re.sub(r"_(bucket|sum|count)$", "", name) for name in shown if name.startswith("pulse_")}


@pytest.mark.parametrize(
    "expression", ["sum(rate(pulse_workers))", "rate(pulse_commits_total[5m]", "histogram_quantile(0.9)", "a{b=c}"]
)
def test_what_prometheus_would_refuse_is_refused(expression: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parsed(expression)


def test_panels_have_places_of_their_own_and_say_what_they_show() -> None:
    document, cells = dashboard(), set[tuple[int, int]]()
    assert len({panel["id"] for panel in document["panels"]}) == len(document["panels"])
    for panel in document["panels"]:
        at = panel["gridPos"]
        taken = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert max(x for x, _ in taken) < 24
        assert not taken & cells, panel["title"]
        cells |= taken
    for panel in panels():
        assert panel["description"].endswith("."), panel["title"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}


def test_legends_and_variables_name_labels_that_are_there(exposed: Exposed) -> None:
    for panel in panels():
        for target in panel["targets"]:
            named = set(re.findall(r"\{\{([a-z_]+)\}\}", target["legendFormat"]))
            kept = set().union(*(labels for labels, _ in groups(parsed(target["expr"]))), TARGET)
            assert named <= kept, target["expr"]
    variables = {one["name"]: one for one in dashboard()["templating"]["list"]}
    used = set(re.findall(r"\$\{?([a-z]+)\}?", DASHBOARD.read_text())) - {"rate"}
    assert used == variables.keys()
    asked = re.fullmatch(r"label_values\(([a-z_]+), ([a-z]+)\)", variables["run"]["query"]["query"])
    assert asked is not None
    assert asked[2] in exposed[asked[1]]


def thresholds(rule: str) -> set[float]:
    (expression,) = [one["expr"] for one in rules() if one["alert"] == rule]
    return {float(number) for number in re.findall(r"> ([0-9.]+)", expression)}


def test_the_lines_on_the_dashboard_are_those_of_the_alerts() -> None:
    lines = {
        panel["title"]: step["value"]
        for panel in panels()
        for step in panel["fieldConfig"]["defaults"].get("thresholds", {"steps": []})["steps"]
        if panel["type"] == "timeseries" and step["value"] is not None
    }
    assert lines
    alerts = {
        "Age of the newest version": "PulseNoNewVersion",
        "Furthest behind": "PulseStaleWorkers",
        "Longest pause": "PulseLongPauses",
        "Copies behind": "PulseMirrorBehind",
        "Time of a request": "PulseSlow",
        "Age of the logs": "PulseLogStuck",
        "Open files": "PulseFilesRunOut",
    }
    assert lines.keys() == alerts.keys()
    for title, line in lines.items():
        assert line in thresholds(alerts[title]), title


def test_every_alert_has_a_test_of_its_own_in_which_it_comes() -> None:
    document = yaml.safe_load((ROOT / "deploy" / "alerts.test.yml").read_text())
    coming = {one["alertname"] for test in document["tests"] for one in test["alert_rule_test"] if "exp_alerts" in one}
    assert coming == {rule["alert"] for rule in rules()}


@needs_promtool
@pytest.mark.parametrize(
    "command", [("check", "config", "prometheus.yml"), ("test", "rules", "alerts.test.yml")], ids=" ".join
)
def test_rules_are_valid_and_alerts_come_when_they_must_and_not_otherwise(command: tuple[str, ...]) -> None:
    done = subprocess.run(["promtool", *command], cwd=ROOT / "deploy", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def evaluated(given: Mapping[str, str], wanted: Mapping[str, int], folder: Path) -> None:
    """Let Prometheus itself evaluate expressions, ten minutes after series began; values are as promtool has them."""
    cases = [
        {"expr": expr, "eval_time": "10m", "exp_samples": [{"labels": "{}", "value": value}]}
        for expr, value in wanted.items()
    ]
    series = [{"series": name, "values": values} for name, values in given.items()]
    test = {"interval": "15s", "input_series": series, "promql_expr_test": cases}
    (folder / "test.yml").write_text(yaml.safe_dump({"rule_files": [], "tests": [test]}))
    command = ["promtool", "test", "rules", "test.yml"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_every_panel_shows_something_of_a_service_at_home_and_one_over_a_copy(scraped: str, tmp_path: Path) -> None:
    given = {}
    for family in text_string_to_metric_families(scraped):
        for sample in family.samples:
            if math.isfinite(sample.value):
                for target in ({"instance": "home"}, {"instance": "far", "copy": "eu"}):
                    labels = {**sample.labels, "job": "pulse", **target}
                    given[named(sample.name, labels)] = f"{sample.value}+1x40"
    for instance in ("home", "far"):
        given[named("up", {"job": "pulse", "instance": instance})] = "1x40"
    failed = {"instance": "home", "verb": "get", "outcome": "StoreUnavailable"}
    given[named("pulse_store_calls_total", failed)] = "0+1x40"
    exprs = [target["expr"] for panel in panels() for target in panel["targets"]]
    shown = [expr.replace("$__rate_interval", "1m").replace("$run", ".*") for expr in exprs]
    evaluated(given, {f"count({expr}) > bool 0": 1 for expr in shown}, tmp_path)


@needs_promtool
def test_workers_are_counted_once_for_all_replicas_and_those_at_copies_as_well(tmp_path: Path) -> None:
    given = {}
    for instance, copy, count in (("one", "", 3), ("two", "", 3), ("three", "eu", 2)):
        labels = {"run": "a", "instance": instance} | ({"copy": copy} if copy else {})
        for name in ("pulse_workers", "pulse_workers_differing"):
            given[named(name, labels)] = f"{count}x40"
        for least in ("1", "4", "16", "64"):
            given[named("pulse_workers_behind", labels | {"by": least})] = f"{count}x40"
    exprs = {
        target["expr"].replace("$run", ".*")
        for panel in panels()
        for target in panel["targets"]
        if selectors(parsed(target["expr"]))[0].name.startswith("pulse_workers")
    }
    assert len(exprs) >= 6
    evaluated(given, {f"sum({expr})": 5 for expr in exprs}, tmp_path)


def named(name: str, labels: Mapping[str, str]) -> str:
    """Return a series as Prometheus writes it."""
    return name + "{" + ",".join(f"{label}={json.dumps(value)}" for label, value in labels.items()) + "}"
