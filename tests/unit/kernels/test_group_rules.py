"""Every rule of a coded group, broken once: each is a typed error; damaged bytes are one too, or harmless."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulse_kernels import (
    CELL_TYPES,
    GROUP_BYTES,
    Backend,
    Cells,
    CodecError,
    CoderName,
    RankError,
    decode_group,
    encode_group,
    get_backend,
    move_group,
)
from pulse_kernels.format.frequencies import store_table
from pulse_kernels.format.group_bytes import join, split
from pulse_kernels.protocol import Coded

by_coder = pytest.mark.parametrize("coder", ["gap", "class"])
BF16, SIZE, CHANGED = CELL_TYPES["BF16"], 4000, 600
REFERENCE = get_backend("reference")


def base() -> Cells:
    """Return cells of three classes, of both signs."""
    place = np.arange(SIZE, dtype=np.uint32)
    return (0x3D00 + (place * 7 % 3) * 0x80 + place % 5 + (place % 2) * 0x8000).astype(np.uint16)


def changes() -> tuple[Any, ...]:
    """Return (index, old, new) of distances of all contexts."""
    index = np.sort(np.random.default_rng(1).choice(SIZE, CHANGED, replace=False)).astype(np.uint32)
    distance = np.resize(np.array([1, 0xFFFF, 2, 1, 0x8000, 0x7FFF, 300, 1, 0xFFFE, 1, 193, 1], np.uint16), CHANGED)
    old = base()[index]
    return index, old, REFERENCE.move(old, distance, BF16)


WHOLE: dict[CoderName, bytes] = {
    coder: encode_group(REFERENCE, coder, BF16, SIZE, *changes(), [base()]) for coder in ("gap", "class")
}
PARTS = {coder: split(coder == "class", CHANGED, data) for coder, data in WHOLE.items()}


def decode(backend: Backend, coder: CoderName, data: bytes, changed: int = CHANGED, cells: int = SIZE) -> Any:
    return decode_group(backend, coder, BF16, cells, changed, data, [base()[:1500], base()[1500:]])


def decode_or_refuse(backend: Backend, coder: CoderName, data: bytes) -> bool:
    """Decode; tell whether it was refused. Anything but a result within bounds or a CodecError fails the test."""
    moved = base()
    try:
        index, distance = decode(backend, coder, data)
    except CodecError:
        if coder == "gap":
            with pytest.raises(CodecError):
                move_group(backend, BF16, moved, CHANGED, data, 0)
        return True
    if coder == "gap":
        expected = base()
        sums = REFERENCE.move_spans([expected], index, distance, BF16, 0)
        assert move_group(backend, BF16, moved, CHANGED, data, 0) == sums
        assert moved.tolist() == expected.tolist()
    assert (index.dtype, distance.dtype) == (np.uint32, np.uint16)
    assert len(index) == len(distance) == CHANGED
    assert (np.diff(index.astype(np.int64)) > 0).all()
    assert int(index[-1]) < SIZE
    assert distance.all()
    return False


# -- one rule at a time ------------------------------------------------------------------------------------------------


def head(data: bytes, **fields: int) -> bytes:
    """Change fields of the head."""
    values = dict(zip(("classes", "first", "tables"), struct.unpack_from("<BBH", data), strict=True)) | fields
    return struct.pack("<BBH", *values.values()) + data[4:]


def gap(**parts: Any) -> bytes:
    return join(replace(PARTS["gap"], **parts))


def by_class(**parts: Any) -> bytes:
    return join(replace(PARTS["class"], **parts))


def changed_at(array: np.ndarray[Any, Any], place: int, by: int) -> np.ndarray[Any, Any]:
    copy = array.copy()
    copy[place] += np.array(by).astype(copy.dtype)
    return copy


def tables_of(coder: CoderName) -> list[bytes]:
    """Return the stored tables, one by one."""
    data, found = PARTS[coder].tables.tobytes(), []
    while data:
        size = 2 + (5 * data[1] + 7) // 8
        found.append(data[:size])
        data = data[size:]
    return found


def with_table(coder: CoderName, number: int, table: bytes) -> bytes:
    """Replace one of the tables."""
    tables = tables_of(coder)
    tables[number] = table
    return join(replace(PARTS[coder], tables=np.frombuffer(b"".join(tables), np.uint8)))


def padded(data: bytes) -> bytes:
    """Make the tables of a gap group end at an odd offset, with a byte after them that is not zero."""
    parts = split(False, CHANGED, data)
    table = bytes((0, 1, 1))  # one symbol: three bytes in the place of two or more
    tables = [*tables_of("gap")[:5], table]
    if sum(map(len, tables)) % 2 == 0:
        tables[4] = table if len(tables_of("gap")[4]) % 2 == 0 else store_table([1] * 9)
    joined = join(replace(parts, tables=np.frombuffer(b"".join(tables), np.uint8)))
    at = 4 + sum(map(len, tables))
    assert at % 2 == 1
    return joined[:at] + b"\1" + joined[at + 1 :]


COUNTS = PARTS["class"].counts
WORDS, SIZES = PARTS["gap"].words, PARTS["gap"].sizes
BAD: dict[str, tuple[CoderName, str, Callable[[], bytes]]] = {
    "no bytes": ("gap", "shorter than its head", lambda: b""),
    "half a head": ("gap", "shorter than its head", lambda: WHOLE["gap"][:3]),
    "classes in a gap group": ("gap", "classes", lambda: head(WHOLE["gap"], classes=1)),
    "many classes in a gap group": ("gap", "classes", lambda: head(WHOLE["gap"], classes=255)),
    "a first class in a gap group": ("gap", "classes", lambda: head(WHOLE["gap"], first=1)),
    "no classes": ("class", "classes", lambda: head(WHOLE["class"], classes=0)),
    "33 classes": ("class", "classes", lambda: head(WHOLE["class"], classes=33)),
    "255 classes": ("class", "classes", lambda: head(WHOLE["class"], classes=255)),
    "classes past 255": ("class", "classes", lambda: head(WHOLE["class"], first=257 - len(COUNTS))),
    "a gap group taken for class": ("class", "classes", lambda: WHOLE["gap"]),
    "a class group taken for gap": ("gap", "classes", lambda: WHOLE["class"]),
    "tables past the end": ("gap", "do not fit", lambda: head(WHOLE["gap"], tables=0xFFFF)),
    "fewer tables": ("gap", "table|sizes|zero", lambda: head(WHOLE["gap"], tables=len(PARTS["gap"].tables) - 2)),
    "no tables": ("gap", "table|sizes", lambda: gap(tables=PARTS["gap"].tables[:0])),
    "an odd size": ("gap", "do not fit", lambda: WHOLE["gap"] + b"\0"),
    "half the group": ("gap", "do not fit|sizes", lambda: WHOLE["gap"][: len(WHOLE["gap"]) // 4 * 2]),
    "a word more than the sizes say": ("gap", "sizes", lambda: WHOLE["gap"] + b"\0\0"),
    "a word less than the sizes say": ("gap", "sizes", lambda: WHOLE["gap"][:-2]),
    "a chunk of one word": ("gap", "sizes", lambda: gap(sizes=SIZES * 0 + 1, words=WORDS[:1])),
    "a chunk of no words": ("gap", "sizes", lambda: gap(sizes=SIZES * 0, words=WORDS[:0])),
    "a word missing": ("gap", "end", lambda: gap(sizes=SIZES - 1, words=WORDS[:-1])),
    "many words missing": ("gap", "end", lambda: gap(sizes=SIZES * 0 + 2, words=WORDS[:2])),
    "a word left over": ("gap", "end", lambda: gap(sizes=SIZES + 1, words=np.append(WORDS, WORDS[-1]))),
    "many words left over": ("gap", "end", lambda: gap(sizes=SIZES * 2, words=np.append(WORDS, WORDS))),
    "counts that add up to less": ("class", "add up", lambda: by_class(counts=changed_at(COUNTS, 0, -1))),
    "counts that add up to more": ("class", "add up", lambda: by_class(counts=changed_at(COUNTS, 0, 1))),
    "counts that add up mod 2^32": (
        *("class", "add up"),
        lambda: by_class(counts=changed_at(changed_at(COUNTS, 0, -1 - int(COUNTS[0])), 1, 1 + int(COUNTS[0]))),
    ),
    "a parameter over 127": (
        *("class", "parameter"),
        lambda: by_class(parameters=PARTS["class"].parameters * 0 + np.uint8(128)),
    ),
    "a parameter without changed cells": (
        *("class", "parameter"),
        lambda: by_class(
            counts=np.array([0, CHANGED], np.uint32)[: len(COUNTS)].repeat([1, 1]),
            parameters=np.array([1, 30], np.uint8),
        ),
    ),
    "a byte after odd tables that is not zero": ("gap", "not zero", lambda: padded(WHOLE["gap"])),
    "a table cut off": ("gap", "table", lambda: gap(tables=PARTS["gap"].tables[:-1])),
    "a table more": ("gap", "follow", lambda: gap(tables=np.append(PARTS["gap"].tables, [np.uint8(0)] * 2))),
    "a gap symbol over 47": ("gap", "symbols", lambda: with_table("gap", 0, store_table([1] * 49))),
    "a value symbol over 251": ("gap", "symbols", lambda: with_table("gap", 3, bytes((252, 1, 31)))),
    "a value symbol past the cell's width": ("gap", "symbols", lambda: with_table("gap", 3, store_table([1] * 61))),
    "a value symbol past the width, of a class": (
        *("class", "symbols"),
        lambda: with_table("class", 0, store_table([1] * 61)),
    ),
    "an empty table that begins late": ("gap", "symbols", lambda: with_table("gap", 3, bytes((3, 0)))),
    "padding in a table": ("gap", "padding", lambda: with_table("gap", 3, bytes((0, 1, 0x21)))),
    "a first level of zero": ("gap", "level", lambda: with_table("gap", 3, bytes((0, 2, 0xE0, 0x03)))),
    "a last level of zero": ("gap", "level", lambda: with_table("gap", 3, bytes((0, 2, 0x1F, 0)))),
    "gaps without a table": ("gap", "empty|end", lambda: with_table("gap", 1, bytes(2))),
    "values without a table": ("gap", "empty|end", lambda: with_table("gap", 3, bytes(2))),
    "a class without a table": ("class", "empty", lambda: with_table("class", 0, bytes(2))),
}


@pytest.mark.parametrize("name", BAD)
def test_each_rule_of_a_group_is_checked(backend: Backend, name: str):
    coder, reason, data = BAD[name]
    with pytest.raises(CodecError, match=reason):
        decode(backend, coder, data())


def coded_as(name: str, coder: CoderName, distance: list[int], cells: int = SIZE) -> bytes:
    """Code distances at the last cells of a group of another dtype: a wider one can say what a narrow one can't."""
    cell_type = CELL_TYPES[name]
    old, steps = np.zeros(len(distance), cell_type.dtype), np.array(distance, cell_type.dtype)
    index = np.arange(cells - len(distance), cells, dtype=np.uint32)
    return encode_group(REFERENCE, coder, cell_type, cells, index, old, old + steps, [np.zeros(cells, old.dtype)])


