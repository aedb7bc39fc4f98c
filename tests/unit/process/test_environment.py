"""Environment variables: one table, which the documentation has and which nothing else reads."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import pulse_registry
from pulse_registry.process import environment
from pulse_registry.process.environment import READ, VARIABLES, Variable, strays

PACKAGE = Path(pulse_registry.__file__).parent
DOCUMENT = PACKAGE.parent / "docs/cli.md"
SETS = {PACKAGE / f"demo/{module}.py" for module in ("place", "policy", "preload", "process", "programs")}
"""Set variables of PyTorch's, of Hugging Face's, and the keys of the demo's bucket, for the demo's own processes."""


def test_no_other_module_reads_the_environment() -> None:
    reading = {path for path in PACKAGE.rglob("*.py") if re.search(r"os\.environ|getenv", path.read_text())}
    assert reading - SETS == {PACKAGE / "process/environment.py"}


def test_no_other_module_names_a_variable_of_ours_to_read_it() -> None:
    for path in PACKAGE.rglob("*.py"):
        assert not re.search(r'envvar="|= "PULSE_', path.read_text().replace('PREFIX: Final = "PULSE_"', "")), path


def test_the_documentation_has_the_table() -> None:
    rows = [f"| `{one.name}` | {one.meaning} | {one.default} |" for one in VARIABLES]
    assert "\n".join(rows) in DOCUMENT.read_text()


def test_every_variable_is_in_the_table_once() -> None:
    kept = {value for value in vars(environment).values() if isinstance(value, Variable)}
    assert kept == set(VARIABLES)
    assert len({one.name for one in VARIABLES}) == len(VARIABLES)


def test_an_empty_variable_is_one_that_is_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PULSE_CACHE", "")
    assert environment.CACHE.read() is None
    monkeypatch.setenv("PULSE_CACHE", "/cache")
    assert environment.CACHE.read() == "/cache"


def test_a_misspelt_name_is_told_with_the_one_that_is_meant() -> None:
    assert strays(["PULSE_TOKN", "PULSE_TOKEN", "PATH"], READ) == {"PULSE_TOKN": "PULSE_TOKEN"}
