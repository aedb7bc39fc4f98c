"""docs/cli.md names every command of ``pulse``, and no other."""

from __future__ import annotations

import re
from typing import Any

from typer.main import get_command

from pulse_registry.cli.app import app
from tests.docs.blocks import ROOT


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
