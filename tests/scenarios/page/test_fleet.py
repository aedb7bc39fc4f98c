"""The table of all runs in the browser: what changes shows by itself, in rows that stay where somebody reads them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Locator, Page, Route, expect

from pulse_registry.store import open_store
from tests.scenarios.page.conftest import OpenTab
from tests.scenarios.page.site import Site
from tests.support.apps import LAYOUT, fill, run_of, store_record
from tests.support.records import Script
from tests.support.waiting import HANG_S

pytestmark = pytest.mark.slow

MANY = 200


class Crowd:
    """A service with many runs of a few versions; ``scripts`` push into them."""

    def __init__(self) -> None:
        self.site = Site()
        self.site.start()
        self.store = open_store(self.site.root)
        self.store.put("backups/no-run", b"")  # a folder of something else
        self.scripts: dict[str, Script] = {}
        for number in range(MANY):
            script = run_of(0, f"run-{number:03d}")
            for _ in range(3):
                script.commit(layout=LAYOUT.id)
            self.scripts[script.run] = fill(self.store, script)

    def push(self, run: str, **changes: Any) -> None:
        store_record(self.store, self.scripts[run].commit(layout=LAYOUT.id, **changes).records[-1])

    def tag(self, run: str, name: str, version: int) -> None:
        store_record(self.store, self.scripts[run].tag(name, version).records[-1])

    def report(self, run: str, worker: str, version: int, **more: Any) -> None:
        body = {"version": version, "digest": "f" * 32, "phases": {"apply": 0.25}, "nbytes": 9, **more}
        url = f"{self.site.url}v1/runs/{run}/workers/{worker}"
        httpx.put(url, json=body, timeout=HANG_S).raise_for_status()


@pytest.fixture(scope="module")
def crowd() -> Iterator[Crowd]:
    crowd = Crowd()
    yield crowd
    crowd.site.stop()


def rows(page: Page) -> Locator:
    return page.locator(".runs tr")


def row(page: Page, run: str) -> Locator:
    return page.locator(f".runs tr[data-key='{run}']")


def open_all(crowd: Crowd, open_tab: OpenTab, **context: Any) -> Page:
    page = open_tab(crowd.site, **context)
    expect(rows(page)).to_have_count(MANY)
    expect(page.locator(".runs-sub")).to_have_text("200 runs.")
    return page


def test_what_changes_shows_by_itself(crowd: Crowd, open_tab: OpenTab) -> None:
    page = open_all(crowd, open_tab)
    expect(page.locator("#connection")).to_have_text("Live")
    cells = row(page, "run-007").get_by_role("cell")
    expect(cells.nth(1)).to_have_text("2")
    crowd.push("run-007", metadata={"note": "learning rate halved"})
    expect(cells.nth(1)).to_have_text("3")
    expect(cells.nth(7)).to_have_text("3: learning rate halved")
    crowd.tag("run-007", "best", 2)
    expect(cells.nth(7)).to_have_text("best 23: learning rate halved")
    crowd.report("run-007", "a", 3)
    crowd.report("run-007", "b", 1)
    expect(cells.nth(4)).to_have_text("1")
    expect(cells.nth(5)).to_have_text("2")
    expect(cells.nth(6)).to_have_text("250 ms")
    crowd.report("run-007", "b", 1, digest="0" * 32, avoided=["objects/x"])
    expect(cells.nth(0).locator(".warning")).to_have_text(["1 digest differs", "objects avoided"])


def test_a_change_touches_its_own_row_alone(crowd: Crowd, open_tab: OpenTab) -> None:
    page = open_all(crowd, open_tab)
    row(page, "run-100").hover()  # somebody reads: nothing moves
    page.evaluate("""() => {
        window.touched = new Set(); window.moved = 0;
        const body = document.querySelector(".runs");
        new MutationObserver(list => { for (const change of list) {
            if (change.target === body) { window.moved += change.type === "childList"; continue; }
            const node = change.target.closest ? change.target : change.target.parentElement;
            if (!node.closest("time")) window.touched.add(node.closest("tr").dataset.key);
        } }).observe(body, { subtree: true, childList: true, characterData: true });
    }""")
    for number in range(20, 25):
        crowd.push(f"run-{number:03d}")
    for number in range(20, 25):
        expect(row(page, f"run-{number:03d}").get_by_role("cell").nth(1)).to_have_text("3")
    assert page.evaluate("[...window.touched].sort()") == [f"run-{number:03d}" for number in range(20, 25)]
    assert page.evaluate("window.moved") == 0


def test_runs_are_filtered_by_words_of_what_is_said_of_them(crowd: Crowd, open_tab: OpenTab) -> None:
    crowd.tag("run-150", "eval-passed", 1)
    crowd.push("run-151", metadata={"note": "Entropy falls"})
    crowd.report("run-152", "c", 2, digest="0" * 32)
    page = open_all(crowd, open_tab)
    field = page.get_by_label("Filter")
    for text, found in (
        ("run-15 PASSED", ["run-150"]),
        ("entropy", ["run-151"]),
        ("run-152 digest", ["run-152"]),
        ("run-19", [f"run-19{number}" for number in range(10)]),
    ):
        field.fill(text)
        expect(page.locator(".runs th")).to_have_text(found)
        expect(page.locator(".runs-sub")).to_have_text(f"{len(found)} of 200 runs.")
    field.fill("no such run")
    expect(page.locator(".runs")).to_have_text("No run matches.")
    field.fill("")
    expect(rows(page)).to_have_count(MANY)


def test_runs_are_sorted_by_what_is_clicked_and_warnings_come_first(crowd: Crowd, open_tab: OpenTab) -> None:
    crowd.report("run-180", "d", 2, digest="0" * 32)
    crowd.report("run-181", "e", 0, phases={"apply": 9.5})
    page = open_all(crowd, open_tab)
    expect(page.locator(".runs tr:nth-child(-n + 8) th", has_text="run-180")).to_have_count(1)
    page.get_by_role("button", name="Longest pause").click()
    expect(page.locator(".runs th").first).to_have_text("run-181")
    name = page.get_by_role("columnheader", name="Run", exact=True)
    page.locator("[data-sort=run]").click()
    expect(name).to_have_attribute("aria-sort", "ascending")
    expect(page.locator(".runs th").first).to_have_text("run-000")
    page.locator("[data-sort=run]").click()
    expect(name).to_have_attribute("aria-sort", "descending")
    expect(page.locator(".runs th").first).to_have_text("run-199")


def test_the_keyboard_filters_sorts_and_opens_a_run_and_keeps_its_place(crowd: Crowd, open_tab: OpenTab) -> None:
    page = open_all(crowd, open_tab)
    page.get_by_label("Filter").focus()
    page.keyboard.type("run-03")
    expect(rows(page)).to_have_count(10)
    page.keyboard.press("Tab")  # the table, which scrolls
    for _ in range(8):
        page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.dataset.sort") == "pause"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "run-030"
    page.evaluate("document.querySelector('[data-sort=run]').click()")
    page.evaluate(
        "document.querySelector('[data-sort=run]').click()"
    )  # its row moves to the end, and the focus with it
    expect(page.locator(".runs th").first).to_have_text("run-039")
    assert page.evaluate("document.activeElement.textContent") == "run-030"
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("run-030")
    expect(page.locator(".timeline")).to_have_attribute("data-drawn", "2")


def test_the_table_goes_on_where_it_was_when_the_service_comes_back(open_tab: OpenTab) -> None:
    site = Site()
    try:
        site.start()
        site.push("math-7b", 1)
        page = open_tab(site)
        asked: list[str | None] = []
        page.on("request", lambda sent: "/v1/events" in sent.url and asked.append(sent.headers.get("last-event-id")))
        expect(page.locator(".runs th")).to_have_text("math-7b")
        site.stop()
        expect(page.locator("#connection")).to_have_text(re.compile("^Not connected; next try in"))
        expect(page.locator(".runs th")).to_have_text("math-7b")  # what was known stays
        site.push("math-7b", 2)
        site.push("code-7b", 1)
        site.start()
        expect(page.locator(".runs th")).to_have_text(["code-7b", "math-7b"])
        expect(row(page, "math-7b").get_by_role("cell").nth(1)).to_have_text("1")
        assert asked[-1] is not None
    finally:
        site.stop()


@pytest.mark.parametrize("width", [1280, 400])
def test_rows_with_all_that_is_said_are_within_the_accessibility_rules(
    crowd: Crowd, open_tab: OpenTab, width: int
) -> None:
    crowd.tag("run-160", "best", 2)
    crowd.push("run-160", metadata={"note": "entropy falls"})
    crowd.report("run-160", "a", 0, digest="0" * 32, avoided=["objects/x"])
    page = open_all(crowd, open_tab, viewport={"width": width, "height": 900})
    page.get_by_label("Filter").fill("run-160")
    expect(row(page, "run-160").locator(".warning")).to_have_text(["1 digest differs", "objects avoided"])
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        found = Axe().run(page).response
        assert [(rule["id"], [node["html"] for node in rule["nodes"]]) for rule in found["violations"]] == [], scheme
    assert page.evaluate("document.documentElement.scrollWidth") == width


def test_headings_stay_in_sight_of_whoever_is_far_down_and_hide_no_focus(crowd: Crowd, open_tab: OpenTab) -> None:
    page = open_all(crowd, open_tab)
    heading, last = page.locator("[data-sort=run]"), page.locator(".runs a").last
    last.focus()
    expect(last).to_be_in_viewport()
    expect(heading).to_be_in_viewport()
    for _ in range(40):
        page.keyboard.press("Shift+Tab")
    places = page.evaluate("""() => [document.activeElement, document.querySelector("thead th")]
        .map(node => node.getBoundingClientRect()).map(box => [box.top, box.bottom])""")
    assert places[0][0] >= places[1][1], "the heading lies over the link that has the focus"


def test_a_long_tag_is_told_within_its_cell(crowd: Crowd, open_tab: OpenTab) -> None:
    crowd.tag("run-170", "t" * 64, 2)
    page = open_all(crowd, open_tab)
    expect(row(page, "run-170").locator(".tag")).to_have_text(f"{'t' * 64} 2")
    assert page.evaluate("(table => table.scrollWidth - table.clientWidth)(document.querySelector('.table'))") <= 0


def test_a_store_that_does_not_answer_is_told_at_first(crowd: Crowd, open_tab: OpenTab) -> None:
    page = open_all(crowd, open_tab)
    problem = {"type": "x", "title": "x", "status": 503, "detail": "Call again.", "instance": "x"}

    def refuse(route: Route) -> None:
        route.fulfill(status=503, json=problem)

    page.route("**/v1/runs?*", refuse)
    page.reload()
    expect(page.get_by_role("heading", level=1)).to_have_text("The store does not answer")


def test_a_run_that_ended_long_ago_is_no_warning_and_a_quiet_one_is(crowd: Crowd, open_tab: OpenTab) -> None:
    page = open_all(crowd, open_tab)
    now = page.evaluate("Date.now()")
    lines = []
    for run, seconds in (("fresh", 5), ("quiet", 600), ("over", 100_000), ("moved", 700)):
        at = page.evaluate("at => new Date(at).toISOString()", now - 1000 * seconds)
        latest = {"version": 9, "step": 9, "kind": "patch", "nbytes": 1, "created_at": at}
        workers = {"workers": 0, "differing": 0, "oldest": None, "newest": None, "at_newest": 0}
        summary = {"usual_s": 10.0, "usual_nbytes": 1, "workers": workers, "pause_s": None, "avoided": 0}
        summary |= {"tags": {}, "tagged": 0, "note": None}
        lines.append({"run": run, "seq": 9, "versions": 10, "latest": latest, "full_nbytes": 9, "summary": summary})
        lines[-1] |= {"stale": False, "home": "s3://eu" if run == "moved" else None}
    lines.append({"run": "broken", "seq": -1, "versions": 0, "latest": None, "full_nbytes": None, "summary": None})
    lines[-1]["stale"] = True
    told = json.dumps({"whole": True, "total": 5, "more": True, "runs": lines})
    stream = f"event: runs\nid: a-1\ndata: {told}\n\n"
    page.route("**/v1/events", lambda route: route.fulfill(content_type="text/event-stream", body=stream))
    page.reload()
    expect(page.locator(".runs th")).to_have_text(["broken", "moved", "quiet", "fresh", "over"])
    expect(row(page, "broken").get_by_role("cell").first).to_have_text("log can't be read")
    expect(row(page, "quiet").get_by_role("cell").first).to_have_text("quiet")
    expect(row(page, "moved").get_by_role("cell").first).to_have_text("moved")
    expect(row(page, "moved").get_by_title("lives at s3://eu")).to_have_text("moved")
    expect(row(page, "over").get_by_role("cell").first).to_have_text("")
    expect(page.locator(".runs-sub")).to_have_text("The first 5 runs, by name.")
