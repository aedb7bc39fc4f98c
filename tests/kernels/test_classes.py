"""Ranks within a class, and back: over several spans, empty ones too, and never past a class's cells."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulse_kernels import CELL_TYPES, Backend, Cells, CellType, Index, RankError
from tests.kernels.inputs import MEMORY, TYPES, all_same, places, random_cells, random_index, same

by_name = pytest.mark.parametrize("cell_type", TYPES, ids=lambda t: t.name)
EXPONENT = {
    "F64": (55, 0xFF),
    "F32": (23, 0xFF),
    "BF16": (7, 0xFF),
    "F16": (10, 31),
    "F8_E4M3": (3, 15),
    "F8_E5M2": (2, 31),
}
"""Shift and mask of the (top 8 bits of the) exponent, by the formats' definitions; the rest have one class."""


def class_of(cell: int, cell_type: CellType) -> int:
    shift, mask = EXPONENT.get(cell_type.name, (0, 0))
    return (cell >> shift) & mask


def few_classes(cell_type: CellType, size: int, seed: int = 0) -> Cells:
    """Return random cells of at most 16 classes, so that each has many."""
    cells = random_cells(cell_type.width, size, seed)
    shift, mask = EXPONENT.get(cell_type.name, (0, 0))
    keep = ~((mask & ~0x0F) << shift) & ((1 << cell_type.bits) - 1)
    return cells & cells.dtype.type(keep)


def ranked(cells: Cells, index: Index, cell_type: CellType) -> tuple[Index, Cells, Index]:
    """Count by hand: (rank, class, population)."""
    seen = [0] * 256
    rank, kind, wanted = [], [], set(index.tolist())
    for place, cell in enumerate(cells.tolist()):
        c = class_of(cell, cell_type)
        if place in wanted:
            rank.append(seen[c])
            kind.append(c)
        seen[c] += 1
    return np.array(rank, np.uint32), np.array(kind, np.uint8), np.array(seen, np.uint32)


def class_major(rank: Index, kind: Cells) -> tuple[Index, Index]:
    """Return (counts, ranks) as ``class_select`` takes them."""
    order = np.argsort(kind, kind="stable")
    return np.bincount(kind, minlength=256).astype(np.uint32), rank[order]


def cut(cells: Cells, ends: list[int]) -> list[Cells]:
    ends = [0, *sorted(ends), len(cells)]
    return [cells[a:b] for a, b in itertools.pairwise(ends)]


@by_name
@settings(max_examples=25)
@given(data=st.data())
def test_ranks_are_those_counted_by_hand_and_select_inverts_them(
    backend: Backend, cell_type: CellType, data: st.DataObject
):
    size = data.draw(st.integers(1, 300))
    cells = few_classes(cell_type, size, data.draw(st.integers(0, 99)))
    index = np.array(data.draw(places(size)), np.uint32)
    spans = cut(cells, data.draw(st.lists(st.integers(0, size), max_size=4)))  # equal ends give empty spans
    rank, kind, population = backend.class_ranks(spans, index, cell_type)
    assert all_same((rank, kind, population), ranked(cells, index, cell_type))
    counts, ranks = class_major(rank, kind)
    found, source = backend.class_select(spans, counts, ranks, cell_type)
    assert same(found, index)
    assert same(np.sort(source), np.arange(len(index), dtype=np.uint32))
    by_class = np.argsort(kind, kind="stable")
    assert same(kind[by_class][source], kind)


@by_name
def test_each_backend_agrees_with_the_reference_on_all_cells(fast: Backend, reference: Backend, cell_type: CellType):
    cells = random_cells(cell_type.width, 5000)
    index = np.arange(5000, dtype=np.uint32)
    spans = cut(cells, [0, 17, 17, 2500, 5000])
    expected = reference.class_ranks(spans, index, cell_type)
    assert all_same(fast.class_ranks(spans, index, cell_type), expected)
    counts, ranks = class_major(*expected[:2])
    assert all_same(
        fast.class_select(spans, counts, ranks, cell_type), reference.class_select(spans, counts, ranks, cell_type)
    )


@pytest.mark.parametrize("memory", MEMORY)
@by_name
def test_memory_may_be_unaligned_and_read_only(backend: Backend, cell_type: CellType, memory: str):
    cells, index, form = few_classes(cell_type, 600), random_index(600, 70), MEMORY[memory]
    expected = ranked(cells, index, cell_type)
    spans = [form(span) for span in cut(cells, [200, 201])]
    assert all_same(backend.class_ranks(spans, form(index), cell_type), expected)
    counts, ranks = class_major(*expected[:2])
    assert same(backend.class_select(spans, form(counts), form(ranks), cell_type)[0], index)


def test_the_class_of_a_float_is_its_exponent_for_every_pattern():
    for name in ("BF16", "F16", "F8_E4M3", "F8_E5M2"):
        cell_type = CELL_TYPES[name]
        patterns = np.arange(1 << cell_type.bits, dtype=np.uint32).astype(cell_type.dtype)
        assert cell_type.class_of(patterns).tolist() == [class_of(p, cell_type) for p in range(1 << cell_type.bits)]


@pytest.mark.parametrize("past", [0, 1, 1000, 2**32 - 51])
@pytest.mark.parametrize("of_class", [0, 255])
def test_a_rank_past_the_cells_of_its_class_raises(backend: Backend, past: int, of_class: int):
    cell_type = CELL_TYPES["BF16"]
    cells = np.repeat(np.array([0, 255], np.uint16) << 7, 50)
    counts = np.zeros(256, np.uint32)
    counts[of_class] = 2
    last = backend.class_select([cells], counts, np.array([0, 49], np.uint32), cell_type)[0]
    assert last.tolist() == ([0, 49] if of_class == 0 else [50, 99])
    with pytest.raises(RankError):
        backend.class_select([cells], counts, np.array([0, 50 + past], np.uint32), cell_type)


def test_a_rank_in_a_class_without_cells_raises(backend: Backend):
    counts = np.zeros(256, np.uint32)
    counts[3] = 1
    with pytest.raises(RankError):
        backend.class_select([np.zeros(10, np.uint16)], counts, np.zeros(1, np.uint32), CELL_TYPES["BF16"])


def test_nothing_asked_is_nothing_found(backend: Backend):
    none = np.empty(0, np.uint32)
    rank, kind, population = backend.class_ranks([np.zeros(10, np.uint16)], none, CELL_TYPES["BF16"])
    assert (len(rank), len(kind), int(population[0]), int(population.sum())) == (0, 0, 10, 10)
    found, source = backend.class_select([np.zeros(10, np.uint16)], np.zeros(256, np.uint32), none, CELL_TYPES["BF16"])
    assert all_same((found, source), (none, none))
