"""The view of a run: what it shows of a real run, and how it follows what happens."""

from __future__ import annotations

import json
import re
import time

import pytest
from playwright.sync_api import Page, expect

from pulse_registry.client.reports import rank_name
from pulse_registry.outer.log import OuterLog
from pulse_registry.store import PrefixStore, open_store
from pulse_schemas.outer import JoinRecord
from tests.scenarios.page.conftest import OpenTab, run_place
from tests.scenarios.page.site import CELLS, Site
from tests.support.outer_rounds import make_rounds


def tile(page: Page, name: str) -> str:
    return f"[data-tile={name}] .value"


def drawn(page: Page, version: int) -> None:
    """Wait until the plots show a version."""
    expect(page.locator(".timeline")).to_have_attribute("data-drawn", str(version))


@pytest.mark.slow
def test_the_list_shows_each_run_with_its_newest_version(site: Site, open_tab: OpenTab) -> None:
    page = open_tab(site)
    row = page.get_by_role("row").filter(has_text="math-7b")
    expect(row.get_by_role("rowheader")).to_have_text("math-7b")
    expect(row.get_by_role("cell").nth(1)).to_have_text("3")
    expect(row.get_by_role("cell").nth(2)).to_have_text(re.compile("just now|ago$"))
    expect(row.get_by_role("cell").nth(3)).to_have_text(re.compile(r"^\d+ B$"))
    expect(row.get_by_role("cell").nth(4)).to_have_text("0")
    expect(row.get_by_role("cell").nth(5)).to_have_text("1")
    row.get_by_role("link").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("math-7b")
    expect(page).to_have_title("math-7b · Pulse Registry")
    page.go_back()
    expect(page.get_by_role("heading", level=1)).to_have_text("Runs")


@pytest.mark.slow
def test_a_run_shows_its_figures_plots_chain_and_workers(site: Site, open_tab: OpenTab) -> None:
    page = open_tab(site, run_place("math-7b"))
    expect(page.locator("#connection")).to_have_text("Live")
    expect(page.locator(".verdict")).to_have_text(re.compile("^(Publishing|Quiet)"))
    expect(page.locator(tile(page, "version"))).to_have_text("3")
    expect(page.locator("[data-tile=version] .note")).to_have_text("step 30")
    expect(page.locator(tile(page, "changed"))).to_have_text("1.05 %")
    expect(page.locator("[data-tile=changed] .note")).to_have_text(f"43 of {CELLS / 1000:.2f} k cells")
    expect(page.locator("[data-tile=bytes] .note")).to_have_text(re.compile(r"^1/[\d.]+ of all weights, 8.19 kB$"))
    expect(page.locator(tile(page, "workers"))).to_have_text("1 of 1")
    drawn(page, 3)
    assert page.locator(".timeline .scatterlayer .trace").count() == 5
    assert page.locator(".chain .scatterlayer .trace").count() >= 2
    expect(page.locator(".chain-sub")).to_have_text(re.compile("^1 keyframe, 3 patches and 0 merged: "))
    worker = page.get_by_role("row").filter(has_text="worker-0")
    expect(worker.get_by_role("cell").nth(0)).to_have_text("3")
    expect(worker.get_by_role("cell").nth(1)).to_have_text("0")
    expect(worker.get_by_role("cell").nth(2)).to_have_text("OK")
    expect(worker.get_by_role("cell").last).to_have_text("fetch 410 ms · apply 4.0 ms")
    versions = page.get_by_role("region", name="Newest versions").get_by_role("rowheader")
    expect(versions).to_have_text(["3", "2", "1", "0"])


