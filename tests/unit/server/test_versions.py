"""Versions over HTTP: one of them, pages of them, and the routes that lead there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import pytest
from fastapi.testclient import TestClient

import pulse_registry
from pulse_registry.format import keys
from pulse_registry.log import RunState
from pulse_registry.options import ComputeOptions, Options
from pulse_registry.pull.route import plan
from pulse_registry.registry import Registry
from pulse_registry.store import PrefixStore
from pulse_registry.store.prices import Prices
from pulse_schemas import VersionEntry
from pulse_schemas.api import VersionBody
from pulse_server.routes import versions
from pulse_server.runs.bodies import version_body
from tests.support.apps import LAYOUT, app_over, fill, run_of, store_record
from tests.support.records import RUN, DictStore, Script, keyframe, patch

URL = f"/v1/runs/{RUN}"


@pytest.fixture
def store() -> DictStore:
    return DictStore()


@pytest.fixture
def script(store: DictStore) -> Script:
    script = run_of(9)
    script.commit(layout=LAYOUT.id, patch=None, keyframe=keyframe(9, tag=1), step=5)
    script.attach(patches=(patch(0, 8, tag=2),), keyframes=(keyframe(4, tag=3),))
    script.retire(versions=(3,))
    return fill(store, script)


@pytest.fixture
def forgetful() -> Iterator[TestClient]:
    store = DictStore()
    fill(store, run_of(5).retire(versions=(0, 1)).delete())
    with TestClient(app_over(store)) as client:
        yield client


@pytest.fixture
def client(store: DictStore, script: Script) -> Iterator[TestClient]:
    with TestClient(app_over(store)) as client:
        yield client


def numbers(client: TestClient, query: str = "") -> list[int]:
    return [version["version"] for version in client.get(f"{URL}/versions{query}").json()["versions"]]


def test_a_version_is_told_as_the_library_tells_it(client: TestClient, store: DictStore) -> None:
    with Registry(store, RUN, Options(compute=ComputeOptions(backend="reference"))) as registry:
        for told in registry.versions():
            body = client.get(f"{URL}/versions/{told.version}").json()
            assert body.pop("seq") == registry.state().versions[told.version].seq
            assert body == asdict(told)
        assert isinstance(registry, pulse_registry.Registry)


@pytest.mark.parametrize(
    ("name", "version"), [("latest", 9), ("0", 0), ("9", 9), ("step:10", 1), ("step:5", 9), ("step:0", 0), ("3", 3)]
)
def test_a_version_is_found_by_number_by_step_or_as_the_newest(client: TestClient, name: str, version: int) -> None:
    answer = client.get(f"{URL}/versions/{name}")
    assert (answer.status_code, answer.json()["version"]) == (200, version)
    assert int(answer.headers["age"]) < 5


@pytest.mark.parametrize("name", ["10", "999999999999", "step:11", "step:-1"])
def test_a_version_that_is_not_there_is_a_404(client: TestClient, name: str) -> None:
    assert client.get(f"{URL}/versions/{name}").status_code == 404


@pytest.mark.parametrize("path", ["versions/0", "route?to=1", "route?from=0&to=4"])
def test_a_version_that_was_deleted_is_gone(forgetful: TestClient, path: str) -> None:
    answer = forgetful.get(f"{URL}/{path}")
    assert (answer.status_code, answer.json()["type"]) == (410, "urn:pulse-registry:problem:Gone")
    assert numbers(forgetful) == [2, 3, 4]
    assert forgetful.get(f"{URL}/versions/5").status_code == 404


def test_there_is_no_route_to_a_version_that_was_retired(client: TestClient) -> None:
    answer = client.get(f"{URL}/route?to=3")
    assert (answer.status_code, answer.json()["type"]) == (410, "urn:pulse-registry:problem:Gone")


@pytest.mark.parametrize("name", ["-1", "01", "newest", "9" * 30, "1.0", "step:", "step:+1", "step:1e3", "١", "Latest"])
def test_what_is_no_name_of_a_version_is_refused(client: TestClient, name: str) -> None:
    answer = client.get(f"{URL}/versions/{name}")
    assert (answer.status_code, answer.json()["type"]) == (422, "urn:pulse-registry:problem:InvalidRequest")


def test_versions_come_in_pages_oldest_first_without_those_retired(client: TestClient) -> None:
    assert numbers(client) == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    seen: list[int] = []
    query: str | None = "?limit=2"
    while query is not None:
        body = client.get(f"{URL}/versions{query}").json()
        seen += [version["version"] for version in body["versions"]]
        assert len(body["versions"]) <= 2
        assert 0 <= body["age_s"] < 5
        query = None if body["next"] is None else f"?limit=2&after={body['next']}"
    assert seen == [0, 1, 2, 4, 5, 6, 7, 8, 9]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("?after=7", [8, 9]),
        ("?after=9", []),
        ("?after=-1&limit=1", [0]),
        ("?kind=keyframe", [0, 9]),
        ("?kind=patch&after=6", [7, 8]),
        ("?min_step=70", [7, 8]),
        ("?max_step=10", [0, 1, 9]),
        ("?min_step=5&max_step=10", [1, 9]),
        ("?min_step=-9223372036854775808&limit=1000", [0, 1, 2, 4, 5, 6, 7, 8, 9]),
    ],
)
def test_versions_are_filtered(client: TestClient, query: str, expected: list[int]) -> None:
    assert numbers(client, query) == expected


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=1001", "limit=x", "after=-2", "kind=both", "min_step=1.5", "after=", "limit=%2B5"]
)
def test_a_query_that_is_not_valid_is_refused(client: TestClient, query: str) -> None:
    answer = client.get(f"{URL}/versions?{query}")
    assert (answer.status_code, answer.json()["type"]) == (422, "urn:pulse-registry:problem:InvalidRequest")
    assert query.partition("=")[0] in answer.json()["detail"]


def test_latest_after_the_newest_is_204_and_a_run_without_versions_404(client: TestClient, store: DictStore) -> None:
    assert client.get(f"{URL}/versions/latest?after=8").json()["version"] == 9
    assert client.get(f"{URL}/versions/latest?after=-1").json()["version"] == 9
    answer = client.get(f"{URL}/versions/latest?after=9")
    assert (answer.status_code, answer.content) == (204, b"")
    fill(store, Script("young").epoch())
    assert client.get("/v1/runs/young/versions/latest").status_code == 404
    assert client.get("/v1/runs/young/versions/latest?after=-1").status_code == 204
    assert client.get("/v1/runs/young/versions").json()["versions"] == []


def test_a_version_that_was_just_committed_is_there_though_memory_lags(store: DictStore, script: Script) -> None:
    with TestClient(app_over(store, poll_seconds=600)) as client:
        assert client.get(f"{URL}/versions/latest").json()["version"] == 9
        feed = client.app.state.service.feeds.live("math")  # type: ignore[attr-defined]
        client.portal.call(feed.refresh)  # type: ignore[union-attr]  # its own first look may be under way still
        store_record(store, script.commit(layout=LAYOUT.id).records[-1])
        assert client.get(f"{URL}/versions/latest").json()["version"] == 9
        assert client.get(f"{URL}/versions/10").json()["version"] == 10
        assert client.get(f"{URL}/versions/latest").json()["version"] == 10
        store_record(store, script.commit(layout=LAYOUT.id).records[-1])
        assert client.get(f"{URL}/route?from=10&to=11").json()["target"] == 11


@pytest.mark.parametrize("base", [None, 0, 3, 7, 9])
@pytest.mark.parametrize("target", ["latest", "8", "0"])
def test_a_route_is_the_one_that_the_library_finds(
    client: TestClient, script: Script, base: int | None, target: str
) -> None:
    expected = plan(script.state, 9 if target == "latest" else int(target), have=base)
    query = f"?to={target}" + ("" if base is None else f"&from={base}")
    body = client.get(f"{URL}/route{query}").json()
    legs = [(leg["kind"], leg["base"], leg["target"], leg["nbytes"]) for leg in body["legs"]]
    assert legs == [(leg.kind, leg.base, leg.target, leg.nbytes) for leg in expected.legs]
    assert (body["base"], body["target"], body["nbytes"]) == (expected.base, expected.target, expected.nbytes)
    assert body["digest"] == script.state.versions[expected.target].digest
    assert body["layout"] == LAYOUT.id


def test_the_urls_of_a_route_read_its_objects_and_sign_false_leaves_them_out(
    client: TestClient, store: DictStore
) -> None:
    def objects(query: str) -> list[dict[str, Any]]:
        return [item for leg in client.get(f"{URL}/route{query}").json()["legs"] for item in leg["objects"]]

    found = objects("?from=0")
    assert found
    for item in found:
        assert client.get(item["url"]).content == PrefixStore(store, RUN).get(item["key"])
        assert len(client.get(item["url"]).content) == item["size"]
    assert [item["url"] for item in objects("?from=0&sign=false")] == [None] * len(found)


def test_a_route_from_a_version_to_itself_has_no_legs(client: TestClient) -> None:
    body = client.get(f"{URL}/route?from=9").json()
    assert (body["legs"], body["nbytes"], body["expires_at"]) == ([], 0, None)


@pytest.mark.parametrize("query", ["?from=10", "?to=10", "?to=999999999999"])
def test_a_route_that_leads_nowhere_is_a_404(client: TestClient, query: str) -> None:
    assert client.get(f"{URL}/route{query}").status_code == 404


@pytest.mark.parametrize(("object_cost", "cell_cost"), [(0, 0), (1000, 2), (1 << 40, 1 << 20), (0, 1 << 20)])
def test_a_route_counts_objects_and_cells_at_the_prices_that_are_asked_for(
    client: TestClient, script: Script, object_cost: int, cell_cost: int
) -> None:
    expected = plan(script.state, 9, have=0, prices=Prices(object_cost, cell_cost))
    body = client.get(f"{URL}/route?from=0&object_cost={object_cost}&cell_cost={cell_cost}").json()
    assert [(leg["kind"], leg["target"]) for leg in body["legs"]] == [(leg.kind, leg.target) for leg in expected.legs]
    plain = client.get(f"{URL}/route?from=0").json()
    assert plain["legs"] == client.get(f"{URL}/route?from=0&object_cost=65536&cell_cost=2").json()["legs"]


@pytest.mark.parametrize(
    "query",
    [
        "?object_cost=-1",
        "?object_cost=x",
        "?cell_cost=-1",
        "?from=-1",
        "?to=newest",
        "?sign=yes",
        "?from=latest",
        "?to=",
    ],
)
def test_a_route_between_what_are_no_versions_is_refused(client: TestClient, query: str) -> None:
    assert client.get(f"{URL}/route{query}").status_code == 422


def test_a_route_is_found_anew_when_the_run_changes(client: TestClient, store: DictStore, script: Script) -> None:
    assert client.get(f"{URL}/route?from=1&to=8").json()["nbytes"] == plan(script.state, 8, have=1).nbytes > 100
    store_record(store, script.attach(patches=(patch(1, 8, tag=9),)).records[-1])
    seq = len(script.records) - 1
    assert client.get(f"{URL}/log?since={seq}&wait=10").json()["records"] == [
        store.get(f"{RUN}/{keys.record_key(seq)}").decode()
    ]
    assert client.get(f"{URL}/route?from=1&to=8").json()["nbytes"] == 100


def test_a_page_ends_where_many_versions_were_looked_at_and_the_next_goes_on(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(versions, "_LOOKED", 4)
    bodies = [client.get(f"{URL}/versions").json()]
    while bodies[-1]["next"] is not None:
        bodies.append(client.get(f"{URL}/versions?after={bodies[-1]['next']}").json())
    assert [[version["version"] for version in body["versions"]] for body in bodies] == [
        [0, 1, 2],
        [4, 5, 6, 7],
        [8, 9],
    ]
    assert [body["next"] for body in bodies] == [3, 7, None]


def test_a_page_ends_where_its_versions_say_a_lot() -> None:
    store, script = DictStore(), Script("wordy").epoch()
    for _ in range(6):
        script.commit(layout=LAYOUT.id, metadata={"note": "x" * (400 << 10)})
    fill(store, script)
    with TestClient(app_over(store)) as client:
        first = client.get("/v1/runs/wordy/versions").json()
        rest = client.get(f"/v1/runs/wordy/versions?after={first['next']}").json()
    assert [[version["version"] for version in body["versions"]] for body in (first, rest)] == [[0, 1, 2], [3, 4, 5]]
    assert rest["next"] is None


@pytest.mark.parametrize("kind", ["keyframe", "patch"])
def test_a_page_of_one_kind_makes_the_bodies_that_it_shows_and_no_others(
    client: TestClient, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []

    def counted(state: RunState, entry: VersionEntry) -> VersionBody:
        made.append(entry.version)
        return version_body(state, entry)

    monkeypatch.setattr(versions, "version_body", counted)
    assert numbers(client, f"?kind={kind}&limit=2") == made == ([0, 9] if kind == "keyframe" else [1, 2])


@pytest.mark.slow
def test_a_long_route_comes_in_pieces_that_lead_where_the_whole_one_does() -> None:
    store = DictStore()
    script = run_of(400).attach(patches=(patch(100, 120, size=50),))
    fill(store, script)
    with TestClient(app_over(store)) as client:
        whole = client.get(f"{URL}/route").json()
        assert (len(whole["legs"]), whole["next"]) == (381, None)
        for limit in (1000, 381, 380, 77):
            pieces = [client.get(f"{URL}/route?limit={limit}").json()]
            while (here := pieces[-1]["next"]) is not None:
                assert (pieces[-1]["target"], len(pieces[-1]["legs"])) == (here, limit)
                assert pieces[-1]["digest"] == script.state.versions[here].digest
                assert pieces[-1]["nbytes"] == sum(leg["nbytes"] for leg in pieces[-1]["legs"])
                pieces.append(client.get(f"{URL}/route?from={here}&limit={limit}").json())
            assert [leg for piece in pieces for leg in piece["legs"]] == whole["legs"]
            assert pieces[-1]["target"] == 399
        for limit in (0, 1001):
            assert client.get(f"{URL}/route?limit={limit}").status_code == 422
