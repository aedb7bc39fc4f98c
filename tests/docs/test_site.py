"""The site's check sees what a page loads from other hosts and links that lead nowhere; links become the site's own."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path
from typing import Any

import pytest

from tests.docs.blocks import ROOT

pytest.importorskip("mkdocs")
openapi = pytest.importorskip("openapidocs.mk.v3")
HOOKS: dict[str, Any] = runpy.run_path(str(ROOT / "docs" / "tools" / "hooks.py"))
GOOD = (
    '<link rel="canonical" href="https://example.com/x"><link rel="stylesheet" href="a.css"><img src="data:,">'
    '<h2 id="part">x</h2><a href="#part">x</a><a href="other.html#there">x</a><a href="https://example.com">x</a>'
)
FAULTS = {
    '<script src="https://cdn.example.com/x.js"></script>': "index.html loads https://cdn.example.com/x.js",
    '<link rel="stylesheet" href="//cdn.example.com/x.css">': "index.html loads //cdn.example.com/x.css",
    '<img src="http://example.com/x.png">': "index.html loads http://example.com/x.png",
    "<style>@import 'https://fonts.example.com/x'</style>": "index.html loads https://fonts.example.com/x",
    '<a href="gone.html">x</a>': "index.html links to gone.html, which is not there",
    '<img src="gone.svg">': "index.html links to gone.svg, which is not there",
    '<a href="#gone">x</a>': "index.html links to #gone, which has no such part",
    '<a href="other.html#gone">x</a>': "index.html links to other.html#gone, which has no such part",
}


def site_of(text: str, folder: Path) -> Path:
    (folder / "index.html").write_text(text)
    (folder / "other.html").write_text('<p id="there">x</p>')
    (folder / "a.css").write_text("p { background: url('data:,') }")
    return folder


def test_a_site_that_keeps_to_itself_has_no_fault(tmp_path: Path) -> None:
    assert HOOKS["faults"](site_of(GOOD, tmp_path)) == []


@pytest.mark.parametrize("text", FAULTS)
def test_what_a_page_loads_from_elsewhere_and_a_link_to_nothing_are_faults(text: str, tmp_path: Path) -> None:
    (fault,) = HOOKS["faults"](site_of(GOOD + text, tmp_path))
    assert fault.startswith(FAULTS[text])


def test_a_style_that_loads_from_elsewhere_is_a_fault(tmp_path: Path) -> None:
    site = site_of(GOOD, tmp_path)
    (site / "a.css").write_text("@font-face { src: url(https://fonts.example.com/x.woff2) }")
    assert HOOKS["faults"](site) == ["a.css loads https://fonts.example.com/x.woff2 from another host"]


@pytest.mark.parametrize(
    ("page", "link", "path"),
    [
        ("docs/index.md", "spec.md", "docs/spec.md"),
        ("docs/how-to/index.md", "../../deploy/costs.py", "deploy/costs.py"),
        ("CONTRIBUTING.md", "docs/spec.md", "docs/spec.md"),
        ("docs/index.md", "../nothing.md", None),
        ("docs/index.md", "https://example.com/spec.md", None),
    ],
)
def test_a_link_leads_to_a_file_of_the_repository(page: str, link: str, path: str | None) -> None:
    assert HOOKS["target"](page, link) == path


def test_pages_and_their_sources_name_each_other() -> None:
    for path in ("docs/spec.md", "docs/how-to/index.md", "CONTRIBUTING.md", "deploy/costs.py"):
        assert HOOKS["origin"](HOOKS["place"](path)) == path


def test_the_page_of_operations_has_each_schema_once_and_links_to_it() -> None:
    document = json.loads((ROOT / "schemas" / "openapi.json").read_text(encoding="utf-8"))
    templates = str(ROOT / "docs" / "tools" / "openapi")
    page = openapi.OpenAPIV3DocumentationHandler(document, style="MKDOCS", templates_path=templates).write()
    parts = re.findall(r"\{ #schema-(\w+) \}", page)
    assert parts == sorted(name.lower() for name in document["components"]["schemas"])
    assert {*re.findall(r"\]\(#schema-(\w+)\)", page)} <= {*parts}
    operations = [f"### {verb.upper()} {path}\n" for path, item in document["paths"].items() for verb in item]
    assert all(page.count(heading) == 1 for heading in operations)
    assert len(page) < 150_000