@by_coder
@pytest.mark.parametrize("distance", [0x8000, 0xFFFF, 0x10000, 2**32 - 0x8001])
def test_a_distance_past_the_cells_width_is_refused(backend: Backend, coder: CoderName, distance: int):
    data = coded_as("U32", coder, [1, distance])
    zeros = [np.zeros(SIZE, np.uint16)]
    with pytest.raises(CodecError, match=r"fit|symbols"):
        decode_group(backend, coder, CELL_TYPES["U16"], SIZE, 2, data, zeros)
    assert decode_group(backend, coder, CELL_TYPES["U32"], SIZE, 2, data, [np.zeros(SIZE, np.uint32)])[1][1] == distance


@by_coder
def test_the_widest_distances_are_taken(backend: Backend, coder: CoderName):
    data = coded_as("U16", coder, [0x7FFF, 0x8000, 0x8001])
    found = decode_group(backend, coder, CELL_TYPES["U16"], SIZE, 3, data, [np.zeros(SIZE, np.uint16)])
    assert found[1].tolist() == [0x7FFF, 0x8000, 0x8001]


@by_coder
@pytest.mark.parametrize("cells", [SIZE - 1, 2, 1 << 20])
def test_an_index_past_the_groups_end_is_refused(backend: Backend, coder: CoderName, cells: int):
    data = coded_as("U16", coder, [1, 2], max(cells, SIZE))
    smaller = min(cells, SIZE)
    with pytest.raises(CodecError, match=r"past the end|is not below"):
        decode_group(backend, coder, CELL_TYPES["U16"], smaller, 2, data, [np.zeros(smaller, np.uint16)])


