"""The store of the how-to page goes through the tests that the page names, and carries a run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.waiting import HANG_S

pytestmark = pytest.mark.slow

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "write-a-store.md"
TITLED = re.compile(r'^```python title="(?P<name>[\w.]+)"$\n(?P<code>.*?)^```$', re.MULTILINE | re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The page's files, where a reader would have them."""
    for block in TITLED.finditer(PAGE.read_text()):
        (tmp_path / block["name"]).write_text(block["code"])
    return tmp_path


def outcome(folder: Path, *arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, capture_output=True, text=True, timeout=HANG_S, check=False
    )
    return done.returncode, done.stdout + done.stderr


def test_the_store_of_the_page_passes_the_tests_that_the_page_runs_and_carries_a_run(folder: Path) -> None:
    code, said = outcome(folder, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_sqlite_store.py")
    assert code == 0, said
    assert re.search(r"1\d\d passed in", said), said
    code, said = outcome(folder, "use.py")
    assert code == 0, said


def test_a_store_that_breaks_the_contract_is_found_out(folder: Path) -> None:
    store = folder / "sqlite_store.py"
    store.write_text(store.read_text().replace('"INSERT" if if_absent else "REPLACE"', '"REPLACE"'))
    code, said = outcome(folder, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "create", "test_sqlite_store.py")
    assert code == 1
    failed = set(re.findall(r"FAILED .*::(\w+)", said))
    assert failed >= {
        "test_create_if_absent_writes_a_free_key_and_refuses_a_taken_one",
        "test_of_many_threads_that_create_a_key_exactly_one_wins",
    }
    assert "Failed: DID NOT RAISE" in said
