"""Groups: both coders invert themselves, every backend writes the same bytes, and damage is at most an error."""

from __future__ import annotations

import itertools
import struct

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from pulse_kernels import (
    CELL_TYPES,
    GROUP_BYTES,
    Backend,
    Cells,
    CellType,
    CodecError,
    CoderName,
    RankError,
    decode_group,
    encode_group,
)
from tests.kernels.inputs import MEMORY, TYPES, all_same, deltas, random_cells, random_index

by_name = pytest.mark.parametrize("cell_type", TYPES, ids=lambda t: t.name)
by_coder = pytest.mark.parametrize("coder", ["gap", "class"])
HEAD = struct.Struct("<HHIII")


def spans_of(cells: Cells, ends: list[int]) -> list[Cells]:
    ends = [0, *sorted(ends), len(cells)]
    return [cells[a:b] for a, b in itertools.pairwise(ends)]


@by_coder
@by_name
@settings(max_examples=15)
@given(data=st.data())
def test_a_group_decodes_to_what_was_coded(
    backend: Backend, coder: CoderName, cell_type: CellType, data: st.DataObject
):
    size = data.draw(st.integers(1, 300))
    index, distance = data.draw(deltas(cell_type.width, size).filter(lambda delta: len(delta[0]) > 0))
    cells = random_cells(cell_type.width, size, data.draw(st.integers(0, 9)))
    base = spans_of(cells, data.draw(st.lists(st.integers(0, size), max_size=3)))
    coded = encode_group(backend, coder, cell_type, size, index, distance, base)
    assert encode_group(backend, coder, cell_type, size, index, distance, base) == coded
    found = decode_group(backend, coder, cell_type, size, len(index), coded, base)
    assert all_same(found, (index, distance))


@by_coder
@by_name
def test_every_backend_writes_the_same_bytes(fast: Backend, reference: Backend, coder: CoderName, cell_type: CellType):
    base = [random_cells(cell_type.width, 3000)]
    index = random_index(3000, 400)
    distance = random_cells(cell_type.width, 400, seed=1) | 1
    args = (coder, cell_type, 3000, index, distance, base)
    coded = encode_group(reference, *args)
    assert encode_group(fast, *args) == coded
    assert all_same(decode_group(fast, coder, cell_type, 3000, 400, memoryview(coded), base), (index, distance))


@by_coder
def test_all_cells_of_a_full_group_may_change(fast: Backend, coder: CoderName):
    cell_type = CELL_TYPES["BF16"]
    size = GROUP_BYTES // 2
    base = [random_cells(2, size)]
    index = np.arange(size, dtype=np.uint32)
    distance = np.ones(size, np.uint16)
    coded = encode_group(fast, coder, cell_type, size, index, distance, base)
    assert all_same(decode_group(fast, coder, cell_type, size, size, coded, base), (index, distance))


@by_coder
def test_the_first_and_the_last_cell_of_a_full_group_are_reached(fast: Backend, coder: CoderName):
    size = GROUP_BYTES
    base = [np.zeros(size, np.uint8)]
    for places in ([0], [size - 1], [0, size - 1]):
        index, distance = np.array(places, np.uint32), np.full(len(places), 255, np.uint8)
        coded = encode_group(fast, coder, CELL_TYPES["U8"], size, index, distance, base)
        found = decode_group(fast, coder, CELL_TYPES["U8"], size, len(places), coded, base)
        assert all_same(found, (index, distance))


@by_coder
@pytest.mark.parametrize("memory", MEMORY)
def test_memory_may_be_unaligned_and_read_only(backend: Backend, coder: CoderName, memory: str):
    form, cell_type = MEMORY[memory], CELL_TYPES["F32"]
    cells, index, distance = random_cells(4, 500), random_index(500, 60), random_cells(4, 60, seed=1) | 1
    coded = encode_group(backend, coder, cell_type, 500, index, distance, [cells])
    base = [form(cells[:200]), form(cells[200:])]
    assert encode_group(backend, coder, cell_type, 500, form(index), form(distance), base) == coded
    data = memoryview(b"x" + coded)[1:]
    assert all_same(decode_group(backend, coder, cell_type, 500, 60, data, base), (index, distance))


def test_class_codes_smaller_where_small_weights_flip_more_often(fast: Backend):
    rng = np.random.default_rng(0)
    weights = rng.normal(0, 0.02, 1_000_000).astype(np.float32)
    cells = (weights.view(np.uint32) >> 16).astype(np.uint16)
    chance = np.minimum(1, 1e-5 / np.abs(weights))
    index = np.flatnonzero(rng.random(len(weights)) < chance).astype(np.uint32)
    distance = np.where(rng.random(len(index)) < 0.5, 1, 0xFFFF).astype(np.uint16)
    sizes = {
        coder: len(encode_group(fast, coder, CELL_TYPES["BF16"], len(cells), index, distance, [cells]))
        for coder in ("gap", "class")
    }
    assert sizes["class"] < 0.75 * sizes["gap"]