@pytest.mark.slow
def test_a_push_and_a_report_are_shown_as_they_come(site: Site, open_tab: OpenTab) -> None:
    site.push("live", 1)
    site.push("live", 2)
    site.report("live", "near", 1, fetch=0.2)
    page = open_tab(site, run_place("live"))
    expect(page.locator("#connection")).to_have_text("Live")
    near = page.get_by_role("row").filter(has_text="near")
    expect(near.get_by_role("cell").nth(1)).to_have_text("0")
    drawn(page, 1)

    site.push("live", 3, reward=0.625)
    expect(page.locator(tile(page, "version"))).to_have_text("2")
    expect(page.locator("#news")).to_have_text("Version 2 was pushed.")
    expect(near.get_by_role("cell").nth(1)).to_have_text("1")
    expect(page.locator(tile(page, "workers"))).to_have_text("0 of 1")
    newest = page.get_by_role("region", name="Newest versions").get_by_role("row").nth(1)
    expect(newest.get_by_role("cell").last).to_have_text("reward 0.625")
    expect(page.locator(".chain-sub")).to_have_text(re.compile("2 patches"))
    drawn(page, 2)

    site.report("live", "far", 0, digest="f" * 32)
    expect(page.get_by_role("row").filter(has_text="far").get_by_role("cell").nth(2)).to_have_text("Differs")
    expect(page.locator("[data-tile=workers] .note")).to_have_text("1 with a digest that differs")
    site.report("live", "near", 2)
    expect(page.locator(tile(page, "workers"))).to_have_text("1 of 2")
    site.forget("live", "far")
    expect(page.locator(tile(page, "workers"))).to_have_text("1 of 1")
    expect(page.get_by_role("row").filter(has_text="far")).to_have_count(0)


@pytest.mark.slow
def test_news_moves_neither_the_page_nor_the_window_that_was_chosen(site: Site, open_tab: OpenTab) -> None:
    for step in range(25):
        site.push("still", step)
    page = open_tab(site, run_place("still"), viewport={"width": 900, "height": 600})
    drawn(page, 24)
    page.get_by_role("button", name="Zoom in").click()
    page.get_by_role("button", name="Older").click()
    shown = page.locator(".shown")
    expect(shown).to_have_text(re.compile("^[0-9]+ to 1[0-9] of 24$"))
    chosen = (shown.text_content() or "").removesuffix(" of 24")
    page.evaluate("window.scrollTo(0, 500)")
    page.locator("[data-sort=worker]").evaluate("node => node.focus({preventScroll: true})")
    site.push("still", 25)
    drawn(page, 25)
    expect(shown).to_have_text(f"{chosen} of 25")
    assert page.evaluate("window.scrollY") == 500
    assert page.evaluate("document.activeElement.dataset.sort") == "worker"
    page.get_by_role("button", name="Follow newest").click()
    expect(shown).to_have_text("0 to 25 of 25")


@pytest.mark.slow
def test_drawing_over_a_plot_zooms_all_plots(site: Site, open_tab: OpenTab) -> None:
    for step in range(40):
        site.push("wide", step)
    page = open_tab(site, run_place("wide"), viewport={"width": 1280, "height": 1600})
    drawn(page, 39)
    box = page.locator(".timeline").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 0.4 * box["width"], box["y"] + 90)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.8 * box["width"], box["y"] + 90, steps=4)
    page.mouse.up()
    shown = page.locator(".shown")
    expect(shown).to_have_text(re.compile(r"^1\d to (2|3)\d of 39$"))
    first, last = re.findall(r"\d+", shown.text_content() or "")[:2]
    for plot in (".timeline", ".chain"):
        page.wait_for_function(
            "([plot, first, last]) => { const [a, b] = document.querySelector(plot).layout.xaxis.range;"
            " return a === first - 0.5 && b === last + 0.5 }",
            arg=[plot, int(first), int(last)],
        )


@pytest.mark.slow
def test_the_page_goes_on_where_it_was_when_the_service_comes_back(open_tab: OpenTab) -> None:
    site = Site()
    try:
        site.start()
        site.push("math-7b", 1)
        page = open_tab(site, run_place("math-7b"))
        asked: list[str | None] = []
        page.on("request", lambda request: "/events" in request.url and asked.append(request.headers["last-event-id"]))
        expect(page.locator("#connection")).to_have_text("Live")
        site.push("math-7b", 2)
        expect(page.locator(tile(page, "version"))).to_have_text("1")
        site.stop()
        expect(page.locator("#connection")).to_have_text(re.compile("^Not connected; next try in"))
        expect(page.locator(tile(page, "version"))).to_have_text("1")  # what was known stays
        site.push("math-7b", 3)
        site.start()
        expect(page.locator("#connection")).to_have_text("Live")
        expect(page.locator(tile(page, "version"))).to_have_text("2")
        assert asked[-1] == "1"
    finally:
        site.stop()


