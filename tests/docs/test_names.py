"""Files, modules and classes that documents name are there; decisions (adr/) keep the names of their day."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT
from tests.support.modules import PACKAGES, names, place

PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    *sorted(page for page in (ROOT / "docs").rglob("*.md") if page.parent.name != "adr"),
]
FILE = re.compile(r"`([\w./-]+\.py)(?:::(\w+))?`")
MODULE = re.compile(rf"(?<![\w/.-])((?:{'|'.join(PACKAGES)})(?:\.[A-Za-z_]\w*)+)")
CLASS = re.compile(r"`([A-Z][a-z]+(?:[A-Z][a-z0-9]+)+)\b[^`]*`")
DEFINED = re.compile(r"(?m)^ *class (\w+)\b")
ABOVE = [ROOT, ROOT / "examples", *PACKAGES.values(), *(path.parent for path in PACKAGES.values())]
"""The folders below which a document says where a file is."""
THEIRS = {"slime/utils/disk_delta.py", "update_weight_from_disk_delta.py", "trainer.py", "worker.py"}
"""Files of other projects, and those that the tutorial's reader writes."""


def absent_files(text: str) -> list[str]:
    """Return the files, and the functions in them, that a text names and that are nowhere."""
    found = []
    for file, name in sorted({*FILE.findall(text)} - {(file, "") for file in THEIRS}):
        at = next((folder / file for folder in ABOVE if (folder / file).is_file()), None)
        if "NAME" not in file and (at is None or (name and name not in names(at))):
            found.append(f"{file}::{name}" if name else file)
    return found


def absent_modules(text: str) -> list[str]:
    """Return the modules, and the names in them, that a text names and that are nowhere."""
    found = []
    for name in sorted({*MODULE.findall(text)}):
        module, _, last = name.rpartition(".")
        path = place(module)
        there = place(name) is not None or (path is not None and {last, "__getattr__"} & names(path))
        if not there and last not in ("md", "toml"):
            found.append(name)
    return found


@cache
def classes() -> frozenset[str]:
    """Return the names of all classes and type aliases of the packages and the tests."""
    files = (file for path in PACKAGES.values() for file in path.rglob("*.py"))
    return frozenset(name for file in files for name in DEFINED.findall(file.read_text(encoding="utf-8")))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_files_and_modules_that_a_page_names_are_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert absent_files(text) + absent_modules(text) == []


def test_classes_that_the_architecture_names_are_there() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert sorted({*CLASS.findall(text)} - classes()) == ["SlowDown"], "which is an error of S3"


def test_a_name_that_is_not_there_is_found() -> None:
    text = (
        "`pulse_registry/store/gone.py`, `store/open.py`, `tests/docs/test_names.py::gone`, `push/upload.py`, "
        "`pulse_registry.store.gone`, pulse_registry.testing.StoreTests, `python -m tests.gone --seed 1`, `Registry`"
    )
    assert absent_files(text) == ["pulse_registry/store/gone.py", "tests/docs/test_names.py::gone"]
    assert absent_modules(text) == ["pulse_registry.store.gone", "tests.gone"]
    assert CLASS.findall("`RunState`, `GoneState.copy`, `PUT`, `Registry`") == ["RunState", "GoneState"]
