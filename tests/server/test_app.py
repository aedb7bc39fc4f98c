"""The service answers from the library's public API, and turns its errors into problem documents."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from http import HTTPStatus

import numpy as np
import pytest
from fastapi.testclient import TestClient

import pulse_registry
from pulse_registry import errors
from pulse_server import create_app
from pulse_server.problems import STATUS, status_of

ROOT = "memory://server-tests"


@pytest.fixture(scope="module", autouse=True)
def _run() -> None:
    weights = {"w": np.zeros((4, 25), np.float32)}
    with pulse_registry.open(ROOT, run="math-7b", backend="reference") as registry:
        registry.push(10, weights)
        weights["w"][:3, 0] = 1.0
        registry.push(20, weights, metadata={"reward": 0.5})


@pytest.fixture
def client() -> Iterator[TestClient]:
    with TestClient(create_app(ROOT)) as client:
        yield client


def test_the_service_says_that_it_is_up(client: TestClient) -> None:
    assert client.get("/healthz").json() == {"status": "ok"}


def test_versions_are_listed_oldest_first(client: TestClient) -> None:
    body = client.get("/v1/runs/math-7b/versions").json()
    assert body["run"] == "math-7b"
    assert [(v["version"], v["step"], v["kind"]) for v in body["versions"]] == [
        (0, 10, "keyframe"),
        (1, 20, "patch"),
    ]


def test_a_version_is_told_as_the_library_tells_it(client: TestClient) -> None:
    with pulse_registry.open(ROOT, run="math-7b", backend="reference") as registry:
        expected = asdict(registry.version("latest"))
    assert client.get("/v1/runs/math-7b/versions/latest").json() == expected
    assert (expected["changed"], expected["cells"], expected["metadata"]) == (3, 100, {"reward": 0.5})


@pytest.mark.parametrize(("number", "step"), [("latest", 20), ("0", 10), ("1", 20)])
def test_one_version_is_found_by_number_or_as_the_newest(client: TestClient, number: str, step: int) -> None:
    answer = client.get(f"/v1/runs/math-7b/versions/{number}")
    assert answer.status_code == 200
    assert answer.json()["step"] == step


@pytest.mark.parametrize("path", ["/v1/runs/math-7b/versions/7", "/v1/runs/other/versions", "/nothing"])
def test_what_is_not_there_is_a_404_problem(client: TestClient, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/problem+json"
    body = answer.json()
    assert (body["status"], body["title"], body["instance"]) == (404, "Not Found", path)


@pytest.mark.parametrize("run", ["UPPER", ".hidden", "a b", "x" * 129, "a%0A", "%2e%2e"])
def test_a_name_that_no_run_can_have_is_refused(client: TestClient, run: str) -> None:
    answer = client.get(f"/v1/runs/{run}/versions")
    assert answer.status_code in {404, 422}
    assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize("number", ["-1", "01", "newest", "9" * 30, "1.0"])
def test_a_version_that_is_no_number_is_refused(client: TestClient, number: str) -> None:
    assert client.get(f"/v1/runs/math-7b/versions/{number}").status_code == 422


def test_the_service_changes_nothing(client: TestClient) -> None:
    answer = client.post("/v1/runs/math-7b/versions", json={})
    assert answer.status_code == 405
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["allow"] == "GET"


def test_a_store_failure_is_a_503_that_keeps_the_stores_words_to_itself(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise errors.StoreUnavailable("s3://secret-bucket: access denied for key AKIA...")

    monkeypatch.setattr(pulse_registry, "open", fail)
    answer = client.get("/v1/runs/math-7b/versions")
    assert answer.status_code == 503
    assert "secret" not in answer.text


def test_every_error_of_the_library_has_a_status() -> None:
    kinds = [k for k in vars(errors).values() if isinstance(k, type) and issubclass(k, errors.PulseError)]
    assert set(STATUS) <= set(kinds)
    for kind in kinds:
        assert isinstance(status_of(kind("message")), HTTPStatus)
    assert status_of(errors.Fenced("message")) == HTTPStatus.CONFLICT
