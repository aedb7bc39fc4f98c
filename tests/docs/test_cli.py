"""docs/cli.md names every command of ``pulse``, and no other; what no test can run of the pages is a command, too."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
from typer.main import get_command

from pulse_registry.cli.app import app
from tests.docs.blocks import ROOT, blocks
from tests.support.command_line import parse


def names(group: Any, before: str = "") -> set[str]:
    found = set()
    for name, command in group.commands.items():
        found |= names(command, f"{name} ") if hasattr(command, "commands") else {before + name}
    return found


def test_the_page_names_every_command() -> None:
    text = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    table = text.split("\n## Commands\n")[1].split("\n## ")[0]
    told = {" ".join(re.findall(r"[a-z-]+", row)[:2]) for row in re.findall(r"(?m)^\| `([a-z -]+)", table)}
    groups = {name.split()[0] for name in names(get_command(app)) if " " in name}
    assert {name if name.split()[0] in groups else name.split()[0] for name in told} == names(get_command(app))


def not_run() -> Iterator[tuple[str, list[str]]]:
    """Yield where a command of ``pulse`` is shown that no test runs, and its words."""
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        shown = [block for block in blocks(page.read_text(encoding="utf-8")) if block.language in ("console", "bash")]
        for block in shown:
            for number, line in enumerate(block.code.splitlines(), block.line):
                command = line.strip().removeprefix("$ ")
                if not block.runs and command.startswith("pulse "):
                    words = shlex.split(command, comments=True)[1:]
                    yield f"{page.relative_to(ROOT)}:{number}", [word for word in words if word != "&"]


NOT_RUN = dict(not_run())


@pytest.mark.parametrize("where", NOT_RUN)
def test_a_command_that_no_test_can_run_parses_as_the_real_one_does(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PULSE_ROOT", "policies")
    monkeypatch.setenv("PULSE_RUN", "math-7b")
    parse(NOT_RUN[where])


def test_what_no_test_runs_is_found() -> None:
    assert ["mirror", "--runs", "math-7b", "--rate", "2Gbit"] in [words[:5] for words in NOT_RUN.values()]
    assert ["workers", "--follow"] in NOT_RUN.values()
    with pytest.raises(Exception, match="No such option: --folow"):
        parse(["workers", "--root", "a", "--run", "b", "--folow"])
