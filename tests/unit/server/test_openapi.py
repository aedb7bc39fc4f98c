"""The API's description: current, complete, and true of what the routes answer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from fastapi.testclient import TestClient

from pulse_server import openapi
from tests.support.apps import app_over, fill, run_of
from tests.support.operations import api
from tests.support.records import RUN, DictStore
from tests.unit.server.described import meaning

DOCUMENT = api()
OPERATIONS = [(path, method) for path, item in sorted(DOCUMENT["paths"].items()) for method in sorted(item)]
SCOPES = {"none", "any", "read", "publish", "mirror", "admin"}


def test_the_file_is_current() -> None:
    kept = (Path(__file__).parents[3] / openapi.FILE).read_text(encoding="utf-8")
    assert kept == openapi.text(), "run: python -m pulse_server.openapi"


def test_the_file_means_what_the_service_does_whatever_release_of_fastapi_says_it() -> None:
    kept = json.loads((Path(__file__).parents[3] / openapi.FILE).read_text(encoding="utf-8"))
    assert meaning(kept) == meaning(DOCUMENT)
    assert len(meaning(kept)) == len(OPERATIONS) + 2


def test_the_file_can_be_written_anywhere(tmp_path: Path) -> None:
    assert openapi.main([str(tmp_path / "api.json")]) == 0
    assert json.loads((tmp_path / "api.json").read_text()) == DOCUMENT
    assert openapi.main(["a", "b"]) == 2


def test_every_line_of_the_tables_in_the_docs_is_an_operation_and_the_other_way_round() -> None:
    text = (Path(__file__).parents[3] / "docs" / "http.md").read_text(encoding="utf-8")
    told = set()
    for line in text.splitlines():
        if line.startswith("| `") and "page" not in line:
            methods, scope = line.split("|")[1].strip(), line.split("|")[2].strip()
            *verbs, last = methods.split("`, `")
            method, _, target = last.strip("`").partition(" ")
            for verb in [*(v.strip("`") for v in verbs), method]:
                told.add((target.partition("?")[0], verb.lower(), scope))
    named = {(path, method, DOCUMENT["paths"][path][method]["x-pulse-scope"]) for path, method in OPERATIONS}
    assert told == named


@pytest.mark.parametrize(("path", "method"), OPERATIONS, ids=lambda part: part)
def test_an_operation_is_told_in_full(path: str, method: str) -> None:
    told = DOCUMENT["paths"][path][method]
    assert told["summary"]
    assert told["x-pulse-scope"] in SCOPES
    assert told.get("security", []) == ([] if told["x-pulse-scope"] == "none" else [{"token": []}])
    named = {parameter["name"] for parameter in told.get("parameters", []) if parameter["in"] == "path"}
    assert named == {part[1:-1] for part in path.split("/") if part.startswith("{")}
    statuses = {int(status) for status in told["responses"]}
    assert {status for status in statuses if status < 400}
    if told["x-pulse-scope"] not in ("none", "any"):
        assert {401, 403, 429, 503} <= statuses
    for status, answer in told["responses"].items():
        assert answer["description"], status
        for media in answer.get("content", {}).values():
            assert "schema" in media
            if int(status) < 400:
                assert "example" in media
    for media in told.get("requestBody", {}).get("content", {}).values():
        assert "schema" in media


def test_operations_have_names_of_their_own() -> None:
    names = [DOCUMENT["paths"][path][method]["operationId"] for path, method in OPERATIONS]
    assert len(set(names)) == len(names)


def resolved(schema: dict[str, Any]) -> dict[str, Any]:
    return {**schema, "components": DOCUMENT["components"]}


def examples() -> Iterator[tuple[str, dict[str, Any], Any]]:
    for path, method in OPERATIONS:
        told = DOCUMENT["paths"][path][method]
        bodies = [told.get("requestBody", {}), *told["responses"].values()]
        for media in (media for body in bodies for media in body.get("content", {}).values()):
            examples = [media["example"]] if "example" in media else media["schema"].get("examples", [])
            for example in examples if "$ref" in media["schema"] else []:
                yield f"{method} {path}", media["schema"], example
        for parameter in told.get("parameters", []):
            for example in parameter["schema"].get("examples", []):
                yield f"{method} {path} {parameter['name']}", parameter["schema"], example


def test_every_example_is_valid() -> None:
    assert len([*examples()]) > 40
    for name, schema, example in examples():
        try:
            jsonschema.validate(example, resolved(schema))
        except jsonschema.ValidationError as error:
            pytest.fail(f"{name}: {error.message}")


def test_answers_are_as_they_are_told() -> None:
    store = DictStore()
    fill(store, run_of(3))
    checked = 0
    with TestClient(app_over(store)) as client:
        client.put(f"/v1/runs/{RUN}/workers/w", json={"version": 0, "digest": "f" * 32})
        for path, method in OPERATIONS:
            if method != "get" or path.endswith(
                ("/events", "/metrics", "/objects/{path}", "/segments/{name}", "/_bases/{base}/{file}")
            ):
                continue
            target = path.format(run=RUN, version="latest", seq="0", id="0" * 64, key="mirror")
            answer = client.get(target)
            media = DOCUMENT["paths"][path][method]["responses"][str(answer.status_code)]["content"]
            media_type = answer.headers["content-type"]
            assert media_type in media, target
            jsonschema.validate(answer.json(), resolved(media[media_type]["schema"]))
            checked += 1
    assert checked >= 15


def test_no_description_is_served_that_would_need_the_internet() -> None:
    with TestClient(app_over(DictStore())) as client:
        assert client.get("/docs").status_code == client.get("/redoc").status_code == 404
        assert client.app.openapi() == DOCUMENT  # type: ignore[attr-defined]