@pytest.mark.parametrize("function", ["encode", "decode"])
def test_class_without_base_cells_is_the_callers_mistake(backend: Backend, function: str):
    index, distance, cells = np.array([1], np.uint32), np.array([1], np.uint16), np.zeros(9, np.uint16)
    coded = encode_group(backend, "class", CELL_TYPES["BF16"], 9, index, distance, [cells])
    calls = {
        "encode": lambda: encode_group(backend, "class", CELL_TYPES["BF16"], 9, index, distance),
        "decode": lambda: decode_group(backend, "class", CELL_TYPES["BF16"], 9, 1, coded),
    }
    with pytest.raises(ValueError, match="needs the base cells"):
        calls[function]()


def test_other_base_cells_are_met_with_a_rank_error(backend: Backend):
    cell_type = CELL_TYPES["BF16"]
    cells = np.full(100, 0x3F80, np.uint16)
    index, distance = np.array([60, 99], np.uint32), np.array([1, 1], np.uint16)
    coded = encode_group(backend, "class", cell_type, 100, index, distance, [cells])
    other = cells.copy()
    other[:10] = 0
    with pytest.raises(RankError):
        decode_group(backend, "class", cell_type, 100, 2, coded, [other])


# -- what breaks the format --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small() -> dict[str, tuple[CellType, int, int, list[Cells]]]:
    """By coder: cell type, cells, changed cells and base of a group that ``coded`` makes."""
    base = (np.arange(400, dtype=np.uint16) % 5 << 7) | 0x3000
    return {coder: (CELL_TYPES["BF16"], 400, 12, [base[:150], base[150:]]) for coder in ("gap", "class")}


def coded(backend: Backend, coder: CoderName, small: dict) -> bytes:
    cell_type, cells, changed, base = small[coder]
    index = np.sort(np.random.default_rng(1).choice(cells, changed, replace=False)).astype(np.uint32)
    distance = np.array([1, 0xFFFF, 2, 1, 0x8000, 0x7FFF, 300, 1, 0xFFFE, 1, 193, 1], np.uint16)
    return encode_group(backend, coder, cell_type, cells, index, distance, base)


def decode_or_refuse(backend: Backend, coder: CoderName, small: dict, data: bytes) -> bool:
    """Decode; tell whether it was refused. Anything but a result within bounds or a CodecError fails the test."""
    cell_type, cells, changed, base = small[coder]
    try:
        index, distance = decode_group(backend, coder, cell_type, cells, changed, data, base)
    except CodecError:
        return True
    assert index.dtype == np.uint32
    assert distance.dtype == cell_type.dtype
    assert len(index) == len(distance) == changed
    assert (np.diff(index.astype(np.int64)) > 0).all()
    assert int(index[-1]) < cells
    assert distance.all()
    return False


@by_coder
def test_every_truncation_is_refused(backend: Backend, coder: CoderName, small: dict):
    whole = coded(backend, coder, small)
    assert not decode_or_refuse(backend, coder, small, whole)
    for length in range(len(whole)):
        assert decode_or_refuse(backend, coder, small, whole[:length])
    assert decode_or_refuse(backend, coder, small, whole + b"\0")


@by_coder
def test_every_change_of_a_byte_is_refused_or_decodes_within_bounds(fast: Backend, coder: CoderName, small: dict):
    whole = coded(fast, coder, small)
    refused = 0
    for place in range(len(whole)):
        for value in range(256):
            damaged = bytearray(whole)
            damaged[place] = value
            refused += decode_or_refuse(fast, coder, small, bytes(damaged))
    assert refused > 100 * len(whole)


@by_coder
def test_every_flipped_bit_is_refused_or_decodes_within_bounds(reference: Backend, coder: CoderName, small: dict):
    whole = coded(reference, coder, small)
    for bit in range(8 * len(whole)):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << (bit % 8)
        decode_or_refuse(reference, coder, small, bytes(damaged))


def frame(tokens: list[int], **options: bool) -> bytes:
    return zstandard.ZstdCompressor(level=1, **options).compress(bytes(tokens))


def group(
    runs: list[tuple[int, int, int]],
    gaps: bytes,
    magnitudes: bytes,
    bits: bytes,
    *,
    zero: int = 0,
    n_runs: int | None = None,
) -> bytes:
    table = b"".join(struct.pack("<BBI", *run) for run in runs)
    head = HEAD.pack(len(runs) if n_runs is None else n_runs, zero, len(gaps), len(magnitudes), len(bits))
    return head + table + gaps + magnitudes + bits


