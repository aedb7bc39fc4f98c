"""What the page says when something is not as it should be, and what it keeps to itself."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from tests.scenarios.page.conftest import OpenTab, run_place
from tests.scenarios.page.site import Site

pytestmark = pytest.mark.slow


def sign_in(page: Page, token: str) -> None:
    page.get_by_label("Token", exact=True).fill(token)
    page.get_by_role("button", name="Show runs").click()


def test_an_open_service_asks_for_no_token(site: Site, open_tab: OpenTab) -> None:
    page = open_tab(site)
    expect(page.get_by_role("heading", level=1)).to_have_text("Runs")
    expect(page.locator("#who")).to_have_text("Open: no token needed")
    expect(page.get_by_role("button", name="Sign out")).to_be_hidden()


def test_a_token_is_asked_for_and_kept_in_this_tab_alone(guarded: Site, open_tab: OpenTab) -> None:
    page = open_tab(guarded)
    expect(page.get_by_role("heading", level=1)).to_have_text("This service asks for a token")
    expect(page.get_by_label("Token", exact=True)).to_have_attribute("type", "password")
    expect(page.get_by_label("Token", exact=True)).to_be_focused()
    sign_in(page, guarded.tokens["all"])
    expect(page.get_by_role("rowheader")).to_have_text(["code-7b", "math-7b"])
    expect(page.locator("#who")).to_have_text("all")
    token = guarded.tokens["all"]
    assert token not in page.url
    assert token not in page.content()
    assert page.evaluate("Object.values(sessionStorage)") == [token]
    assert page.evaluate("[localStorage.length, document.cookie]") == [0, ""]
    page.reload()
    expect(page.get_by_role("rowheader")).to_have_count(2)
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_label("Token", exact=True)).to_be_visible()
    assert page.evaluate("sessionStorage.length") == 0


def test_a_wrong_token_is_asked_for_again(guarded: Site, open_tab: OpenTab) -> None:
    page = open_tab(guarded)
    sign_in(page, "pulse_000000000000_" + "A" * 43)
    expect(page.get_by_role("alert")).to_have_text(re.compile("wrong, or it has expired"))
    sign_in(page, guarded.tokens["all"])
    expect(page.get_by_role("heading", level=1)).to_have_text("Runs")


def test_a_run_that_the_token_may_not_read_is_said_to_be_so(guarded: Site, open_tab: OpenTab) -> None:
    page = open_tab(guarded, run_place("code-7b"))
    sign_in(page, guarded.tokens["math-only"])
    expect(page.get_by_role("heading", level=1)).to_have_text("Not allowed")
    expect(page.get_by_role("alert")).to_contain_text("may not read the run code-7b")
    expect(page.get_by_role("alert")).to_contain_text("Ask for a token whose run patterns include it")
    page.get_by_role("link", name="All runs").click()
    expect(page.get_by_role("rowheader")).to_have_text(["math-7b"])


def test_an_unknown_run_is_said_to_be_unknown_and_shown_once_it_is_there(site: Site, open_tab: OpenTab) -> None:
    page = open_tab(site, run_place("later"))
    expect(page.get_by_role("heading", level=1)).to_have_text("No such run")
    expect(page.get_by_role("alert")).to_contain_text("The run appears here with its first push.")
    site.push("later", 1)
    expect(page.get_by_role("heading", level=1)).to_have_text("later")


def test_a_run_that_was_not_there_is_asked_for_no_more_once_another_one_is(site: Site, open_tab: OpenTab) -> None:
    page = open_tab(site, run_place("left"))
    expect(page.get_by_role("heading", level=1)).to_have_text("No such run")
    page.get_by_role("link", name="All runs").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Runs")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url.rpartition("/")[2]))
    page.goto(f"{site.url}{run_place('wanted')}")
    expect(page.get_by_role("heading", level=1)).to_have_text("No such run")
    site.push("wanted", 1)
    expect(page.get_by_role("heading", level=1)).to_have_text("wanted")  # by then, "left" would have had its turn
    assert "wanted" in asked
    assert "left" not in asked


def test_a_name_that_no_run_can_have_is_explained(site: Site, open_tab: OpenTab) -> None:
    page = open_tab(site, "#/runs/%3Cb%3EBad%3C%2Fb%3E")
    expect(page.get_by_role("alert")).to_be_visible()
    expect(page.get_by_role("button", name="Try again")).to_be_visible()
    assert page.locator("b").count() == 0


def test_a_run_without_versions_waits_for_its_first(site: Site, open_tab: OpenTab) -> None:
    site.begin("fresh")
    page = open_tab(site, run_place("fresh"))
    expect(page.locator(".verdict")).to_have_text("No version yet. The first push makes version 0.")
    expect(page.get_by_role("heading", name="Versions over time")).to_be_hidden()
    expect(page.locator(".workers")).to_contain_text("No worker has reported of late.")
    expect(page.locator("#connection")).to_have_text("Live")
    site.push("fresh", 7)
    expect(page.locator("[data-tile=version] .value")).to_have_text("0")
    expect(page.locator(".verdict")).to_have_text("Publishing: the first version is there.")
    expect(page.locator(".timeline")).to_have_attribute("data-drawn", "0")


def test_a_service_that_is_gone_is_said_to_be_gone(open_tab: OpenTab) -> None:
    site = Site()
    try:
        site.start()
        site.push("math-7b", 1)
        page = open_tab(site)
        expect(page.get_by_role("rowheader")).to_have_text("math-7b")
        site.stop()
        expect(page.locator("#connection")).to_have_text(re.compile("^Not connected"))
        expect(page.get_by_role("rowheader")).to_have_text("math-7b")
        page.get_by_role("link", name="math-7b").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("The service does not answer")
        expect(page.get_by_role("alert")).to_contain_text("Check that pulse serve is up")
        site.start()
        page.get_by_role("button", name="Try again").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("math-7b")
    finally:
        site.stop()


def test_a_store_that_is_gone_is_told_from_a_service_that_is(site: Site, open_tab: OpenTab) -> None:
    page = open_tab(site)
    expect(page.get_by_role("heading", level=1)).to_have_text("Runs")
    problem = {"type": "x", "title": "x", "status": 503, "detail": "Call again.", "instance": "x"}
    page.route("**/v1/runs/math-7b", lambda route: route.fulfill(status=503, json=problem))
    page.goto(f"{site.url}{run_place('math-7b')}")
    expect(page.get_by_role("heading", level=1)).to_have_text("The store does not answer")


def test_figures_from_memory_say_how_old_they_are(site: Site, open_tab: OpenTab) -> None:
    page = open_tab(site)
    expect(page.get_by_role("heading", level=1)).to_have_text("Runs")
    body = {"run": "math-7b", "versions": [], "next": None, "age_s": 95.0}
    page.route("**/versions?*", lambda route: route.fulfill(json=body))
    page.goto(f"{site.url}{run_place('math-7b')}")
    expect(page.locator("#stale")).to_have_text(re.compile("can't reach its store.*1 min ago"))


def test_plots_that_can_not_load_leave_the_rest_usable(site: Site, open_tab: OpenTab) -> None:
    page = open_tab(site)
    page.route("**/plotly.min.js*", lambda route: route.abort())
    page.goto(f"{site.url}{run_place('math-7b')}")
    expect(page.locator(".timeline")).to_have_text(re.compile("The plots' script did not load"))
    expect(page.locator("[data-tile=version] .value")).to_have_text("3")
