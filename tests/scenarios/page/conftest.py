"""A headless Chromium, tabs of it that notice what goes wrong in them, and services to look at."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, expect, sync_playwright

from tests.scenarios.page.site import Site
from tests.support.waiting import HANG_S

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
WAIT_MS = 1000 * HANG_S

expect.set_options(timeout=WAIT_MS)

OpenTab = Callable[..., Page]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser a module: playwright keeps an event loop in this thread, which other tests must not meet."""
    path = os.environ.get("PULSE_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        if os.environ.get("PULSE_REQUIRE_CHROMIUM"):
            pytest.fail("PULSE_REQUIRE_CHROMIUM is set and there is no Chromium: apt-get install chromium")
        pytest.skip("no Chromium here: apt-get install chromium, or name one in PULSE_CHROMIUM")
    with sync_playwright() as playwright:
        # No sandbox: it needs a user other than root. /dev/shm is small in containers.
        args = ["--no-sandbox", "--disable-dev-shm-usage"]
        browser = playwright.chromium.launch(executable_path=path, args=args, timeout=WAIT_MS)
        yield browser
        browser.close()


class Complaints:
    """What the browser complained of in a tab: errors in scripts, on the console, and of the security policy."""

    def __init__(self) -> None:
        self.messages: list[str] = []
        self.elsewhere: list[str] = []

    def watch(self, page: Page, site: Site) -> None:
        page.on("console", self._on_console)
        page.on("pageerror", lambda error: self.messages.append(f"uncaught: {error}"))
        page.on("request", lambda request: self._on_request(request.url, site))

    def _on_console(self, message: ConsoleMessage) -> None:
        # The browser itself logs each refused request: the page says it in words, which tests look for.
        if message.type in ("error", "warning") and not message.text.startswith("Failed to load resource"):
            self.messages.append(f"{message.type}: {message.text}")

    def _on_request(self, url: str, site: Site) -> None:
        if not url.startswith(site.url):
            self.elsewhere.append(url)


@pytest.fixture
def open_tab(browser: Browser, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[OpenTab]:
    """Open a tab of its own context; at the end nothing may have been complained of, and a picture is kept."""
    tabs: list[tuple[Page, Complaints]] = []
    with ExitStack() as stack:

        def open_one(site: Site, place: str = "", **context: Any) -> Page:
            made = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **context})
            stack.callback(made.close)
            made.set_default_timeout(WAIT_MS)
            page, complaints = made.new_page(), Complaints()
            complaints.watch(page, site)
            tabs.append((page, complaints))
            page.goto(f"{site.url}{place}")
            return page

        yield open_one
        for number, (page, complaints) in enumerate(tabs):
            page.screenshot(path=tmp_path / f"{number}.png", full_page=True)
            assert complaints.messages == []
            assert complaints.elsewhere == []


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    """An open service with a run of a few versions, ``math-7b``, and one worker."""
    site = Site()
    try:
        site.start()
        for step in range(4):
            site.push("math-7b", 10 * step, changed=40 + step)
        site.report("math-7b", "worker-0", 3, fetch=0.41, apply=0.004)
        yield site
    finally:
        site.stop()


@pytest.fixture(scope="module")
def guarded() -> Iterator[Site]:
    """A service that asks for tokens, with the runs ``math-7b`` and ``code-7b``."""
    site = Site(is_open=False)
    try:
        site.start()
        site.push("math-7b", 10)
        site.push("code-7b", 10)
        yield site
    finally:
        site.stop()


def run_place(run: str) -> str:
    return f"#/runs/{run}"
