"""Segments: what is written reads back; what is damaged, or made up, is one of two errors and takes no memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulse_registry.errors import CorruptObject, UnsupportedFormat
from pulse_registry.format.safetensors import header_bytes, parse_head, tensor_entry
from pulse_registry.format.segment import COLUMNS, FORMAT, SegmentTable, parse_segment, segment_bytes
from pulse_registry.log.tables import KEYFRAMES, PATCHES, VERSIONS
from tests.support.sampling import examples

KEY = "log/segments/x"
numbers = st.integers(-(2**63), 2**63 - 1)


@st.composite
def tables(draw: st.DrawFn, columns: int) -> SegmentTable:
    blocks = draw(st.lists(st.tuples(st.integers(1, 5), st.binary(min_size=1, max_size=20)), max_size=4))
    rows = sum(count for count, _ in blocks)
    ids = sorted(draw(st.sets(st.integers(0, 2**63 - 1), min_size=rows, max_size=rows)))
    cells = draw(st.lists(numbers, min_size=rows * columns, max_size=rows * columns))
    return SegmentTable(np.array(ids, np.int64), np.array(cells, np.int64).reshape(columns, rows), tuple(blocks))


segments = st.fixed_dictionaries({name: tables(len(columns)) for name, columns in COLUMNS.items()})


def same(left: dict[str, SegmentTable], right: dict[str, SegmentTable]) -> bool:
    return left.keys() == right.keys() and all(
        np.array_equal(left[name].ids, right[name].ids)
        and np.array_equal(left[name].numbers, right[name].numbers)
        and left[name].blocks == right[name].blocks
        for name in left
    )


def one(**changes: Any) -> dict[str, SegmentTable]:
    """Three versions in two blocks, and nothing else; ``changes`` are of the versions."""
    fields: dict[str, Any] = {
        "ids": np.array([3, 4, 9]),
        "numbers": np.arange(12).reshape(4, 3),
        "blocks": ((2, b"two"), (1, b"one")),
    }
    empty = {
        name: SegmentTable(np.zeros(0, np.int64), np.zeros((len(columns), 0), np.int64), ())
        for name, columns in COLUMNS.items()
    }
    return empty | {"versions": SegmentTable(**(fields | changes))}


def rewritten(change: Any) -> bytes:
    """The segment of ``one``, with another header."""
    data = segment_bytes(one())
    head = parse_head(data, len(data))
    entries = {
        name: tensor_entry(place.dtype, place.shape, place.start, place.stop) for name, place in head.tensors.items()
    }
    document: dict[str, Any] = {"__metadata__": dict(head.metadata), **entries}
    change(document)
    return header_bytes(document) + data[head.nbytes :]


@examples(60)
@given(segments)
def test_what_is_written_reads_back(written: dict[str, SegmentTable]) -> None:
    data = segment_bytes(written)
    assert same(parse_segment(KEY, data), written)
    assert segment_bytes(written) == data


@examples(200)
@given(st.data())
def test_damage_is_an_error_of_ours_or_changes_values_alone(data: st.DataObject) -> None:
    damaged = bytearray(segment_bytes(one()))
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(damaged)))
    for content in (bytes(damaged), bytes(damaged[:cut])):
        try:
            found = parse_segment(KEY, content)
        except (CorruptObject, UnsupportedFormat):
            continue
        assert all(sum(rows for rows, _ in table.blocks) == len(table.ids) for table in found.values())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ids": np.array([3, 3, 9])}, "do not rise"),
        ({"ids": np.array([-1, 3, 9])}, "do not rise"),
        ({"ids": np.array([3, 9])}, "other lengths"),
        ({"ids": np.array([[3, 4, 9]])}, "other lengths"),
        ({"numbers": np.arange(9).reshape(3, 3)}, "other lengths"),
        ({"blocks": ((2, b"two"),)}, "more or fewer rows"),
        ({"blocks": ((2, b"two"), (2, b"one"))}, "more or fewer rows"),
        ({"blocks": ((2, b"two"), (0, b"x"), (1, b"one"))}, "numbers of rows"),
        ({"blocks": ((2**62, b"two"), (2**62, b"x"), (2**62, b"y"), (2**62, b"one"))}, "numbers of rows"),
        ({"blocks": ((2, b""), (1, b"one"))}, "end to end"),
    ],
)
def test_a_table_that_contradicts_itself_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CorruptObject, match=message):
        parse_segment(KEY, segment_bytes(one(**changes)))


def test_what_is_no_segment_or_another_release_s_is_told_apart() -> None:
    with pytest.raises(UnsupportedFormat, match="upgrade"):
        parse_segment(KEY, rewritten(lambda document: document["__metadata__"].update(format="pulse-segment/2")))
    for change in (
        lambda document: document["__metadata__"].update(format="pulse-patch/1"),
        lambda document: document.pop("__metadata__"),
        lambda document: document.update(more=tensor_entry("U8", (0,), 0, 0)),
        lambda document: document["versions.ids"].update(dtype="U64"),
        lambda document: document["versions.blocks"].update(dtype="I8"),
        lambda document: document["patches.numbers"].update(shape=[2**62, 0]),
        lambda document: document["patches.ids"].update(shape=[2**63, 0]),
        lambda document: document["patches.rows"].update(shape=[0] * 65),
        lambda document: document["versions.ends"].update(shape=[2, 1]),
    ):
        with pytest.raises(CorruptObject):
            parse_segment(KEY, rewritten(change))
    with pytest.raises(CorruptObject, match="no segment"):
        parse_segment(KEY, b"junk")


def test_the_columns_are_those_of_the_tables() -> None:
    assert FORMAT == "pulse-segment/1"
    assert {kind.name: kind.columns for kind in (VERSIONS, PATCHES, KEYFRAMES)} == dict(COLUMNS)