TWO = frame([0, 1])
GOOD = group([(0, 0, 2)], TWO, TWO, b"\0")
GOOD_CLASS = group([(96, 0, 1), (97, 0, 1)], TWO, TWO, b"\0")
BAD: dict[str, tuple[str, bytes]] = {
    "no bytes": ("gap", b""),
    "half a head": ("gap", GOOD[:15]),
    "no runs": ("gap", group([], TWO, TWO, b"\0")),
    "more runs than the table holds": ("gap", group([(0, 0, 2)], TWO, TWO, b"\0", n_runs=2)),
    "two runs in a gap group": ("gap", group([(0, 0, 1), (1, 0, 1)], TWO, TWO, b"\0")),
    "257 runs": ("class", group([(k % 256, 0, 1) for k in range(257)], TWO, TWO, b"\0")),
    "65,535 runs": ("class", group([(0, 0, 2)], TWO, TWO, b"\0", n_runs=65535)),
    "reserved field": ("gap", group([(0, 0, 2)], TWO, TWO, b"\0", zero=1)),
    "class in a gap group": ("gap", group([(5, 0, 2)], TWO, TWO, b"\0")),
    "counts that add up to less": ("gap", group([(0, 0, 1)], TWO, TWO, b"\0")),
    "counts that add up to more": ("gap", group([(0, 0, 3)], TWO, TWO, b"\0")),
    "counts that add up mod 2^32": ("class", group([(96, 0, 2**32 - 1), (97, 0, 3)], TWO, TWO, b"\0")),
    "a run of nothing": ("class", group([(96, 0, 2), (97, 0, 0)], TWO, TWO, b"\0")),
    "classes out of order": ("class", group([(97, 0, 1), (96, 0, 1)], TWO, TWO, b"\0")),
    "a class twice": ("class", group([(96, 0, 1), (96, 0, 1)], TWO, TWO, b"\0")),
    "a shift over 24": ("gap", group([(0, 25, 2)], frame([0, 0]), TWO, b"\0" * 7)),
    "a shift of 255": ("gap", group([(0, 255, 2)], TWO, TWO, b"\0" * 64)),
    "gap frame of too few tokens": ("gap", group([(0, 0, 2)], frame([0]), TWO, b"\0")),
    "gap frame of too many tokens": ("gap", group([(0, 0, 2)], frame([0, 0, 0]), TWO, b"\0")),
    "magnitude frame of too many tokens": ("gap", group([(0, 0, 2)], TWO, frame([0] * 1000), b"\0")),
    "a frame that claims 2 GiB": ("gap", group([(0, 0, 2)], TWO, bytes.fromhex("28b52ffda000000080"), b"\0")),
    "a frame without its size": ("gap", group([(0, 0, 2)], frame([0, 1], write_content_size=False), TWO, b"\0")),
    "no frame": ("gap", group([(0, 0, 2)], b"", TWO, b"\0")),
    "two frames": ("gap", group([(0, 0, 2)], TWO + TWO, TWO, b"\0")),
    "bytes after a frame": ("gap", group([(0, 0, 2)], TWO + b"\0", TWO, b"\0")),
    "a frame that is none": ("gap", group([(0, 0, 2)], b"not zstd", TWO, b"\0")),
    "a skippable frame": ("gap", group([(0, 0, 2)], bytes.fromhex("502a4d1802000000ffff"), TWO, b"\0")),
    "sizes past the end": ("gap", HEAD.pack(1, 0, 2**32 - 1, 2**32 - 1, 2**32 - 1) + GOOD[16:]),
    "a class that the base does not have": ("class", group([(5, 0, 2)], TWO, TWO, b"\0")),
}


def test_the_groups_that_the_bad_ones_are_made_from_are_good(backend: Backend, small: dict):
    for coder, data in (("gap", GOOD), ("class", GOOD_CLASS)):
        cell_type, cells, _, base = small[coder]
        index, distance = decode_group(backend, coder, cell_type, cells, 2, data, base)
        assert distance.tolist() == [1, 2]
        assert index.tolist() == ([0, 2] if coder == "gap" else [0, 6])


@pytest.mark.parametrize("name", BAD)
def test_each_rule_of_a_group_is_checked(backend: Backend, small: dict, name: str):
    coder, data = BAD[name]
    cell_type, cells, _, base = small[coder]
    with pytest.raises(CodecError):
        decode_group(backend, coder, cell_type, cells, 2, data, base)


@pytest.mark.parametrize(("changed", "cells"), [(0, 400), (-1, 400), (401, 400), (2, GROUP_BYTES // 2 + 1), (2, 0)])
def test_counts_that_no_group_can_have_are_refused_before_the_bytes_are_read(
    backend: Backend, changed: int, cells: int
):
    with pytest.raises(CodecError, match="not possible"):
        decode_group(backend, "gap", CELL_TYPES["BF16"], cells, changed, b"")
