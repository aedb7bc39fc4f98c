"""What callers write is text in answers, logs and metrics: no header, no line and no sample is made of it."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from typing import Any
from urllib.parse import quote

import pytest
from prometheus_client.parser import text_string_to_metric_families

from pulse_server.telemetry.logs import JsonLines, TextLines
from pulse_server.telemetry.metrics import Metrics, RunFigures
from tests.support.apps import app_over, fill, run_of
from tests.support.records import DictStore
from tests.unit.server.calling import Called, call
from tests.unit.server.test_objects import SigningStore

HOSTILE = (
    "x\r\nX-Evil: 1",
    "x\r\n\r\n<script>alert(1)</script>",
    "x\n2026-01-01T00:00:00.000Z INFO pulse_server.auth.access: GET forged",
    "\x1b]0;owned\x07\x1b[2J",
    "\x9b2J",
    "\u202egpj\u2028\u2029",
    "\udcff",
    "é\U0001f600",
    "../../../etc/passwd",
    "a\x00b",
    '"}\nevil{run="',
)
TARGETS = (
    "/{}",
    "/assets/{}",
    "/v1/runs/{}",
    "/v1/runs/{}/versions/latest",
    "/v1/runs/math/versions/{}",
    "/v1/runs/math/log/{}",
    "/v1/runs/math/objects/{}",
    "/v1/runs/math/objects/patch/{}",
    "/v1/runs/math/layouts/{}",
    "/v1/runs/math/workers/{}",
    "/v1/runs/math/route?from={}&to=latest",
    "/v1/runs/math/log?after={}",
    "/v1/runs?limit={}&after={}",
    "/v1/runs/math/versions/latest?{}={}",
)


def encoded(text: str) -> str:
    return quote(text.encode("utf-8", "surrogateescape"), safe="")


def answers(store: DictStore, method: str, formatter: logging.Formatter) -> tuple[list[Called], list[str]]:
    """Return the answers to all targets with all texts in them, and what was logged."""
    stream, root = io.StringIO(), logging.getLogger()
    handler, level = logging.StreamHandler(stream), root.level
    handler.setFormatter(formatter)
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    app = app_over(store, access_log=True)

    async def main() -> list[Called]:
        async with app.router.lifespan_context(app):
            return [
                await call(app, method, target.format(*[encoded(text)] * 2), body=b"{}")
                for target in TARGETS
                for text in HOSTILE
            ]

    try:
        return asyncio.run(main()), stream.getvalue().split("\n")
    finally:
        root.removeHandler(handler)
        root.setLevel(level)


@pytest.mark.parametrize("store", [DictStore, SigningStore])
@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "POST", "DELETE"])
def test_nothing_that_a_caller_writes_becomes_a_header_or_a_line_of_the_log(
    store: type[DictStore], method: str
) -> None:
    holder = store()
    fill(holder, run_of(2))
    for formatter in (TextLines(), JsonLines()):
        found, lines = answers(holder, method, formatter)
        for answer in found:
            assert answer.status < 500
            for name, value in answer.headers.items():
                assert (name.isascii(), name.isprintable()) == (True, True)
                assert (value.isascii(), value.isprintable()) == (True, True)
                assert "evil" not in name.lower()
            if answer.headers.get("content-type", "").endswith("json") and answer.body:
                json.loads(answer.body)
        assert len([line for line in lines if "pulse_server.auth.access" in line]) >= len(found)
        for line in lines:
            assert (line.isascii(), line.isprintable()) == (True, True), ascii(line)


@pytest.mark.parametrize("run", HOSTILE)
def test_a_runs_name_is_one_label_of_one_sample(run: str) -> None:
    if not run.isascii():
        run = run.encode("ascii", "replace").decode()
    metrics = Metrics()
    metrics.watch_runs(lambda: [RunFigures(run, 3, 1.0, 2, 1), RunFigures("math", 3, 1.0, 2, 1)])
    text = metrics.render()[0].decode()
    found: dict[str, Any] = {
        sample.labels["run"]: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "pulse_run_version"
    }
    assert found == {run: 3.0, "math": 3.0}
