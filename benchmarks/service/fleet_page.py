"""The page's table of runs in headless Chromium: what it costs to draw 200 rows, and to take 20 changes a second.

Times are processor time of the page's main thread, so that other programs do not count; of a wide and of a narrow page.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict, dataclass
from typing import Any

from playwright.sync_api import CDPSession, Page, sync_playwright

from benchmarks.results import Row
from benchmarks.service.suite import Say, document
from pulse_registry.log import utc_now
from pulse_registry.log.clock import timestamp
from pulse_schemas.api import WorkerReport
from pulse_server.auth.access import ANYBODY
from tests.support.apps import LAYOUT, Running, app_over, fill, run_of, running, store_record
from tests.support.records import DictStore, Script

_WAIT_MS = 120_000
_ROWS = "[...document.querySelectorAll('.runs tr')]"
_PHASES = {"route": 0.01, "fetch": 0.8, "decode": 0.7, "verify": 0.7, "apply": 0.02}


@dataclass(frozen=True, slots=True)
class Size:
    """Runs in the table, workers of each, changes a second, for how many seconds."""

    runs: int = 200
    workers: int = 5
    changes: float = 20.0
    seconds: float = 15.0


@dataclass(frozen=True, slots=True)
class Seen:
    """What a page took.

    Attributes:
        draw_ms: from its opening until all rows are there.
        share: of a core, while changes come; ``idle_share``: while none do.
        heap_mib: of its scripts, at the end.
        pushed: versions, all of which the table has shown, or later ones.
    """

    draw_ms: float
    idle_share: float
    share: float
    heap_mib: float
    pushed: int


def run_page(size: Size, chromium: str, say: Say = print) -> dict[str, Any]:
    """Measure with the browser at a path, and return the result document."""
    found: dict[str, Seen] = {}
    with sync_playwright() as playwright:
        args = ["--no-sandbox", "--disable-dev-shm-usage"]
        browser = playwright.chromium.launch(executable_path=chromium, args=args, timeout=_WAIT_MS)
        for name, width in (("wide", 1280), ("narrow", 400)):
            say(f"{size.runs} runs on a page of {width} px")
            store = DictStore()
            scripts = [fill(store, run_of(3, f"run-{number:04d}")) for number in range(size.runs)]
            with running(app_over(store, report_seconds=600)) as served:
                for script in scripts:
                    _report(served, script, size.workers)
                page = browser.new_page(viewport={"width": width, "height": 900})
                page.set_default_timeout(_WAIT_MS)
                found[name] = _seen(page, served, store, scripts, size)
                page.close()
        browser.close()
    details = {name: {key: round(value, 3) for key, value in asdict(seen).items()} for name, seen in found.items()}
    return document("The table of runs in Chromium", rows(size, found), details, size)


def rows(size: Size, found: dict[str, Seen]) -> list[Row]:
    """Lay the figures beside their limits."""
    out = []
    for name, seen in found.items():
        of = f"{size.runs} runs, {name}"
        out += [
            Row(f"{name}_draw", f"{of}: from opening to all rows", seen.draw_ms, "ms", "at most", 1000),
            Row(f"{name}_idle", f"{of}: of a core, no changes", 100 * seen.idle_share, "%"),
            Row(f"{name}_share", f"{of}: of a core, {size.changes:g} changes/s", 100 * seen.share, "%", "at most", 25),
            Row(f"{name}_heap", f"{of}: memory of scripts", seen.heap_mib, "MiB", "at most", 64),
            Row(f"{name}_pushed", f"{of}: versions that came", seen.pushed, ""),
        ]
    return out


def _seen(page: Page, served: Running, store: DictStore, scripts: list[Script], size: Size) -> Seen:
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    page.goto(f"{served.url}/")
    _until(page, f"count => {_ROWS}.length === count", size.runs)
    drawn_s = _metric(session, "TaskDuration")
    page.wait_for_timeout(1000 * size.seconds / 3)
    idle_s = _metric(session, "TaskDuration")
    began, pushed = time.perf_counter(), 0
    while time.perf_counter() - began < size.seconds:
        script = scripts[pushed * 7 % len(scripts)]
        changes = {"layout": LAYOUT.id, "created_at": timestamp(utc_now())}
        store_record(store, script.commit(**changes).records[-1])
        _report(served, script, 1)
        pushed += 1
        page.wait_for_timeout(max(0.0, 1000 * (began + pushed / size.changes - time.perf_counter())))
    took = time.perf_counter() - began
    busy_s = _metric(session, "TaskDuration") - idle_s
    newest = {script.run: str(len(script.state.versions) - 1) for script in scripts}
    _until(page, f"all => {_ROWS}.every(row => row.cells[2].textContent === all[row.dataset.key])", newest)
    return Seen(
        draw_ms=1e3 * drawn_s,
        idle_share=(idle_s - drawn_s) / (size.seconds / 3),
        share=busy_s / took,
        heap_mib=_metric(session, "JSHeapUsedSize") / 2**20,
        pushed=pushed,
    )


def _until(page: Page, script: str, argument: object) -> None:
    """Wait until a script is true of the page; its policy lets none be made of text within it."""
    until = time.perf_counter() + _WAIT_MS / 1000
    while not page.evaluate(script, argument):
        if time.perf_counter() > until:
            raise RuntimeError(f"the page has not come so far: {script}")
        page.wait_for_timeout(100)


def _metric(session: CDPSession, name: str) -> float:
    found = session.send("Performance.getMetrics")["metrics"]
    return float(next(metric["value"] for metric in found if metric["name"] == name))


def _report(served: Running, script: Script, workers: int) -> None:
    version = len(script.state.versions) - 1
    told = WorkerReport(version=version, digest="f" * 32, phases=_PHASES, nbytes=81_000_000)

    async def take() -> None:
        feed = await served.service.feeds.open(script.run)
        for number in range(workers):
            served.service.workers.take(feed, ANYBODY, f"rollout-{number:04d}", told)

    asyncio.run_coroutine_threadsafe(take(), served.loop).result()
