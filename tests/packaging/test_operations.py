"""The how-to pages and deploy/ say what is so: settings, metrics, alerts, costs and the bucket's lifecycle."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from pydantic_core import PydanticUndefined

from pulse_registry.integrations.vllm import WorkerExtension
from pulse_server.errors import Unauthenticated
from pulse_server.settings import Settings
from pulse_server.telemetry.metrics import Metrics, RunFigures
from tests.support.servers import S3Bucket

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs" / "how-to").glob("*.md"))
DOCUMENT = "\n".join(page.read_text() for page in PAGES)
# What engines are asked by is no metric.
CALLS = {name for name in dir(WorkerExtension) if name.startswith("pulse_")}


def costs() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "deploy" / "costs.py"))


def settings_table() -> str:
    rows = ["| variable | default | meaning |", "| --- | --- | --- |"]
    for name, field in Settings.model_fields.items():
        value = field.default
        default = "needed" if value is PydanticUndefined else "none" if value is None else _shown(value)
        rows.append(f"| `PULSE_{name.upper()}` | {default} | {field.description or ''} |".replace("  |", " |"))
    return "\n".join(rows)


def _shown(value: object) -> str:
    return f"`{str(value).lower()}`" if isinstance(value, bool) else f"`{value}`" if value != "" else "none"


def metric_names() -> set[str]:
    """Every name that a scrape holds, of a service that has seen each kind of thing once."""
    metrics = Metrics()
    metrics.watch_runs(lambda: [RunFigures("math", 3, 0.1, 2, 1)])
    families = text_string_to_metric_families(metrics.render()[0].decode())
    names = set()
    for family in families:
        suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}.get(family.type, ("",))
        names |= {family.name + suffix for suffix in suffixes}
    return names


def rules() -> list[dict[str, Any]]:
    document = yaml.safe_load((ROOT / "deploy" / "alerts.yml").read_text())
    return [rule for group in document["groups"] for rule in group["rules"]]


def test_an_expired_token_has_the_status_that_the_service_answers() -> None:
    rows = [row for row in DOCUMENT.splitlines() if row.startswith("| Workers get") and "expired" in row]
    assert [int(row.split()[3]) for row in rows] == [Unauthenticated.status.value]


def test_the_table_of_settings_is_that_of_the_code() -> None:
    assert settings_table() in DOCUMENT


def test_the_table_of_costs_is_what_the_script_prints() -> None:
    script = costs()
    assert script["table"](script["Prices"]()) in DOCUMENT


def test_the_figures_in_the_text_are_the_script_s_own() -> None:
    script = costs()
    fleet = script["Fleet"](1)
    assert f"{fleet.versions:,.0f} patches of {fleet.patch_bytes / 1e6} MB" in DOCUMENT
    assert f"{fleet.keyframes:.0f} keyframes of {fleet.keyframe_bytes / 1e9} GB" in DOCUMENT
    assert f"{fleet.stored_gb / 1000:.1f} TB in a month" in DOCUMENT
    assert f"{fleet.pulled_gb / 1000:.2f} TB" in DOCUMENT
    lines = script["lines"](fleet, script["Prices"]())
    copy, traffic = (
        lines["a copy of the bucket in their region, instead"],
        lines["traffic, if all workers are in one other region"],
    )
    assert 6 < copy / traffic < 7
    assert "the traffic of six to seven workers" in DOCUMENT


def test_costs_add_up_by_hand() -> None:
    script = costs()
    fleet, prices = script["Fleet"](1_000), script["Prices"]()
    lines = script["lines"](fleet, prices)
    # 30 days of two looks a second, and 43,200 records, by 1,000 workers, at 0.4 dollars a million.
    assert lines["without the service: workers look into the bucket"] == pytest.approx(
        1_000 * (30 * 86_400 * 2 + 43_200) * 0.4e-6
    )
    # 81 MB in ranges of 16 MiB are five GETs.
    assert lines["GETs of patches"] == pytest.approx(1_000 * 43_200 * 5 * 0.4e-6)
    assert script["internet"](100, prices) == 0
    assert script["internet"](10_000, prices) == pytest.approx(9_900 * 0.09)
    assert script["internet"](200_000, prices) == pytest.approx(
        9_900 * 0.09 + 40_000 * 0.085 + 100_000 * 0.07 + 50_000 * 0.05
    )


def test_the_document_names_every_metric_and_no_other() -> None:
    documented = set(re.findall(r"`(pulse_(?!registry)[a-z_]+)`", DOCUMENT)) - CALLS
    names = {name for name in metric_names() if name.startswith("pulse_") and not name.endswith("_created")}
    assert documented == {re.sub(r"_(bucket|sum|count)$", "", name) for name in names} - {"pulse_info"}


def test_every_alert_has_its_advice_and_its_severity() -> None:
    advised = set(re.findall(r"^\| `(Pulse[A-Za-z]+)` \|", DOCUMENT, re.M))
    assert {rule["alert"] for rule in rules()} == advised
    assert all(rule["labels"]["severity"] in ("page", "ticket") and rule["annotations"]["summary"] for rule in rules())


def test_the_lifecycle_is_one_that_a_store_takes_and_expires_no_current_object(moto_bucket: S3Bucket) -> None:
    lifecycle = json.loads((ROOT / "deploy" / "lifecycle.json").read_text())
    assert not [rule for rule in lifecycle["Rules"] if "Expiration" in rule or "Transitions" in rule]
    bucket = moto_bucket.server.new_bucket()
    client = moto_bucket.server.client()
    client.put_bucket_lifecycle_configuration(Bucket=bucket.name, LifecycleConfiguration=lifecycle)
    stored = client.get_bucket_lifecycle_configuration(Bucket=bucket.name)["Rules"]
    assert {rule["ID"] for rule in stored} == {rule["ID"] for rule in lifecycle["Rules"]}


def test_files_that_the_document_names_are_there() -> None:
    links = {
        page.parent / link.partition("#")[0]
        for page in PAGES
        for link in re.findall(r"\]\(((?:\.\./)*[a-zA-Z][^):]*)\)", page.read_text())
    }
    assert links
    assert [link for link in links if not link.resolve().exists()] == []
