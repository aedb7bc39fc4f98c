"""Tables of rows: what a plain list of rows would say, whatever was added, dropped and copied."""

from __future__ import annotations

import tracemalloc
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulse_registry.errors import CorruptObject
from pulse_registry.log import row_index
from pulse_registry.log.block import MOST_BYTES, ROWS, Block
from pulse_registry.log.table import Table
from pulse_registry.log.tables import PATCHES, VERSIONS, id_of
from pulse_schemas import PatchRef, VersionEntry
from tests.support.records import LAYOUT, WHEN, chain, patch


def entry(version: int, step: int = 0, **metadata: Any) -> VersionEntry:
    return VersionEntry(
        version=version,
        seq=version + 1,
        step=step,
        layout=LAYOUT,
        digest=f"{version:032x}",
        changed=1,
        cells=9,
        created_at=WHEN,
        metadata=metadata,
    )


@dataclass
class Pair:
    """A table, and the rows of it that are not dead, by id."""

    table: Table[VersionEntry]
    plain: dict[int, VersionEntry] = field(default_factory=dict)

    def copy(self) -> Pair:
        return Pair(self.table.copy(), dict(self.plain))

    def check(self) -> None:
        table, plain = self.table, self.plain
        assert (list(table), table.live) == ([*plain.values()], len(plain))
        assert table.ids[table.alive].tolist() == [*plain]
        rows = np.flatnonzero(table.alive).tolist()
        assert [table.row(row) for row in rows] == [*plain.values()]
        assert len(table) <= 2 * len(plain)
        assert [table.is_dead(row) for row in range(len(table))] == (~table.alive).tolist()
        for name in ("version", "step"):
            column = table.column(name)
            assert column[rows].tolist() == [getattr(one, name) for one in plain.values()]
            for number in {*column.tolist(), 77}:
                assert table.where(name, number) == [row for row in rows if column[row] == number]
            assert table.between(name, 2, 5) == [row for row in rows if 2 <= column[row] <= 5]
        for text in (b'"step":1,', b'"version":7}', b"digest", b"nowhere"):
            assert list(table.saying(text)) == [row for row in rows[::-1] if text in table.row(row).canonical()]
        assert table.nbytes == sum(len(table.row(row).canonical()) + 1 for row in range(len(table)))


@pytest.mark.parametrize("count", [0, 1, ROWS - 1, ROWS, ROWS + 1, 3 * ROWS + 5])
def test_rows_that_are_packed_at_once_are_those_that_were_added_one_by_one(count: int) -> None:
    rows = [entry(number, step=number % 7) for number in range(count)]
    pair = Pair(Table.holding(VERSIONS, rows), dict(enumerate(rows)))
    pair.check()
    assert pair.table.next_id == count
    pair.table.append(entry(count, note="next"))
    pair.plain[count] = entry(count, note="next")
    pair.check()


@pytest.fixture(params=[2, 1024], ids=["ordered early", "ordered late"])
def most_late(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_index, "MOST_LATE", request.param)


@pytest.mark.slow
@settings(max_examples=60)
@given(st.data())
@pytest.mark.usefixtures("most_late")
def test_tables_that_fork_say_each_what_a_list_of_its_own_would_say(data: st.DataObject) -> None:
    pairs = [Pair(Table(VERSIONS))]
    for _ in range(data.draw(st.integers(1, 12))):
        pair = data.draw(st.sampled_from(pairs))
        match data.draw(st.sampled_from(["add", "add", "many", "drop", "copy"])):
            case "add":
                add(pair, data.draw(st.integers(1, 3)))
            case "many":
                add(pair, data.draw(st.integers(60, 150)))
            case "drop":
                gone = data.draw(st.sets(st.sampled_from([*pair.plain]))) if pair.plain else set()
                rows = [row for row, number in enumerate(pair.table.ids.tolist()) if number in gone]
                pair.table.drop(rows)
                pair.plain = {number: one for number, one in pair.plain.items() if number not in gone}
            case _:
                pairs.append(pair.copy())
    for pair in pairs:
        pair.check()
        pair.check()  # what was read once is kept


def add(pair: Pair, count: int) -> None:
    for _ in range(count):
        number = pair.table.next_id
        pair.plain[number] = entry(number, step=number % 7, note="x" * (number % 5))
        pair.table.append(pair.plain[number])


