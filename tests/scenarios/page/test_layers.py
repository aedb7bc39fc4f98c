"""The heat map of layers by versions: what it shows, what it says, and how it follows."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Locator, expect

import pulse_registry
from tests.scenarios.page.conftest import OpenTab, run_place
from tests.scenarios.page.site import Site
from tests.support.groups import small_groups

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def groups() -> Iterator[None]:
    with small_groups():
        yield


def push(site: Site, run: str, versions: int, first: int = 0) -> None:
    """Push versions that change 8 of the 64 cells of layer 0, and 2 of those of layer 1."""
    model = {f"model.layers.{layer}.w": np.full(64, first, np.float32) for layer in (0, 1)}
    backend = pulse_registry.ComputeOptions(backend="reference")
    with pulse_registry.open(site.root, run=run, compute=backend) as registry:
        if first:
            model = registry.load()
        for step in range(first, first + versions):
            for layer, cells in ((0, 8), (1, 2)):
                model[f"model.layers.{layer}.w"][:cells] += 1
            registry.push(step, model)


def colours(canvas: Locator, places: list[tuple[float, float]]) -> list[tuple[int, ...]]:
    """Return the colours of places, given as shares of the canvas, across and down; it is read once."""
    script = """(c, places) => {
      const { data } = c.getContext("2d").getImageData(0, 0, c.width, c.height);
      const at = ([x, y]) => 4 * (Math.floor(y * c.height) * c.width + Math.floor(x * c.width));
      return places.map((place) => [...data.slice(at(place), at(place) + 4)]);
    }"""
    return [tuple(found) for found in canvas.evaluate(script, places)]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
def test_layers_that_change_more_are_another_colour_at_every_width(
    site: Site, open_tab: OpenTab, width: int, scheme: str
) -> None:
    run = f"layers-{width}-{scheme}"
    push(site, run, 6)
    page = open_tab(site, run_place(run), viewport={"width": width, "height": 900}, color_scheme=scheme)
    sentence = "Most a version in model.layers.0: 12.5 %; least in model.layers.1: 3.13 %."
    expect(page.locator(".layers-sub")).to_have_text(sentence)
    label = re.compile(f"versions 0 to 5. {re.escape(sentence)}")
    expect(page.locator(".layers")).to_have_attribute("aria-label", label)
    expect(page.locator(".layers-legend .most")).to_have_text("12.5 %")
    canvas = page.locator(".layers canvas")
    more, less, before = colours(canvas, [(0.6, 0.2), (0.6, 0.7), (0.2, 0.2)])
    assert len({more, less, before}) == 3
    assert before[3] == 0  # of version 0 there is nothing to compare with
    canvas.hover(position={"x": canvas.bounding_box()["width"] * 0.6, "y": 60})  # type: ignore[index]
    expect(page.locator(".layers-told")).to_have_text(
        re.compile(r"^Version [1-5], model\.layers\.0: 12\.5 % of 64 cells\.$")
    )
    body = page.locator("body").bounding_box()
    assert body is not None
    assert body["width"] <= width
    violations = Axe().run(page, context=".layers-part").response["violations"]
    assert violations == []


def test_a_new_version_is_asked_for_alone(site: Site, open_tab: OpenTab) -> None:
    push(site, "growing", 4)
    page = open_tab(site, run_place("growing"))
    label = page.locator(".layers")
    expect(label).to_have_attribute("aria-label", re.compile("versions 0 to 3. Most"))
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if "/layers" in request.url else None)
    push(site, "growing", 1, first=4)
    expect(label).to_have_attribute("aria-label", re.compile("versions 0 to 4. Most"))
    assert asked == [f"{site.url}v1/runs/growing/layers?limit=64&after=3"]


def test_a_run_of_keyframes_alone_says_that_nothing_is_known(site: Site, open_tab: OpenTab) -> None:
    push(site, "single", 1)
    page = open_tab(site, run_place("single"))
    expect(page.locator(".layers-sub")).to_have_text("No patch between these versions tells what changed.")
    expect(page.locator(".layers-legend")).to_be_hidden()
