"""The page's parts that decide and do no I/O, each run by itself in the browser."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.scenarios.page.conftest import OpenTab
from tests.scenarios.page.site import Site

Call = Callable[..., Any]


@pytest.fixture
def page(site: Site, open_tab: OpenTab) -> Page:
    page = open_tab(site)
    expect(page.get_by_role("heading", level=1)).to_have_text("Runs")
    return page


def run(page: Page, module: str, body: str, argument: Any = None) -> Any:
    """Run code that sees a module as ``m`` and the argument as ``a``."""
    script = f"async a => {{ const m = await import(new URL('assets/{module}', document.baseURI)); {body} }}"
    return page.evaluate(script, argument)


@pytest.mark.slow
def test_figures_are_written_as_people_read_them(page: Page) -> None:
    cases: list[tuple[str, list[Any], str]] = [
        ("bytes", [0], "0 B"),
        ("bytes", [999], "999 B"),
        ("bytes", [1000], "1.00 kB"),
        ("bytes", [999_999], "1.00 MB"),
        ("bytes", [1_490_000], "1.49 MB"),
        ("bytes", [15_200_000_000], "15.2 GB"),
        ("bytes", [None], "–"),
        ("count", [1_234_567], "1,234,567"),
        ("count", [None], "–"),
        ("percent", [0, 10], "0 %"),
        ("percent", [1, 10_000_000], "under 0.001 %"),
        ("percent", [86, 10_000], "0.860 %"),
        ("percent", [1, 0], "–"),
        ("ratio", [1, 96], "1/96"),
        ("ratio", [10, 10], "1/1"),
        ("ratio", [30, 10], "3.0 ×"),
        ("ratio", [1, None], "–"),
        ("duration", [0], "0 s"),
        ("duration", [0.0042], "4.2 ms"),
        ("duration", [0.41], "410 ms"),
        ("duration", [5.26], "5.3 s"),
        ("duration", [59.99], "1 min 0 s"),
        ("duration", [65], "1 min 5 s"),
        ("duration", [7260], "2 h 1 min"),
        ("duration", [None], "–"),
        ("ago", [-3], "just now"),
        ("ago", [59.9], "59 s ago"),
        ("ago", [3600], "1 h ago"),
        ("ago", [200_000], "2 d ago"),
        ("mark", ["10.0 MB"], "10 MB"),
        ("mark", ["3 min 0 s"], "3 min"),
    ]
    found = run(page, "format.js", "return a.map(([name, given]) => m[name](...given))", [c[:2] for c in cases])
    assert found == [text for _, _, text in cases]


def test_a_stream_of_events_is_read_alike_however_it_is_cut(page: Page) -> None:
    stream = (
        ': a comment\r\n\r\nid: 7\r\nevent: version\r\ndata: {"a":\r\ndata:1}\r\n\r\n'
        "event: workers\ndata: é €\n\nretry: 5\n\nevent: cut off\ndata: x"
    )
    body = """
      const bytes = new TextEncoder().encode(a);
      const read = async pieces => {
        const found = [];
        const source = new ReadableStream({ start(c) { pieces.forEach(p => c.enqueue(p)); c.close(); } });
        for await (const event of m.readEvents(source)) found.push([event.type, event.id, event.data]);
        return JSON.stringify(found);
      };
      const seen = new Set([await read(Array.from(bytes, byte => Uint8Array.of(byte)))]);
      for (let cut = 0; cut <= bytes.length; cut += 1) seen.add(await read([bytes.slice(0, cut), bytes.slice(cut)]));
      return [...seen].map(text => JSON.parse(text));
    """
    assert run(page, "events.js", body, stream) == [[["version", "7", '{"a":\n1}'], ["workers", None, "é €"]]]


def test_a_window_never_leaves_the_versions_that_there_are(page: Page) -> None:
    body = """
      const moves = [w => w.zoom(0.5), w => w.zoom(2), w => w.pan(-1), w => w.pan(1), w => w.follow(),
                     w => w.show(-50, 3), w => w.show(1e9, 5), w => w.show(7.2, 7.4), w => { w.newest += 1; }];
      let state = a;
      const next = () => (state = (Math.imul(state, 1103515245) + 12345) >>> 0) / 2 ** 32;
      const w = new m.Window();
      w.oldest = 3; w.newest = 5000;
      for (let turn = 0; turn < 3000; turn += 1) {
        moves[Math.floor(next() * moves.length)](w);
        const fits = w.oldest <= w.first && w.first <= w.last && w.last <= w.newest;
        if (!fits || (w.follows && w.last !== w.newest) || !Number.isInteger(w.first)) return [turn, w.first, w.last];
      }
      return "held";
    """
    for seed in range(20):
        assert run(page, "window.js", body, seed) == "held", seed


def test_a_history_is_in_order_whatever_the_order_of_arrival(page: Page) -> None:
    body = """
      const version = (number, second) => ({
        version: number, kind: "patch", nbytes: 10 * number,
        created_at: new Date(Date.UTC(2030, 0, 1, 0, 0, second)).toISOString(),
      });
      const h = new m.History();
      const arrivals = [[version(5, 25)], [version(3, 9), version(4, 16)], [version(4, 17)], [version(6, 36)]];
      const newer = arrivals.map(arrived => h.add(arrived));
      const numbers = versions => versions.map(v => v.version);
      const stateAt = second => m.publishing(h, Date.UTC(2030, 0, 1, 0, 0, second)).state;
      return { newer, order: numbers(h.versions), gaps: h.versions.map(v => h.interval(v)), usual: h.usualInterval(),
               between: numbers(h.between(4, 5)), far: numbers(h.between(90, 99)),
               states: [stateAt(95), stateAt(120)] };
    """
    found = run(page, "history.js", body)
    assert found["newer"] == [True, False, False, True]
    assert found["order"] == [3, 4, 5, 6]
    assert found["gaps"] == [None, 8, 8, 11]
    assert found["usual"] == 8
    assert found["between"] == [3, 4, 5, 6]
    assert found["far"] == [6]
    assert found["states"] == ["live", "quiet"]


def test_a_history_lets_go_of_the_oldest(page: Page) -> None:
    body = """
      const h = new m.History();
      const version = number => ({ version: number, kind: "patch", nbytes: 1, created_at: "2030-01-01T00:00:00.000Z" });
      h.add(Array.from({ length: a }, (_, number) => version(number)));
      return [h.trim(), h.versions.length, h.oldest.version, h.at(h.newest.version).version, h.at(0)];
    """
    assert run(page, "history.js", body, 20_000) == [False, 20_000, 0, 19_999, {"version": 0, **ANY_VERSION}]
    assert run(page, "history.js", body, 20_001) == [True, 15_000, 5_001, 20_000, None]


ANY_VERSION = {"kind": "patch", "nbytes": 1, "created_at": "2030-01-01T00:00:00.000Z", "at": 1893456000000}


def test_numbers_in_metadata_are_found_by_themselves_and_those_that_change_come_first(page: Page) -> None:
    body = """
      const n = new m.Numbers();
      const version = (number, metadata) => ({ version: number, step: 10 * number, metadata });
      const told = ({ shown, others }) =>
        [shown.map(({ key, points }) => [key, points.map(p => [p.version, p.value])]), others];
      const nested = { math: { score: 1, deep: { er: 2 } } };
      const first = told(n.of([
        version(0, { reward: 0.5, world: 8, note: "x", done: true, bad: null, list: [1], eval: nested }),
        version(1, { reward: 0.75, world: 8 }),
      ]));
      const later = told(n.of([version(2, { loss: 1.5 }), version(3, { loss: 1 })]));
      const many = Object.fromEntries(Array.from({ length: 1000 }, (_, i) => [`k${String(i).padStart(3, "0")}`, i]));
      const { shown, others } = n.of([version(4, many)]);
      return { first, later, shown: shown.map(s => s.key), others: others.length };
    """
    found = run(page, "metadata.js", body)
    assert found["first"] == [
        [["reward", [[0, 0.5], [1, 0.75]]], ["eval.math.score", [[0, 1]]], ["world", [[0, 8], [1, 8]]]],
        [],
    ]
    assert found["later"] == [
        [["loss", [[2, 1.5], [3, 1]]], ["reward", []], ["eval.math.score", []], ["world", []]],
        [],
    ]
    assert found["shown"] == ["loss", "reward", "eval.math.score", "k000", "k001", "k002"]
    assert found["others"] == 200 - 6