def test_ranks_past_the_cells_of_a_class_are_a_rank_error(backend: Backend):
    other = base()
    other[: SIZE // 2] = 0x3D00
    with pytest.raises(RankError):
        decode_group(backend, "class", BF16, SIZE, CHANGED, WHOLE["class"], [other])


@pytest.mark.parametrize(("changed", "cells"), [(0, 400), (-1, 400), (401, 400), (2, GROUP_BYTES // 2 + 1), (2, 0)])
def test_counts_that_no_group_can_have_are_refused_before_the_bytes_are_read(
    backend: Backend, changed: int, cells: int
):
    with pytest.raises(CodecError, match="not possible"):
        decode_group(backend, "gap", BF16, cells, changed, b"")


# -- any damage --------------------------------------------------------------------------------------------------------


@by_coder
def test_every_truncation_is_refused(backend: Backend, coder: CoderName):
    assert not decode_or_refuse(backend, coder, WHOLE[coder])
    for length in range(len(WHOLE[coder])):
        assert decode_or_refuse(backend, coder, WHOLE[coder][:length])


@by_coder
def test_every_change_of_a_byte_is_refused_or_decodes_within_bounds(fast: Backend, coder: CoderName):
    whole = WHOLE[coder]
    refused = 0
    for place in range(len(whole)):
        for value in (1, 0x80, 0xFF):
            damaged = bytearray(whole)
            damaged[place] ^= value
            refused += decode_or_refuse(fast, coder, bytes(damaged))
    assert refused > 2 * len(whole)


@by_coder
@settings(max_examples=60)
@given(data=st.data())
def test_backends_agree_on_damaged_bytes(fast: Backend, coder: CoderName, data: st.DataObject):
    damaged = bytearray(WHOLE[coder])
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    assert decode_or_refuse(fast, coder, bytes(damaged)) == decode_or_refuse(REFERENCE, coder, bytes(damaged))


@by_coder
@given(tail=st.binary(max_size=400), tables=st.integers(0, 40), classes=st.integers(0, 4))
def test_random_bytes_are_refused_or_decode_within_bounds(
    fast: Backend, coder: CoderName, tail: bytes, tables: int, classes: int
):
    decode_or_refuse(fast, coder, struct.pack("<BBH", classes if coder == "class" else 0, 0, tables) + tail)


@by_coder
def test_claims_of_many_changes_take_no_more_memory_than_they_need(fast: Backend, coder: CoderName):
    changed = 1_000_000
    decode_or_refuse(fast, coder, WHOLE[coder])
    tracemalloc.start()
    with pytest.raises(CodecError):
        decode(fast, coder, WHOLE[coder], changed, 1 << 23)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100_000


def test_a_group_is_put_together_as_it_was_taken_apart():
    for coder, parts in PARTS.items():
        assert isinstance(parts, Coded)
        assert join(parts) == WHOLE[coder]
