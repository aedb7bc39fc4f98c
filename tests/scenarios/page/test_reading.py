"""The page for everybody: small screens, dark mode, keyboards, screen readers, proxies, and hostile names."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from tests.scenarios.page.conftest import OpenTab, run_place
from tests.scenarios.page.site import Site
from tests.support.outer_rounds import make_rounds

pytestmark = pytest.mark.slow

HOSTILE = "<img src=x onerror=\"document.title='owned'\"><b>bold</b>{{1+1}}</td></table><script>alert(1)</script>"
LONG = "x" * 300

VIEWS = ("runs", "run", "outer", "sign-in", "failure")


@pytest.fixture(scope="module")
def hostile() -> Iterator[Site]:
    """A service whose run holds what a trainer may send at its worst."""
    site = Site()
    try:
        site.start()
        site.push("hostile", 1)
        site.push(
            "hostile",
            -(2**63),
            note=HOSTILE,
            **{
                HOSTILE: [HOSTILE, {"deep": HOSTILE}],
                "long": LONG,
                "<a href='https://evil.example'>x</a>": 1,
                LONG: {HOSTILE: 2},
            },
        )
        yield site
    finally:
        site.stop()


def show(view: str, site: Site, guarded: Site, open_tab: OpenTab, **context: object) -> Page:
    """Open a view and wait until it is whole."""
    if view == "sign-in":
        page = open_tab(guarded, **context)
        expect(page.get_by_label("Token", exact=True)).to_be_visible()
    elif view == "failure":
        page = open_tab(site, run_place("unknown"), **context)
        expect(page.get_by_role("heading", level=1)).to_have_text("No such run")
    elif view == "runs":
        page = open_tab(site, **context)
        expect(page.get_by_role("rowheader").first).to_be_visible()
    elif view == "outer":
        run = f"together-{uuid.uuid4().hex[:8]}"
        make_rounds(site.root, run, 2)
        page = open_tab(site, run_place(run), **context)
        expect(page.locator(".timeline")).to_have_attribute("data-drawn", "2")
        expect(page.get_by_role("region", name="Rounds").get_by_role("row")).to_have_count(4)
    else:
        page = open_tab(site, run_place("math-7b"), **context)
        expect(page.locator(".timeline")).to_have_attribute("data-drawn", "3")
        expect(page.locator("#connection")).to_have_text("Live")
    return page


@pytest.mark.parametrize("view", VIEWS)
def test_nothing_is_against_the_accessibility_rules(view: str, site: Site, guarded: Site, open_tab: OpenTab) -> None:
    page = show(view, site, guarded, open_tab)
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        found = Axe().run(page).response
        told = [(rule["id"], [node["html"] for node in rule["nodes"]]) for rule in found["violations"]]
        assert told == [], scheme
        assert {"color-contrast", "html-has-lang"} <= {rule["id"] for rule in found["passes"]}


@pytest.mark.parametrize("view", VIEWS)
def test_a_small_screen_shows_it_all_without_scrolling_sideways(
    view: str, site: Site, guarded: Site, open_tab: OpenTab
) -> None:
    page = show(view, site, guarded, open_tab, viewport={"width": 320, "height": 800}, has_touch=True)
    for width in (320, 400, 320):
        page.set_viewport_size({"width": width, "height": 800})
        page.wait_for_function(f"document.documentElement.scrollWidth === {width}")  # once the plots are drawn anew
        boxes = page.locator("button:visible, a:visible:not(.skip), input:visible").evaluate_all(
            "nodes => nodes.map(node => node.getBoundingClientRect()).map(box => [box.left, box.right])"
        )
        assert boxes
        if view != "run":  # its tables scroll by themselves
            assert all(left >= 0 and right <= width for left, right in boxes), width


def luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    """Return the contrast ratio of two colours (WCAG 2.2)."""
    dark, bright = sorted((luminance(one), luminance(other)))
    return (bright + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_what_the_plots_draw_stands_out_from_the_ground(site: Site, open_tab: OpenTab, scheme: str) -> None:
    page = open_tab(site, color_scheme=scheme)
    read = "name => getComputedStyle(document.documentElement).getPropertyValue('--' + name).trim()"
    ground = page.evaluate(read, "ground")
    for name, least in {"ink": 7, "muted": 4.5, "patch": 4.5, "keyframe": 4.5, "merged": 4.5, "full": 4.5}.items():
        assert contrast(page.evaluate(read, name), ground) >= least, name


def test_the_keyboard_reaches_and_works_every_control(site: Site, open_tab: OpenTab) -> None:
    page = open_tab(site, run_place("math-7b"))
    expect(page.locator(".timeline")).to_have_attribute("data-drawn", "3")
    page.evaluate("document.activeElement.blur()")
    names: list[str] = []
    for _ in range(40):
        page.keyboard.press("Tab")
        name = page.evaluate("document.activeElement.textContent.trim().slice(0, 30)")
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        if page.evaluate("document.activeElement === document.body"):
            break
        assert outline != "none", name
        names.append(name)
    wanted = ["Skip to content", "Pulse Registry", "Worker", "Behind", "Older", "Newer", "Zoom in", "Follow newest"]
    assert [name for name in names if name in wanted] == wanted
    page.locator("[data-sort=worker]").focus()
    page.keyboard.press("Enter")
    head = page.get_by_role("columnheader", name="Worker")
    expect(head).to_have_attribute("aria-sort", "ascending")
    page.keyboard.press("Space")
    expect(head).to_have_attribute("aria-sort", "descending")


def test_a_screen_reader_is_told_what_the_plots_show_and_of_what_changes(site: Site, open_tab: OpenTab) -> None:
    page = open_tab(site, run_place("math-7b"))
    expect(page.locator(".timeline")).to_have_attribute("data-drawn", "3")
    assert page.locator("[role=img]").count() == 3
    label = page.locator(".timeline").get_attribute("aria-label") or ""
    assert label.startswith("Plots of versions 0 to 3: 1.00 % to 1.05 % of the cells changed")
    assert "1 keyframe, 3 patches" in (page.locator(".chain").get_attribute("aria-label") or "")
    assert page.locator("#connection").get_attribute("role") == "status"
    assert page.locator("#news").get_attribute("aria-live") == "polite"
    for head in page.get_by_role("columnheader").all():
        assert head.get_attribute("scope") == "col"


def hostile_workers() -> str:
    """Return an event with workers as the service would refuse them: the page must not rely on that."""
    worker = {"worker": "w" * 128, "version": 0, "digest": HOSTILE, "nbytes": 2**62, "reported_at": HOSTILE}
    worker |= {"phases": {HOSTILE: 1e300, "<i>i</i>": -1.0, LONG: 0.0}, "staleness": 1, "digest_matches": False}
    data = json.dumps({"run": "hostile", "workers": [worker]})
    return f"event: workers\r\ndata: {data}\r\n\r\n"


@pytest.mark.parametrize("width", [1280, 400])
def test_what_trainers_and_workers_send_is_shown_as_text(hostile: Site, open_tab: OpenTab, width: int) -> None:
    page = open_tab(hostile, viewport={"width": width, "height": 900})
    stream = {"content_type": "text/event-stream", "body": hostile_workers()}
    page.route("**/events*", lambda route: route.fulfill(**stream))
    page.goto(f"{hostile.url}{run_place('hostile')}")
    expect(page.locator(".timeline")).to_have_attribute("data-drawn", "1")
    expect(page.locator(".versions")).to_contain_text("<b>bold</b>")
    expect(page.locator(".workers")).to_contain_text("<i>i</i>")
    expect(page.locator(".figures")).to_contain_text("<a href='https://evil.example'>x</a>")
    assert page.locator("main a[href^=http]").count() == 0
    assert page.locator("main img, main b, main i, main script").count() == 0
    assert page.title() == "hostile · Pulse Registry"
    assert page.evaluate("document.documentElement.scrollWidth") == width


def test_names_of_runs_are_text_and_lead_nowhere_else(hostile: Site, open_tab: OpenTab) -> None:
    names = [HOSTILE, "javascript:alert(1)", "../../../evil", "//evil.example/x", "\x1b]0;owned\x07", "\u202egpj"]
    line = {"seq": 0, "versions": 1, "latest": None, "full_nbytes": None, "summary": None, "stale": False}
    told = {"whole": True, "total": 6, "more": False, "runs": [line | {"run": name} for name in names]}
    event = f"event: runs\nid: a-1\ndata: {json.dumps(told)}\n\n"
    page = open_tab(hostile)
    page.route("**/v1/events", lambda route: route.fulfill(content_type="text/event-stream", body=event))
    page.reload()
    links = page.locator(".runs th a")
    expect(links).to_have_count(len(names))
    assert sorted(links.all_text_contents()) == sorted(names)
    for link in links.all():
        assert str(link.evaluate("link => link.href")).startswith(f"{hostile.url}#/runs/")
    assert page.locator("main img, main b, main script").count() == 0
    assert page.title() == "Pulse Registry"


def test_the_page_works_below_a_proxys_path(open_tab: OpenTab) -> None:
    site = Site(prefix="/teams/rl")
    try:
        site.start()
        site.push("math-7b", 1)
        page = open_tab(site)  # a request outside the prefix fails the test: see `Complaints`
        page.get_by_role("link", name="math-7b").click()
        expect(page.locator(".timeline")).to_have_attribute("data-drawn", "0")
        expect(page.locator("#connection")).to_have_text("Live")
        site.push("math-7b", 2)
        expect(page.locator("[data-tile=version] .value")).to_have_text("1")
        page.get_by_role("link", name="Pulse Registry").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("Runs")
    finally:
        site.stop()


def test_loading_moves_nothing_that_is_already_there(site: Site, open_tab: OpenTab) -> None:
    page = open_tab(site)
    expect(page.get_by_role("rowheader").first).to_be_visible()
    shifts = """() => { window.shifted = 0; new PerformanceObserver(list => {
        for (const entry of list.getEntries()) if (!entry.hadRecentInput) window.shifted += entry.value;
    }).observe({type: "layout-shift", buffered: false}); }"""
    page.evaluate(shifts)
    page.evaluate("location.hash = '#/runs/math-7b'")
    expect(page.locator(".timeline")).to_have_attribute("data-drawn", "3")
    expect(page.locator("#connection")).to_have_text("Live")
    assert page.evaluate("window.shifted") < 0.1  # what the web vitals call good
