"""docs/architecture.md names rooms, files and kinds of record that there are."""

from __future__ import annotations

import re
from typing import get_args

from pulse_schemas import Record
from tests.docs.test_examples import ROOT

TEXT = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
LIBRARY = ROOT / "pulse_registry"


def test_every_room_is_in_the_table_and_no_other() -> None:
    table = TEXT.split("| room | does |\n")[1].split("\n\n")[0]
    told = {room for row in table.splitlines() for room in re.findall(r"`(\w+)/`", row.split("|")[1])}
    rooms = {path.parent.name for path in LIBRARY.glob("*/__init__.py")}
    assert told == rooms


def test_every_kind_of_record_is_in_the_table_and_no_other() -> None:
    table = TEXT.split("| record | says |\n")[1].split("\n\n")[0]
    kinds = {kind.model_fields["kind"].default for kind in get_args(Record)}
    assert set(re.findall(r"(?m)^\| `(\w+)` \|", table)) == kinds


def test_files_that_are_named_are_there() -> None:
    named = set(re.findall(r"`([a-z_/]+\.py)`", TEXT))
    assert named
    assert [
        name
        for name in sorted(named)
        if not any((top / name).is_file() for top in (LIBRARY, LIBRARY / "log", ROOT, ROOT / "schemas"))
    ] == []
