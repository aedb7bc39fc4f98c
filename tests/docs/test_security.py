"""docs/security.md claims what is tested: every test that it names is there, and every claim names one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pulse_registry.errors import Distrust

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`([\w/]+\.py)::(\w+)`", DOCUMENT)))
ADVERSARIES = re.findall(r"^### (.+?)\n(.*?)(?=^##)", DOCUMENT, re.M | re.S)


def rows(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("| ") and not line.startswith(("| ---", "| stopped"))]


@pytest.mark.parametrize(("file", "name"), NAMED)
def test_a_test_that_is_named_is_there(file: str, name: str) -> None:
    assert re.search(rf"^def {name}\(", (ROOT / "tests" / file).read_text(encoding="utf-8"), re.M)


@pytest.mark.parametrize("adversary", [title for title, _ in ADVERSARIES])
def test_every_claim_names_a_test(adversary: str) -> None:
    claims = rows(dict(ADVERSARIES)[adversary])
    assert claims
    assert [claim for claim in claims if not re.search(r"`[\w/]+\.py::\w+`", claim)] == []


def test_all_adversaries_are_there() -> None:
    assert len(ADVERSARIES) == 13


def test_every_bound_names_a_test() -> None:
    bounds = DOCUMENT.partition("## Bounds\n")[2].partition("\n## ")[0].splitlines()
    table = [line for line in bounds if line.startswith("| ") and not line.startswith(("| ---", "| input |"))]
    assert len(table) > 30
    assert [row for row in table if not re.search(r"`[\w/]+\.py::\w+`", row)] == []


def test_every_reason_for_a_refusal_is_explained_and_tested() -> None:
    table = DOCUMENT.partition("| reason |")[2].partition("\n\n")[0]
    assert set(re.findall(r"^\| `(\w+)` \|.*::\w+` \|$", table, re.M)) == {reason.value for reason in Distrust}
