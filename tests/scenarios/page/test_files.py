"""The page's files: strict headers, caches that can't go stale, no address outside the service."""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from pulse_server.page import static
from pulse_server.transport.problems import install_problems

NAMES = sorted(path.name for path in static.FOLDER.iterdir() if path.suffix != ".html")


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    app = FastAPI()
    app.include_router(static.router)
    install_problems(app)
    with TestClient(app) as client:
        yield client


def directives(policy: str) -> dict[str, str]:
    parts = (part.strip().partition(" ") for part in policy.split(";"))
    return {name: sources for name, _, sources in parts}


@pytest.mark.parametrize("path", ["/", *(f"/assets/{name}" for name in NAMES), f"/assets/{static.PLOTLY}"])
def test_every_file_runs_no_script_but_the_services_own(client: TestClient, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 200
    policy = directives(answer.headers["content-security-policy"])
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == "'self'"
    assert policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == "'none'"
    assert policy["base-uri"] == policy["form-action"] == "'none'"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"


@pytest.mark.parametrize("path", ["/", "/assets/app.js", f"/assets/{static.PLOTLY}"])
def test_a_file_that_is_known_is_not_sent_again(client: TestClient, path: str) -> None:
    etag = client.get(path).headers["etag"]
    known = client.get(path, headers={"If-None-Match": f'"other", W/{etag}'})
    assert (known.status_code, known.content, known.headers["etag"]) == (304, b"", etag)
    assert client.get(path, headers={"If-None-Match": '"other"'}).status_code == 200


def test_a_file_is_compressed_for_those_who_can_read_that(client: TestClient) -> None:
    path = f"/assets/{static.PLOTLY}"
    plain = client.get(path, headers={"Accept-Encoding": "identity"})
    with client.stream("GET", path, headers={"Accept-Encoding": "br, gzip"}) as packed:
        raw = b"".join(packed.iter_raw())
    assert "content-encoding" not in plain.headers
    assert packed.headers["content-encoding"] == "gzip"
    assert gzip.decompress(raw) == plain.content
    assert len(raw) < len(plain.content) / 2
    assert "accept-encoding" in plain.headers["vary"].lower()


def test_a_coding_that_is_refused_is_not_used(client: TestClient) -> None:
    answer = client.get("/assets/app.js", headers={"Accept-Encoding": "gzip;q=0, identity"})
    assert "content-encoding" not in answer.headers


def test_plotly_is_kept_for_a_year_under_an_address_that_names_its_content(client: TestClient) -> None:
    text = client.get("/").text
    address = re.search(r'data-plotly="([^"]+)"', text)
    assert address is not None
    answer = client.get(f"/{address[1]}")
    assert "max-age=31536000" in answer.headers["cache-control"]
    assert answer.headers["etag"].strip('"') in address[1]
    assert "plotly.js" in answer.text[:200]
    assert client.get("/").headers["cache-control"] == "no-cache"
    assert client.get("/assets/app.js").headers["cache-control"] == "no-cache"


@pytest.mark.parametrize("name", ["index.html", "nothing.js", "..%2fpage.py", "%2e%2e/page.py", ".hidden"])
def test_what_is_no_file_of_the_page_is_not_found(client: TestClient, name: str) -> None:
    assert client.get(f"/assets/{name}").status_code == 404


def test_a_head_request_has_no_body(client: TestClient) -> None:
    assert client.head("/").status_code == 200


@pytest.mark.parametrize("name", ["index.html", *NAMES])
def test_no_address_is_absolute_or_elsewhere(name: str) -> None:
    text = (static.FOLDER / name).read_text(encoding="utf-8")
    addresses = set(re.findall(r"""(?:https?:)?//[a-z][^\s"'`)<]*""", re.sub(r"^\s*//.*$", "", text, flags=re.M)))
    assert addresses <= {"http://www.w3.org/2000/svg"}  # a name, not an address
    assert not re.findall(r"""(?:href|src|action)="/""", text)
    assert not re.findall(r"""["'`]/(?:v1|assets)""", text)


@pytest.mark.parametrize("name", [name for name in NAMES if name.endswith(".js")])
def test_no_script_makes_markup_of_text(name: str) -> None:
    text = (static.FOLDER / name).read_text(encoding="utf-8")
    assert not re.findall(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|DOMParser", text
    )


def test_the_page_has_no_inline_script_or_handler() -> None:
    text = (static.FOLDER / "index.html").read_text(encoding="utf-8")
    assert re.findall(r"<script([^>]*)>", text) == [' type="module" src="assets/app.js"']
    assert not re.findall(r"\son[a-z]+=", text)
    assert "style=" not in text
