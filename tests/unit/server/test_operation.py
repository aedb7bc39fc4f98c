"""What all path operations have in common: the token before all else, bounds of queries, and what is remembered."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient

from pulse_server.routes import operation, versions
from pulse_server.routes.operation import Operation
from pulse_server.tokens import TokenSet, new_token
from tests.support.apps import app_over, fill, run_of
from tests.support.records import RUN, DictStore, patch
from tests.unit.server.edges import NOW, bearer

READER, READER_ENTRY = new_token("reader", "read", (RUN,), now=NOW)
OTHER, OTHER_ENTRY = new_token("other", "read", ("elsewhere",), now=NOW)
SHOW = next(route for route in versions.router.routes if isinstance(route, Operation) and route.name == "show_version")
LATEST = f"/v1/runs/{RUN}/versions/latest"
KEY = patch(0, 1).object.key


@pytest.fixture
def client() -> Iterator[TestClient]:
    store = DictStore()
    fill(store, run_of(3))
    tokens = TokenSet(tokens=(READER_ENTRY, OTHER_ENTRY))
    with TestClient(app_over(store, insecure_open=False, tokens=tokens)) as client:
        yield client


def known() -> dict[tuple[object, ...], dict[str, object]]:
    assert SHOW.known is not None
    return SHOW.known


def test_a_question_is_read_once_and_its_asker_checked_each_time(client: TestClient) -> None:
    known().clear()
    for _ in range(2):
        assert client.get(LATEST, headers=bearer(READER)).json()["version"] == 2
        assert client.get(f"/v1/runs/{RUN}/versions/1", headers=bearer(READER)).json()["version"] == 1
        assert client.get(f"{LATEST}?after=5", headers=bearer(READER)).status_code == 204
        assert client.get(LATEST, headers=bearer(OTHER)).status_code == 403
        assert client.get(LATEST).status_code == 401
        assert client.get(f"{LATEST}?after=x", headers=bearer(READER)).status_code == 422
        assert client.get(LATEST.replace(RUN, "_"), headers=bearer(READER)).status_code == 400
        assert client.get(LATEST.replace(RUN, "elsewhere"), headers=bearer(OTHER)).status_code == 404
    assert sorted(map(str, known())) == ["('1', b'')", "('latest', b'')", "('latest', b'after=5')"]


def test_a_run_is_the_same_in_capitals_also_where_its_question_is_known(client: TestClient) -> None:
    for _ in range(2):
        assert client.get(LATEST.replace(RUN, RUN.upper()), headers=bearer(READER)).json()["version"] == 2


def test_no_more_questions_are_remembered_than_there_is_room_for(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    known().clear()
    monkeypatch.setattr(operation, "_MOST_KNOWN", 2)
    for number in range(9):
        assert client.get(f"{LATEST}?after={number}", headers=bearer(READER)).status_code in (200, 204)
        assert len(known()) <= 2
    before = dict(known())
    assert client.get(f"{LATEST}?{'x' * 300}=1", headers=bearer(READER)).status_code == 200
    assert known() == before


@pytest.mark.parametrize("query", ["x=" + "1" * (8 << 10), "&".join(["x=1"] * 65)], ids=["long", "many fields"])
def test_a_query_is_bounded_before_it_is_read_and_after_its_token(client: TestClient, query: str) -> None:
    assert client.get(f"{LATEST}?{query}").status_code == 401
    refused = client.get(f"{LATEST}?{query}", headers=bearer(READER))
    assert (refused.status_code, refused.json()["type"]) == (422, "urn:pulse-registry:problem:InvalidRequest")


def test_a_body_is_json_whatever_its_request_calls_it(client: TestClient) -> None:
    for headers in ({}, {"content-type": "text/plain"}, {"content-type": "application/x-www-form-urlencoded"}):
        asked = json.dumps({"keys": [KEY]}).encode()
        answer = client.post(f"/v1/runs/{RUN}/urls", content=asked, headers=bearer(READER) | headers)
        assert (answer.status_code, [*answer.json()["urls"]]) == (200, [KEY])


def test_a_token_is_asked_for_before_what_is_wrong_with_a_request(client: TestClient) -> None:
    for method, path in (("POST", f"/v1/runs/{RUN}/urls"), ("GET", f"/v1/runs/{RUN}/log?since=x")):
        assert client.request(method, path, content=b"no json").status_code == 401
        assert client.request(method, path, content=b"no json", headers=bearer(OTHER)).status_code == 403
        assert client.request(method, path, content=b"no json", headers=bearer(READER)).status_code == 422


def test_a_path_says_all_methods_that_it_takes(client: TestClient) -> None:
    refused = client.patch(f"/v1/runs/{RUN}/objects/patch/x", headers=bearer(READER))
    assert (refused.status_code, refused.headers.get("allow")) in ((405, "GET, HEAD, PUT"),)
    assert client.head(LATEST, headers=bearer(READER)).status_code == 200