@pytest.mark.slow
def test_a_run_of_thousands_of_versions_is_drawn_at_a_readable_scale(site: Site, open_tab: OpenTab) -> None:
    page = open_tab(site)
    many = 3000
    ladder = [
        {"base": base, "target": base + span, "nbytes": 1000 * span}
        for span in (2**power for power in range(12))
        for base in range(0, many - span, span)
    ]
    totals = {"keyframes": 1, "patches": len(ladder), "merged": 0, "longest": 2048, "nbytes": 8192}
    chain = {"run": "math-7b", "keyframes": [{"version": 0, "nbytes": 8192}], "patches": ladder, "next": None}
    chain |= {"totals": totals}
    page.route("**/chain?*", lambda route: route.fulfill(json=chain))
    newest = {"step": 0, "kind": "patch", "changed": 40, "cells": CELLS, "nbytes": 90, "digest": "0" * 32}
    newest |= {"created_at": "2030-01-01T00:00:00.000Z", "layout": "0" * 64, "seq": 1, "metadata": {}}
    versions = [{**newest, "version": number} for number in range(many)]

    def answer(after: int) -> dict[str, object]:
        found = versions[after + 1 : after + 1001]
        more = found[-1]["version"] if after + 1001 < many else None
        return {"run": "math-7b", "versions": found, "next": more, "age_s": 0.0}

    def after_of(url: str) -> int:
        match = re.search(r"after=(\d+)", url)
        return int(match[1]) if match else -1

    page.route("**/versions?*", lambda route: route.fulfill(json=answer(after_of(route.request.url))))
    body = {"run": "math-7b", "seq": 1, "epoch": 1, "versions": many, "latest": versions[-1], "full_nbytes": 8192}
    page.route("**/runs/math-7b", lambda route: route.fulfill(json=body))
    page.goto(f"{site.url}{run_place('math-7b')}")
    drawn(page, many - 1)
    expect(page.locator(".shown")).to_have_text("2,700 to 2,999 of 2,999")
    zoom_out = page.get_by_role("button", name="Zoom out")
    while zoom_out.get_attribute("aria-disabled") == "false":
        before = page.locator(".shown").text_content() or ""
        zoom_out.click()
        expect(page.locator(".shown")).not_to_have_text(before)
    expect(page.locator(".shown")).to_have_text("0 to 2,999 of 2,999")
    expect(page.locator(".chain-sub")).to_have_text(re.compile(r"Spans under \d+ versions are too narrow"))
    page.wait_for_function("document.querySelector('.timeline').data[0].x.length === 3000")  # older ones were fetched
    assert page.locator(".chain .scatterlayer path").count() < 1500


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_plots_take_the_colours_of_the_scheme(site: Site, open_tab: OpenTab, scheme: str) -> None:
    page = open_tab(site, run_place("math-7b"), color_scheme=scheme)
    drawn(page, 3)
    luminance = "(c) => { const [r, g, b] = c.match(/\\d+/g).map(Number); return (r + g + b) / 765 }"
    for selector, style in (("body", "color"), (".timeline .main-svg", "background-color")):
        colour = page.locator(selector).first.evaluate(f"(n) => getComputedStyle(n).getPropertyValue('{style}')")
        is_bright = page.evaluate(f"({luminance})({colour!r})") > 0.5
        assert is_bright == ((scheme == "dark") == (style == "color"))


@pytest.mark.slow
def test_the_scheme_may_change_while_the_page_is_open(site: Site, open_tab: OpenTab) -> None:
    page = open_tab(site, run_place("math-7b"), color_scheme="light")
    drawn(page, 3)
    before = page.evaluate("document.querySelector('.timeline').layout.paper_bgcolor")
    page.emulate_media(color_scheme="dark")
    page.wait_for_function("before => document.querySelector('.timeline').layout.paper_bgcolor !== before", arg=before)


@pytest.mark.slow
def test_ages_are_told_by_the_services_clock(site: Site, open_tab: OpenTab) -> None:
    page = open_tab(site)
    page.clock.install(time=time.time() - 7200)  # the reader's clock is two hours slow
    site.push("clock", 1)
    page.goto(f"{site.url}{run_place('clock')}")
    expect(page.locator(tile(page, "age"))).to_have_text(re.compile(r"^(just now|\d+ s ago)$"))