@pytest.mark.slow
@given(st.integers(0, 200), st.data())
def test_a_table_of_what_another_has_stored_says_the_same(rows: int, data: st.DataObject) -> None:
    pair = Pair(Table(VERSIONS))
    add(pair, rows)
    dead = data.draw(st.sets(st.integers(0, rows - 1), max_size=rows // 2)) if rows else set()
    pair.table.drop(sorted(dead))
    pair.plain = {number: one for number, one in pair.plain.items() if number not in dead}
    table = pair.table
    cut = data.draw(st.integers(0, len(table)))
    blocks = [*table.blocks(0, cut), *table.blocks(cut, len(table))]
    again = Pair(Table.of(VERSIONS, table.numbers.copy(), blocks, ~table.alive, table.ids.copy()), pair.plain)
    again.check()
    assert [again.table.row(row) for row in range(len(table))] == [table.row(row) for row in range(len(table))]
    add(again, 70)
    again.check()


def test_blocks_that_are_whole_are_stored_as_they_are() -> None:
    pair = Pair(Table(VERSIONS))
    add(pair, 200)
    whole = [*pair.table.blocks(0, 200)]
    assert [block.rows for block in whole] == [64, 64, 64, 8]
    assert [block.rows for block in pair.table.blocks(10, 150)] == [54, 64, 22]
    assert [*pair.table.blocks(10, 150)][1].frame is whole[1].frame


def test_rows_of_many_bytes_make_a_block_early() -> None:
    table = Table(VERSIONS)
    for number in range(10):
        table.append(entry(number, note="x" * 300_000))
    assert [block.rows for block in table.blocks(0, 10)] == [4, 4, 2]
    assert [one.version for one in table] == [*range(10)]


def test_a_copy_costs_the_same_whatever_the_table_has() -> None:
    def allocated(rows: int) -> int:
        pair = Pair(Table(VERSIONS))
        add(pair, rows)
        pair.table.drop(range(rows // 3))
        tracemalloc.start()
        copy = pair.table.copy()
        nbytes = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        assert len(copy) == rows
        return nbytes

    assert allocated(2000) == allocated(20)


PATCH = patch(1, 2)


def stored(line: bytes, **changes: int) -> Table[PatchRef]:
    numbers = np.array(PATCHES.numbers(PATCH), np.int64)[:, None]
    for name, number in changes.items():
        numbers[PATCHES.columns.index(name)] = number
    return Table.of(PATCHES, numbers, [Block(1, Block.of([line]).frame, "segment 7")])


@pytest.mark.parametrize("name", PATCHES.columns)
def test_a_row_that_is_not_what_its_columns_say_is_refused(name: str) -> None:
    assert stored(PATCH.canonical()).row(0) == PATCH
    with pytest.raises(CorruptObject, match="segment 7: one of its patches is not what its columns say"):
        stored(PATCH.canonical(), **{name: 99}).row(0)


@pytest.mark.parametrize("line", [b"", b"{", b"{}", chain(1).state.version(0).canonical()])
def test_a_row_that_is_none_is_refused(line: bytes) -> None:
    with pytest.raises(CorruptObject, match="segment 7: one of its patches can't be read"):
        stored(line).row(0)


@pytest.mark.parametrize("key", ["log/000000000000.json", "objects/patch/000000000001-000000000003-x", "objects/../x"])
def test_a_row_of_an_object_that_no_record_could_name_is_refused(key: str) -> None:
    named = PATCH.model_copy(update={"object": PATCH.object.model_copy(update={"key": key})})
    with pytest.raises(CorruptObject, match="segment 7: one of its patches is not valid: it names"):
        stored(named.canonical(), key=id_of(key)).row(0)


@pytest.mark.parametrize(
    "block",
    [
        Block(1, b""),
        Block(1, b"not a frame"),
        Block(1, Block.of([b"{}"]).frame[:4]),
    ],
)
def test_a_block_that_is_none_is_refused_before_a_row_is_read(block: Block) -> None:
    with pytest.raises(CorruptObject, match="block of rows is damaged"):
        Table.of(PATCHES, np.zeros((7, 1), np.int64), [block])


def test_a_block_that_would_take_much_memory_is_refused_before_it_is_taken() -> None:
    bomb = Block.of([b"x" * (MOST_BYTES + 1)])
    with pytest.raises(CorruptObject, match="says that it has"):
        Table.of(PATCHES, np.zeros((7, 1), np.int64), [bomb])


@pytest.mark.parametrize("rows", [0, 2])
def test_blocks_of_another_number_of_rows_are_refused(rows: int) -> None:
    with pytest.raises(CorruptObject, match="blocks of patches have"):
        Table.of(PATCHES, np.zeros((7, rows), np.int64), [Block.of([b"{}"])])


@pytest.mark.parametrize(
    "frame", [Block.of([b"{}", b"{}"]).frame, Block.of([]).frame, Block.of([b"{}"]).frame + b"more"]
)
def test_a_frame_of_other_lines_than_its_block_says_is_refused(frame: bytes) -> None:
    table = Table.of(PATCHES, np.zeros((7, 1), np.int64), [Block(1, frame, "segment 7")])
    with pytest.raises(CorruptObject, match="segment 7: a block of"):
        table.row(0)
