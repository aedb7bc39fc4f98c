"""Ranks within a class, and back: over several spans, empty ones too, and never past a class's cells."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulse_kernels import CELL_TYPES, Backend, Cells, CellType, Index, RankError
from tests.support.sampling import examples
from tests.unit.kernels.inputs import MEMORY, TYPES, all_same, places, random_cells, random_index, same

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
STRETCH = 512
"""Cells that the compiled loops count at a time."""
WINDOW = 8 * STRETCH
"""Cells that are ranked one after the other, once all of them are counted."""
BF16 = CELL_TYPES["BF16"]


def class_of(cell: int, cell_type: CellType) -> int:
    shift, mask = EXPONENT.get(cell_type.name, (0, 0))
    return (cell >> shift) & mask


def few_classes(cell_type: CellType, size: int, seed: int = 0) -> Cells:
    """Return random cells of at most 16 classes, so that each has many."""
    cells = random_cells(cell_type.width, size, seed)
    shift, mask = EXPONENT.get(cell_type.name, (0, 0))
    keep = ~((mask & ~0x0F) << shift) & ((1 << cell_type.bits) - 1)
    return cells & cells.dtype.type(keep)


def ranked(cells: Cells, index: Index, cell_type: CellType, first: int, classes: int) -> tuple[Index, Cells, Index]:
    """Count by hand: (rank, kind, population)."""
    seen = [0] * classes
    rank, kind, wanted = [], [], set(index.tolist())
    for place, cell in enumerate(cells.tolist()):
        c = min(max(class_of(cell, cell_type), first), first + classes - 1) - first
        if place in wanted:
            rank.append(seen[c])
            kind.append(c)
        seen[c] += 1
    return np.array(rank, np.uint32), np.array(kind, np.uint8), np.array(seen, np.uint32)


def class_major(rank: Index, kind: Cells, classes: int) -> tuple[Index, Index]:
    """Return (counts, ranks) as ``class_select`` takes them."""
    order = np.argsort(kind, kind="stable")
    return np.bincount(kind, minlength=classes).astype(np.uint32), rank[order]


def cut(cells: Cells, ends: list[int]) -> list[Cells]:
    ends = [0, *sorted(ends), len(cells)]
    return [cells[a:b] for a, b in itertools.pairwise(ends)]


def rewritten(spans: list[Cells], index: Index) -> tuple[list[Cells], Cells]:
    """Return spans in which the indexed cells have other classes, and what these cells are in the ones given."""
    cells = np.concatenate(spans)
    old = cells[index]
    cells[index] = ~old
    return cut(cells, np.cumsum([len(span) for span in spans])[:-1].tolist()), old


def check(backend: Backend, spans: list[Cells], index: Index, cell_type: CellType, first: int, classes: int) -> None:
    """Compare ranks with those counted by hand, before and after the change, and select with what was ranked."""
    expected = ranked(np.concatenate(spans), index, cell_type, first, classes)
    new, old = rewritten(spans, index)
    for cells in (spans, new):
        rank, kind, population = backend.class_ranks(cells, index, old, cell_type, first, classes)
        assert all_same((rank, kind, population), expected)
    counts, ranks = class_major(rank, kind, classes)
    found, source, old = backend.class_select(spans, counts, ranks, cell_type, first, classes)
    assert same(found, index)
    assert same(old, np.concatenate(spans)[index])
    assert same(np.sort(source), np.arange(len(index), dtype=np.uint32))
    assert same(np.sort(kind)[source], kind)
    assert same(ranks[source], rank)


@by_name
@examples(8)
@given(data=st.data())
def test_ranks_are_those_counted_by_hand_and_select_inverts_them(
    backend: Backend, cell_type: CellType, data: st.DataObject
):
    size = data.draw(st.integers(1, 1200))
    cells = few_classes(cell_type, size, data.draw(st.integers(0, 99)))
    index = np.array(data.draw(places(size)), np.uint32)
    spans = cut(cells, data.draw(st.lists(st.integers(0, size), max_size=4)))  # equal ends give empty spans
    classes = data.draw(st.integers(1, 32))
    check(backend, spans, index, cell_type, data.draw(st.integers(0, 12)), classes)


@by_name
def test_each_backend_agrees_with_the_reference_on_all_cells(fast: Backend, reference: Backend, cell_type: CellType):
    cells = random_cells(cell_type.width, 5000)
    index = np.arange(5000, dtype=np.uint32)
    spans = cut(cells, [0, 17, 17, 2500, 5000])
    for bounds in ((0, 1), (0, 32), (224, 32), (117, 20), (255, 1)):
        expected = reference.class_ranks(spans, index, cells, cell_type, *bounds)
        assert all_same(fast.class_ranks(spans, index, cells, cell_type, *bounds), expected)
        asked = class_major(*expected[:2], bounds[1])
        found = reference.class_select(spans, *asked, cell_type, *bounds)
        assert all_same(fast.class_select(spans, *asked, cell_type, *bounds), found)


@pytest.mark.parametrize("size", [STRETCH - 1, STRETCH, STRETCH + 1, 2 * STRETCH, 3 * STRETCH + 65])
@pytest.mark.parametrize("value", [0, 130, 255])
def test_one_class_may_hold_all_cells_and_all_may_be_asked_for(backend: Backend, size: int, value: int):
    cells = np.full(size, value << 7, np.uint16)
    for index in (np.arange(size), np.arange(0, size, 64), np.arange(63, size, 64), np.array([0, size - 1])):
        check(backend, [cells], index.astype(np.uint32), BF16, 120, 20)


@pytest.mark.parametrize("share", [0.0005, 0.01, 0.3, 1.0])
@pytest.mark.parametrize("classes", [1, 16, 17, 20, 32])
def test_weights_of_several_windows_are_ranked_and_found(backend: Backend, share: float, classes: int):
    rng = np.random.default_rng(classes)
    size = 2 * WINDOW + 3 * STRETCH + 65
    cells = (rng.standard_normal(size, np.float32).view(np.uint32) >> 16).astype(np.uint16)  # low classes are rare
    index = np.flatnonzero(rng.random(size) < share).astype(np.uint32)
    edges = [0, WINDOW - 1, WINDOW, 2 * WINDOW - 1, 2 * WINDOW, size - 1]
    index = np.union1d(index, np.array(edges, np.uint32))
    check(backend, [cells[: WINDOW + 7], cells[WINDOW + 7 :]], index, BF16, 129 - classes, classes)
    check(backend, [cells], index, BF16, 129 - classes, classes)


@pytest.mark.parametrize("place", [*range(0, 3 * STRETCH + 5, 71), 63, 64, 255, 256, 511, 512, 513, 1023, 1024])
def test_a_single_cell_is_found_wherever_it_lies(backend: Backend, place: int):
    cells = few_classes(BF16, 3 * STRETCH + 40, seed=place)
    check(backend, [cells[:5], cells[5:]], np.array([place], np.uint32), BF16, 2, 9)


@pytest.mark.parametrize("memory", MEMORY)
@by_name
def test_memory_may_be_unaligned_and_read_only(backend: Backend, cell_type: CellType, memory: str):
    cells, index, form = few_classes(cell_type, 1400), random_index(1400, 140), MEMORY[memory]
    expected = ranked(cells, index, cell_type, 1, 11)
    spans = [form(span) for span in cut(cells, [200, 201])]
    assert all_same(backend.class_ranks(spans, form(index), form(cells[index]), cell_type, 1, 11), expected)
    counts, ranks = class_major(*expected[:2], 11)
    assert same(backend.class_select(spans, form(counts), form(ranks), cell_type, 1, 11)[0], index)


def test_the_class_of_a_float_is_its_exponent_for_every_pattern():
    for name in ("BF16", "F16", "F8_E4M3", "F8_E5M2"):
        cell_type = CELL_TYPES[name]
        patterns = np.arange(1 << cell_type.bits, dtype=np.uint32).astype(cell_type.dtype)
        assert cell_type.class_of(patterns).tolist() == [class_of(p, cell_type) for p in range(1 << cell_type.bits)]


@pytest.mark.parametrize("cells", [50, 2 * STRETCH + 9], ids=["short", "long"])
@pytest.mark.parametrize("past", [0, 1, 1000, 2**32 - 1100])
@pytest.mark.parametrize("kind", [0, 31])
def test_a_rank_past_the_cells_of_its_class_raises(backend: Backend, cells: int, past: int, kind: int):
    span = np.repeat(np.array([0, 255], np.uint16) << 7, cells)
    counts = np.zeros(32, np.uint32)
    counts[kind] = 2
    last = backend.class_select([span], counts, np.array([0, cells - 1], np.uint32), BF16, 100, 32)[0]
    assert last.tolist() == [kind // 31 * cells, kind // 31 * cells + cells - 1]
    with pytest.raises(RankError):
        backend.class_select([span], counts, np.array([0, cells + past], np.uint32), BF16, 100, 32)


@pytest.mark.parametrize("ranks", [[3, 3], [3, 2], [600, 0], [0, 0]], ids=str)
def test_ranks_that_do_not_increase_are_never_found(fast: Backend, ranks: list[int]):
    counts = np.array([2], np.uint32)
    with pytest.raises(RankError):
        fast.class_select([np.zeros(1000, np.uint16)], counts, np.array(ranks, np.uint32), BF16, 0, 1)


def test_a_rank_in_a_class_without_cells_raises(backend: Backend):
    for size in (10, 1000):
        with pytest.raises(RankError):
            backend.class_select(
                [np.zeros(size, np.uint16)], np.array([0, 0, 0, 1], np.uint32), np.zeros(1, np.uint32), BF16, 0, 4
            )


@pytest.mark.parametrize("index", [[10], [3, 1000], [600]], ids=str)
def test_an_index_past_the_spans_raises(backend: Backend, index: list[int]):
    for size in (10, 600):
        if index[-1] >= size:
            places, old = np.array(index, np.uint32), np.zeros(len(index), np.uint16)
            with pytest.raises(IndexError):
                backend.class_ranks([np.zeros(size, np.uint16)], places, old, BF16, 0, 4)


@pytest.mark.parametrize(("first", "classes"), [(0, 0), (0, 33), (-1, 4), (250, 7)])
def test_more_classes_than_there_are_counters_are_refused(fast: Backend, first: int, classes: int):
    cells: list[Any] = [np.zeros(300, np.uint16)]
    none, no_cells = np.empty(0, np.uint32), np.empty(0, np.uint16)
    with pytest.raises(ValueError, match="classes"):
        fast.class_ranks(cells, none, no_cells, BF16, first, classes)
    with pytest.raises(ValueError, match="classes"):
        fast.class_select(cells, none, none, BF16, first, classes)


def test_nothing_asked_is_nothing_found(backend: Backend):
    none, spans = np.empty(0, np.uint32), [np.zeros(10, np.uint16)]
    rank, kind, population = backend.class_ranks(spans, none, np.empty(0, np.uint16), BF16, 0, 3)
    assert (len(rank), len(kind), population.tolist()) == (0, 0, [10, 0, 0])
    assert all_same(backend.class_select(spans, np.zeros(3, np.uint32), none, BF16, 0, 3)[:2], (none, none))