@pytest.mark.slow
def test_workers_of_one_name_are_told_apart_by_their_tokens(site: Site, open_tab: OpenTab) -> None:
    told = {"digest": "f" * 32, "phases": {}, "nbytes": 0, "reported_at": "2026-03-01T00:00:00.000Z", "staleness": 0}
    names = [("host-3", "1" * 12, 3), ("host-3", "2" * 12, 1), ("host-4", "2" * 12, 2)]
    workers = [told | {"worker": w, "token": t, "version": v, "digest_matches": True} for w, t, v in names]
    event = f"event: workers\ndata: {json.dumps({'run': 'math-7b', 'workers': workers})}\n\n"
    page = open_tab(site)
    page.route("**/events*", lambda route: route.fulfill(content_type="text/event-stream", body=event))
    page.goto(f"{site.url}{run_place('math-7b')}")
    shown = page.locator("tbody.workers").get_by_role("rowheader")
    expect(shown).to_have_text(["host-3 (token 222222222222)", "host-4", "host-3 (token 111111111111)"])


@pytest.mark.slow
def test_of_many_workers_those_furthest_behind_are_shown_and_all_are_counted(site: Site, open_tab: OpenTab) -> None:
    for step in range(3):
        site.push("fleet", step)
    digest = site.digest("fleet")
    for number in range(60):
        site.report("fleet", f"worker-{number:02d}", 0 if number in (3, 55) else 1, digest)
    page = open_tab(site, run_place("fleet"))
    rows = page.locator(".workers tr th")
    sub = page.locator(".workers-sub")
    expect(sub).to_have_text("The 25 furthest behind of 60.")
    expect(rows).to_have_count(25)
    expect(rows.nth(0)).to_have_text("worker-03")
    expect(rows.nth(1)).to_have_text("worker-55")
    expect(page.locator(tile(page, "workers"))).to_have_text("0 of 60")
    for number in range(60):
        if number != 3:
            site.report("fleet", f"worker-{number:02d}", 2, digest)
    expect(page.locator(tile(page, "workers"))).to_have_text("59 of 60")
    expect(rows.nth(0)).to_have_text("worker-03")
    for number in range(20):
        site.forget("fleet", f"worker-{number:02d}")
    expect(sub).to_have_text("The 25 furthest behind of 40.")
    expect(page.locator(tile(page, "workers"))).to_have_text("40 of 40")


@pytest.mark.slow
def test_ranks_that_pull_together_are_shown_as_ranks_of_one_worker_in_their_order(
    site: Site, open_tab: OpenTab
) -> None:
    told = {"digest": "f" * 32, "phases": {}, "nbytes": 0, "reported_at": "2026-03-01T00:00:00.000Z", "staleness": 0}
    told |= {"token": "", "version": 3, "digest_matches": True}
    names = [*(rank_name("engine", rank, 12) for rank in (11, 2, 0)), "engine-2", "x.rank-1", rank_name("e", 0, 12)]
    event = (
        f"event: workers\ndata: {json.dumps({'run': 'math-7b', 'workers': [told | {'worker': w} for w in names]})}\n\n"
    )
    page = open_tab(site)
    page.route("**/events*", lambda route: route.fulfill(content_type="text/event-stream", body=event))
    page.goto(f"{site.url}{run_place('math-7b')}")
    page.locator("[data-sort=worker]").click()
    engine = [f"engine, rank {rank} of 12" for rank in (0, 2, 11)]
    shown = page.locator("tbody.workers").get_by_role("rowheader")
    expect(shown).to_have_text(["e, rank 0 of 12", *engine, "engine-2", "x.rank-1"])


@pytest.mark.slow
def test_a_page_that_has_missed_too_much_begins_anew_with_the_newest_versions(site: Site, open_tab: OpenTab) -> None:
    page = open_tab(site)
    newest = {"step": 0, "kind": "patch", "changed": 40, "cells": CELLS, "nbytes": 90, "digest": "0" * 32}
    newest |= {"created_at": "2030-01-01T00:00:00.000Z", "layout": "0" * 64, "seq": 1, "metadata": {}}
    events = [("missed", 4999, {"first": 10, "last": 4999})]
    events += [("version", number, {**newest, "version": number}) for number in (5000, 5001)]
    stream = "".join(f"event: {kind}\nid: {last}\ndata: {json.dumps(data)}\n\n" for kind, last, data in events)
    page.route("**/events*", lambda route: route.fulfill(content_type="text/event-stream", body=stream))
    page.goto(f"{site.url}{run_place('math-7b')}")
    expect(page.locator(tile(page, "version"))).to_have_text("5,001")
    versions = page.get_by_role("region", name="Newest versions").get_by_role("rowheader")
    expect(versions).to_have_text(["5,001", "5,000"])


