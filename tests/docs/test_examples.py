"""The documentation's examples run.

Every ```python block of README.md and docs/ runs: a file's blocks in order, in one namespace, in an
empty folder; the tutorial has a test of its own. ```console and ```bash blocks run where `<!-- test -->`
stands above them; in a console block, only the lines that begin with `$ ` are commands (`console.py`).
`<!-- skip: reason -->` above a block leaves it out.
"""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

import pytest

from tests.docs.blocks import ROOT, Block, blocks
from tests.docs.console import bash, run_line
from tests.support.sampling import slow_but

FILES = [ROOT / "README.md", *sorted(page for page in (ROOT / "docs").rglob("*.md") if page.parent.name != "tutorial")]
SLOW = ("cli.md", "deploy-the-service.md", "examine-a-store.md", "import-and-export.md", "sign-records.md")
TRIED = slow_but((file for file in FILES if file.name not in SLOW), FILES)


def run_python(block: Block, file: Path, namespace: dict[str, Any]) -> None:
    # Blank lines in front: a traceback then names the line of the Markdown file.
    source = "\n" * (block.line - 1) + block.code
    exec(compile(source, str(file), "exec", dont_inherit=True), namespace)


def run_shell(block: Block, file: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if block.language == "bash":
        code, printed = bash(block.code, folder)
        assert code == 0, f"{file.name}:{block.line}\n{printed}"
        return
    for number, line in enumerate(block.code.splitlines(), block.line):
        if line.strip().startswith("$ "):
            code, printed = run_line(line.strip()[2:], folder, monkeypatch)
            assert code == 0, f"{file.name}:{number}\n{printed}"


def run_file(file: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """Run the examples of one file; returns how many ran."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    chosen = [block for block in blocks(file.read_text(encoding="utf-8")) if block.runs]
    for block in chosen:
        if block.language == "python":
            run_python(block, file, namespace)
        else:
            run_shell(block, file, folder, monkeypatch)
    return len(chosen)


@pytest.mark.parametrize("file", TRIED, ids=lambda file: str(file.relative_to(ROOT)))
def test_every_example_of_a_document_runs(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_file(file, tmp_path, monkeypatch)


GOOD = "```python\nx = 1\n```\ntext\n```python\nassert x == 1\n```\n"
FAILING = [
    ("python", "```python\nx = 1\n```\n\n```python\nassert x == 2\n```\n"),
    ("console", "<!-- test -->\n\n```console\n$ true\ntrue\n$ false\n```\n"),
    ("bash", "<!-- test -->\n```bash\nfalse\ntrue\n```\n"),
]
LEFT_OUT = [
    ("unmarked shell", "```bash\nfalse\n```\n"),
    ("skipped", "<!-- skip: needs a bucket -->\n```python\nraise SystemExit(1)\n```\n"),
    ("another language", "```json\n{\n```\n"),
]


def test_the_blocks_of_a_file_share_a_namespace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "good.md"
    file.write_text(GOOD)
    assert run_file(file, tmp_path, monkeypatch) == 2


@pytest.mark.parametrize("text", [text for _, text in FAILING], ids=[name for name, _ in FAILING])
def test_a_wrong_example_fails(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "wrong.md"
    file.write_text(text)
    with pytest.raises(AssertionError) as caught:
        run_file(file, tmp_path, monkeypatch)
    where = traceback.extract_tb(caught.value.__traceback__)[-1]
    assert "wrong.md:" in str(caught.value) or (where.filename, where.lineno) == (str(file), 6)


@pytest.mark.parametrize("text", [text for _, text in LEFT_OUT], ids=[name for name, _ in LEFT_OUT])
def test_only_chosen_blocks_run(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "other.md"
    file.write_text(text)
    assert run_file(file, tmp_path, monkeypatch) == 0
