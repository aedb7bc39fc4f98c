"""docs/architecture.md has each room and each kind of record that there is; docs/spec.md has each kind."""

from __future__ import annotations

import re
import tomllib

from pulse_schemas import RECORD_KINDS
from tests.docs.blocks import ROOT

TEXT = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def test_the_table_of_rooms_has_each_room_and_module_in_the_order_of_the_layers() -> None:
    table = TEXT.split("| room | does |\n")[1].split("\n\n")[0]
    told = [name for row in table.splitlines() for name in re.findall(r"`(\w+)(?:/|\.py)`", row.split("|")[1])]
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (rooms,) = [contract["layers"] for contract in contracts if contract.get("containers") == ["pulse_registry"]]
    layer_of = {name: number for number, layer in enumerate(rooms) for name in layer.split(" | ")}
    assert sorted(told) == sorted(layer_of)
    assert sorted(told, key=lambda name: layer_of[name]) == told


def test_every_kind_of_record_is_in_the_table_and_no_other() -> None:
    table = TEXT.split("| record | says |\n")[1].split("\n\n")[0]
    assert set(re.findall(r"(?m)^\| `(\w+)` \|", table)) == RECORD_KINDS.keys()


def test_the_specification_has_a_row_for_every_kind_of_record_and_no_other() -> None:
    text = (ROOT / "docs" / "spec.md").read_text(encoding="utf-8")
    table = text.split("### 3.2 ")[1].split("\n| kind |")[1].split("\n\n")[0]
    assert set(re.findall(r"(?m)^\| `(\w+)` \|", table)) == RECORD_KINDS.keys()