@pytest.mark.slow
def test_outer_rounds_are_shown_with_who_is_late_and_how_much_came(site: Site, open_tab: OpenTab) -> None:
    make_rounds(site.root, "together", 3)
    page = open_tab(site, run_place("together"))
    part = page.locator(".outer-part")
    expect(part.locator(".outer-sub")).to_have_text(
        "Round 4 is open: 0 contributions, 0 awaited; it needs 2. 1 inner step a round."
    )
    rounds = part.get_by_role("region", name="Rounds").get_by_role("row")
    expect(rounds.get_by_role("rowheader")).to_have_text(["4", "3", "2", "1"])
    second = rounds.nth(3).get_by_role("cell")
    expect(second.nth(0)).to_have_text("2")
    expect(second.nth(1)).to_have_text("eu-1, us-1")
    expect(second.nth(2)).to_have_text("–")
    expect(second.nth(4)).to_have_text(re.compile(r"^\d+(\.\d+)? %$"))
    expect(second.nth(5)).to_have_text(re.compile(r"^\d+(\.\d+)? k?B$"))
    members = part.get_by_role("region", name="Members").get_by_role("row")
    expect(members.get_by_role("rowheader")).to_have_text(["eu-1", "us-1"])
    expect(members.nth(1).get_by_role("cell").nth(0)).to_have_text("has left")
    expect(members.nth(1).get_by_role("cell").nth(1)).to_have_text("3")

    log = OuterLog(PrefixStore(open_store(site.root), "together"), "together")
    log.append(lambda _, common: JoinRecord(**common, member="asia-1"))
    expect(members.get_by_role("rowheader")).to_have_text(["asia-1", "eu-1", "us-1"])
    expect(members.nth(1).get_by_role("cell").nth(0)).to_have_text("from a later round on")


def test_a_run_without_outer_rounds_shows_none(site: Site, open_tab: OpenTab) -> None:
    page = open_tab(site, run_place("math-7b"))
    expect(page.locator("#connection")).to_have_text("Live")
    expect(page.locator(".outer-part")).to_be_hidden()


@pytest.mark.slow
def test_numbers_that_the_trainer_gives_are_plotted_over_the_same_versions(site: Site, open_tab: OpenTab) -> None:
    for step in range(30):
        site.push("rewarded", step, reward=0.1 * step, eval={"math": step % 7}, world=8)
    page = open_tab(site, run_place("rewarded"))
    drawn(page, 29)
    figures = page.locator(".figures")
    expect(figures).to_have_attribute(
        "aria-label", "Plots of metadata of versions 0 to 29: eval.math 0 to 6; reward 0 to 2.9; world 8 to 8."
    )
    titles = "document.querySelector('.figures').layout.annotations.map(title => title.text)"
    assert page.evaluate(titles) == ["eval.math", "reward", "world"]
    page.get_by_role("button", name="Zoom in").click()
    page.wait_for_function(
        "() => JSON.stringify(document.querySelector('.figures').layout.xaxis.range) === "
        "JSON.stringify(document.querySelector('.timeline').layout.xaxis.range) && "
        "document.querySelector('.figures').layout.xaxis.range[0] === 14.5"
    )
    site.push("rewarded", 30, reward=9.5, entropy=1.25)
    drawn(page, 30)
    expect(figures).to_have_attribute("aria-label", re.compile("entropy 1.25 to 1.25; world 8 to 8.$"))
    expect(figures).to_have_attribute("aria-label", re.compile("reward .* to 9.5;"))


@pytest.mark.slow
def test_a_run_without_numbers_in_its_metadata_has_no_plots_of_them(site: Site, open_tab: OpenTab) -> None:
    page = open_tab(site, run_place("math-7b"))
    drawn(page, 3)
    expect(page.locator(".figures-part")).to_be_hidden()
