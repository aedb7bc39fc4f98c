"""The targets of the Makefile that run tests: each test is in one of them, and CI calls them."""

from __future__ import annotations

import itertools
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CI = (ROOT / ".ci" / "run").read_text()
TARGETS = ("test", "test-slow", "sweep")


def chosen(target: str) -> str:
    """Return the expression over marks by which a target first chooses tests."""
    planned = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=True)
    (found, *_) = re.findall(r' -m pytest .*-m (?:"([^"]+)"|(\w+))', planned.stdout)
    return "".join(found)


def test_a_test_with_any_marks_is_run_by_one_target() -> None:
    expressions = {target: chosen(target) for target in TARGETS}
    for slow, sweep in itertools.product((False, True), repeat=2):
        runs = [name for name, one in expressions.items() if eval(one, {"slow": slow, "sweep": sweep})]
        assert runs == ["sweep" if sweep else "test-slow" if slow else "test"]


@pytest.mark.parametrize("target", TARGETS[:2])
def test_ci_runs_what_is_not_in_the_sweep(target: str) -> None:
    assert re.search(rf"^timeout .* make {target}$", CI, re.MULTILINE)
