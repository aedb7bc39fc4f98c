"""Pages of a run's live objects: together they are what the log says, and none costs more than it has."""

from __future__ import annotations

import functools
from typing import Any, Literal

import pytest
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st

from pulse_registry.log import RunState
from pulse_registry.results import describe
from pulse_schemas.api import ChainBody, KeyframeMark, PatchMark
from pulse_server.runs.chain import chain_body, versions_where
from tests.support.apps import app_over, fill, run_of
from tests.support.records import RUN, DictStore, Script, chain, keyframe, patch

LADDER = [patch(base, base + span, size=span) for span in (2, 4, 8, 16) for base in range(0, 39 - span, span)]


@functools.cache
def grown() -> RunState:
    """A run with merged patches, more keyframes, some objects without their key, and versions retired and forgotten."""
    script = chain(40).attach(patches=tuple(LADDER), keyframes=tuple(keyframe(v) for v in (8, 17, 30)))
    script.commit(patch=None, keyframe=keyframe(40)).commit()
    script.retire(keys=(patch(11, 12).object.key, keyframe(17).index.key, LADDER[3].object.key))
    script.retire(versions=(0, 1), keys=(keyframe(0).index.key, patch(0, 1).object.key)).delete()
    return script.retire(versions=(25,)).state


def plain(state: RunState, after: int, until: int) -> tuple[list[KeyframeMark], list[PatchMark]]:
    """Say what is live version by version, without columns."""
    keyframes = [k for k in state.keyframes if after < k.version <= until]
    patches = [p for p in state.patches if p.target > after and p.base <= until]
    return (
        [KeyframeMark(version=k.version, nbytes=k.size) for k in sorted(keyframes, key=lambda k: k.version)],
        [PatchMark(base=p.base, target=p.target, nbytes=p.size) for p in sorted(patches, key=lambda p: p.target)],
    )


def pages(state: RunState, after: int, until: int | None, limit: int) -> list[ChainBody]:
    found = [chain_body(state, after, until, limit)]
    while found[-1].next is not None:
        found.append(chain_body(state, found[-1].next, until, limit))
    return found


@given(st.integers(-1, 45), st.none() | st.integers(0, 45), st.integers(1, 60))
def test_the_pages_of_a_window_are_what_is_live_in_it(after: int, until: int | None, limit: int) -> None:
    state = grown()
    found = pages(state, after, until, limit)
    keyframes, patches = plain(state, after, 10**9 if until is None else until)
    assert [mark for page in found for mark in page.keyframes] == keyframes
    assert [mark for page in found for mark in page.patches] == patches
    for page in found[:-1]:
        targets = [*(mark.version for mark in page.keyframes), *(mark.target for mark in page.patches)]
        assert len(targets) >= limit
        assert page.next == max(targets)
        assert len(targets) - targets.count(page.next) < limit


def test_every_page_has_the_sums_of_all() -> None:
    state = grown()
    keyframes, patches = plain(state, -1, 10**9)
    for page in (chain_body(state, -1, None, 10_000), chain_body(state, 20, 22, 1), chain_body(state, 99, None, 1)):
        assert page.totals is not None
        assert page.totals.model_dump() == {
            "keyframes": len(keyframes),
            "patches": len(patches),
            "merged": sum(mark.target - mark.base > 1 for mark in patches),
            "longest": 16,
            "nbytes": sum(mark.nbytes for mark in (*keyframes, *patches)),
        }
    assert chain_body(RunState("empty"), -1, None, 1).totals.nbytes == 0  # type: ignore[union-attr]


def test_sizes_that_overflow_64_bits_are_summed_exactly() -> None:
    script = chain(2).attach(patches=tuple(patch(0, 1, size=2**62, tag=tag) for tag in range(1, 6)))
    totals = chain_body(script.state, -1, None, 1).totals
    assert totals is not None
    assert totals.nbytes > 5 * 2**62


STEP = st.none() | st.integers(-30, 430) | st.sampled_from((-(2**63), 2**63 - 1))


@given(st.integers(0, 45), st.sampled_from(("keyframe", "patch", None)), STEP, STEP)
def test_versions_are_chosen_as_they_are_told(
    first: int, kind: Literal["keyframe", "patch"] | None, low: int | None, high: int | None
) -> None:
    state = grown()
    expected = [
        entry.version
        for entry in state.versions
        if entry.version >= first
        and (kind is None or describe(state, entry).kind == kind)
        and (low is None or entry.step >= low)
        and (high is None or entry.step <= high)
    ]
    assert [*versions_where(state, first, kind, low, high)] == expected


@pytest.fixture(scope="module")
def client() -> Any:
    store = DictStore()
    script = run_of(30).attach(patches=(patch(0, 8), patch(8, 16)), keyframes=(keyframe(20),))
    fill(store, script)
    fill(store, Script("young").epoch())
    with TestClient(app_over(store)) as client:
        yield client


def test_a_client_pages_through_the_chain(client: TestClient) -> None:
    whole = client.get(f"/v1/runs/{RUN}/chain").json()
    assert (len(whole["patches"]), len(whole["keyframes"]), whole["next"]) == (31, 2, None)
    seen: dict[str, list[Any]] = {"keyframes": [], "patches": []}
    query = "?limit=7"
    while query:
        page = client.get(f"/v1/runs/{RUN}/chain{query}").json()
        assert page["totals"] == whole["totals"]
        for kind, found in seen.items():
            found += page[kind]
        query = "" if page["next"] is None else f"?limit=7&after={page['next']}"
    assert seen == {kind: whole[kind] for kind in seen}
    window = client.get(f"/v1/runs/{RUN}/chain?after=17&until=20").json()
    assert [mark["version"] for mark in window["keyframes"]] == [20]
    assert [(mark["base"], mark["target"]) for mark in window["patches"]] == [(17, 18), (18, 19), (19, 20), (20, 21)]


def test_a_run_without_versions_has_an_empty_chain(client: TestClient) -> None:
    body = client.get("/v1/runs/young/chain").json()
    assert (body["keyframes"], body["patches"], body["next"], body["totals"]["nbytes"]) == ([], [], None, 0)


@pytest.mark.parametrize("query", ["limit=0", "limit=10001", "after=-2", "until=-1", "until=x"])
def test_a_window_that_is_none_is_refused(client: TestClient, query: str) -> None:
    assert client.get(f"/v1/runs/{RUN}/chain?{query}").status_code == 422
