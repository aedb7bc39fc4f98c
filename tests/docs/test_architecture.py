"""docs/architecture.md has each room and each kind of record that there is; docs/spec.md has each kind."""

from __future__ import annotations

import re

from pulse_schemas import RECORD_KINDS
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
    assert set(re.findall(r"(?m)^\| `(\w+)` \|", table)) == RECORD_KINDS.keys()


def test_the_specification_has_a_row_for_every_kind_of_record_and_no_other() -> None:
    text = (ROOT / "docs" / "spec.md").read_text(encoding="utf-8")
    table = text.split("### 3.2 ")[1].split("\n| kind |")[1].split("\n\n")[0]
    assert set(re.findall(r"(?m)^\| `(\w+)` \|", table)) == RECORD_KINDS.keys()
