"""Functions on spans: what they give on the cells laid end to end, wherever these are cut, and however given."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulse_kernels import CELL_TYPES, Backend, Cells, Spans, SpanTable
from tests.support.sampling import examples
from tests.unit.kernels.inputs import (
    CHUNK,
    MEMORY,
    WIDTHS,
    all_same,
    places,
    random_cells,
    random_index,
    same,
    unaligned,
)

TYPES = {1: "F8_E4M3", 2: "BF16", 4: "F32", 8: "F64"}
BUFFER = 1 << 16
"""Changes that the compiled diff collects, and ``move_spans`` makes, at a time."""


def cut(cells: Cells, ends: list[int]) -> list[Cells]:
    """Return copies of the parts; equal ends give empty ones."""
    return [cells[a:b].copy() for a, b in itertools.pairwise([0, *sorted(ends), len(cells)])]


def as_given(spans: list[Cells], width: int) -> Spans:
    return spans


def as_table(spans: list[Cells], width: int) -> Spans:
    return SpanTable.of(spans, np.dtype(f"u{width}"))


by_form = pytest.mark.parametrize("form", [as_given, as_table])


@by_form
@pytest.mark.parametrize("width", WIDTHS)
@examples(20)
@given(data=st.data())
def test_they_agree_with_the_reference_on_the_whole(
    backend: Backend, reference: Backend, form: Callable[[list[Cells], int], Spans], width: int, data: st.DataObject
):
    size = data.draw(st.integers(0, 300))
    ends = data.draw(st.lists(st.integers(0, size), max_size=5))
    cells, start = random_cells(width, size, data.draw(st.integers(0, 99))), data.draw(st.integers(0, 2**40))
    index = np.array(data.draw(places(size)), np.uint32)
    values, cell_type = random_cells(width, len(index), seed=1), CELL_TYPES[TYPES[width]]
    spans = cut(cells, ends)
    where = form(spans, width)
    assert backend.digest_spans(where, start) == reference.digest(cells, start)
    assert same(backend.gather_spans(where, index), cells[index])
    stepped = backend.step_spans(where, index, values, cell_type, start)
    expected = reference.step(cells, index, values, cell_type, start)
    assert all_same(stepped[:2], expected[:2])
    assert stepped[2:] == expected[2:]
    assert same(np.concatenate(spans), cells)
    moved = cut(cells, ends)
    assert backend.move_spans(form(moved, width), index, values, cell_type, start) == expected[2:]
    assert same(np.concatenate(moved)[index], expected[1])
    assert same(np.delete(np.concatenate(moved), index), np.delete(cells, index))
    backend.scatter_spans(where, index, values)
    live = cells.copy()
    live[index] = values
    assert same(np.concatenate(spans), live)
    base = cut(cells, ends)
    found = backend.advance_spans(where, form(base, width), start)
    wanted = reference.advance_spans([live], [cells], start)
    assert all_same(found[:3], wanted[:3])
    assert found[3:] == wanted[3:]
    assert same(np.concatenate(base), live)


@by_form
@examples(20)
@given(data=st.data())
def test_spans_of_float32_and_of_bf16_may_lie_side_by_side(
    backend: Backend, reference: Backend, form: Callable[[list[Cells], int], Spans], data: st.DataObject
):
    sizes = data.draw(st.lists(st.integers(0, 200), min_size=1, max_size=5))
    masters = [random_cells(4, size, seed) for seed, size in enumerate(sizes)]
    rounded = [np.empty(size, np.uint16) for size in sizes]
    for wide, narrow in zip(masters, rounded, strict=True):
        reference.cast_f32(wide, narrow)
    as_masters = data.draw(st.lists(st.booleans(), min_size=len(sizes), max_size=len(sizes)))
    live = [wide if chosen else narrow for wide, narrow, chosen in zip(masters, rounded, as_masters, strict=True)]
    base = [cells.copy() for cells in rounded]
    for cells in base:
        cells[::5] ^= 1
    whole = np.concatenate(base)
    found = backend.advance_spans(form(live, 2), form(base, 2), 77)
    expected = reference.advance_spans([np.concatenate(rounded)], [whole], 77)
    assert all_same(found[:3], expected[:3])
    assert found[3:] == expected[3:]
    assert same(np.concatenate(base), np.concatenate(rounded))


@pytest.mark.parametrize("first", [BUFFER - CHUNK, BUFFER - CHUNK + 1, BUFFER - 1, BUFFER, BUFFER + 5])
def test_a_buffer_that_is_full_at_the_end_of_a_span_goes_on_with_the_next(fast: Backend, first: int):
    cells = random_cells(2, first + 3 * CHUNK + 9)
    base = cut(cells, [first, first, first + CHUNK])
    live = [~span for span in base]
    index, old, new, *_ = fast.advance_spans(live, base, 0)
    assert all_same((index, old, new), (np.arange(len(cells), dtype=np.uint32), cells, ~cells))
    assert same(np.concatenate(base), ~cells)


@pytest.mark.parametrize("past", [0, 1, 2**31, 2**32 - 301])
def test_an_index_past_the_end_raises_and_nothing_is_written(backend: Backend, past: int):
    cells = random_cells(2, 300)
    spans, index = cut(cells, [100, 100, 250]), np.array([5, 250, 300 + past], np.uint32)
    with pytest.raises(IndexError):
        backend.gather_spans(spans, index)
    with pytest.raises(IndexError):
        backend.scatter_spans(spans, index, np.zeros(3, np.uint16))
    with pytest.raises(IndexError):
        backend.step_spans(spans, index, np.ones(3, np.uint16), CELL_TYPES["BF16"], 0)
    with pytest.raises(IndexError):
        backend.move_spans(cut(cells, [100, 250]), index, np.ones(3, np.uint16), CELL_TYPES["BF16"], 0)
    assert same(np.concatenate(spans), cells)


@pytest.mark.parametrize("index", [[200, 5], [50, 250, 120], [299, 100]], ids=str)
def test_an_index_that_goes_back_to_an_earlier_span_is_refused(fast: Backend, index: list[int]):
    spans, places_ = cut(random_cells(2, 300), [100, 200]), np.array(index, np.uint32)
    with pytest.raises(IndexError, match="order"):
        fast.gather_spans(spans, places_)
    with pytest.raises(IndexError, match="order"):
        fast.scatter_spans(spans, places_, np.zeros(len(index), np.uint16))
    with pytest.raises(IndexError, match="order"):
        fast.move_spans(spans, places_, np.zeros(len(index), np.uint16), CELL_TYPES["BF16"], 0)


@pytest.mark.parametrize("changed", [BUFFER - 1, BUFFER, BUFFER + 1, 2 * BUFFER + 5])
def test_more_cells_than_are_moved_at_a_time_are_moved(fast: Backend, reference: Backend, changed: int):
    cells, cell_type = random_cells(2, 3 * BUFFER), CELL_TYPES["BF16"]
    index, values = random_index(len(cells), changed), random_cells(2, changed, seed=1)
    _, new, *sums = reference.step(cells, index, values, cell_type, 7)
    spans = cut(cells, [BUFFER // 2, 2 * BUFFER])
    assert fast.move_spans(spans, index, values, cell_type, 7) == tuple(sums)
    cells[index] = new
    assert same(np.concatenate(spans), cells)


def test_live_and_base_spans_of_different_sizes_are_refused(backend: Backend):
    for live, base in (([3], [4]), ([4, 2], [2, 4]), ([4], [4, 0])):
        spans, under = [np.zeros(n, np.uint16) for n in live], [np.ones(n, np.uint16) for n in base]
        for form in (as_given, as_table):
            with pytest.raises(ValueError, match="size"):
                backend.advance_spans(form(spans, 2), form(under, 2), 0)


def test_a_table_of_other_cells_or_with_gaps_is_not_made():
    for wrong in (np.zeros(9, np.uint64), np.zeros(9, np.uint16)[::2], np.zeros((3, 3), np.uint16)):
        with pytest.raises(ValueError, match="a table is of contiguous runs of uint16"):
            SpanTable.of([wrong], np.dtype(np.uint16))


def test_a_table_of_other_cells_or_of_memory_that_is_read_only_is_refused(fast: Backend):
    wide, narrow = np.zeros(9, np.uint32), np.zeros(9, np.uint16)
    narrow.flags.writeable = False
    index, values = np.array([1], np.uint32), np.array([5], np.uint16)
    with pytest.raises(ValueError, match="cells of 2 bytes"):
        fast.digest_spans(SpanTable.of([wide], np.dtype(np.uint16)), 0)
    with pytest.raises(ValueError, match="writable cells of 2 bytes"):
        fast.scatter_spans(as_table([narrow], 2), index, values)
    with pytest.raises(ValueError, match="writable cells of 2 bytes"):
        fast.advance_spans(as_table([np.ones(9, np.uint16)], 2), as_table([narrow], 2), 0)
    with pytest.raises(ValueError, match="not of the same"):
        fast.advance_spans(as_table([wide], 4), [np.zeros(9, np.uint16)], 0)
    assert not narrow.any()


def test_arrays_of_another_type_or_with_gaps_are_refused(fast: Backend):
    cells = np.zeros(100, np.uint16)
    for wrong in (np.zeros(100, np.uint64), cells[::2], np.zeros((10, 10), np.uint16)):
        with pytest.raises((TypeError, ValueError)):
            fast.advance_spans([wrong], [np.zeros(len(wrong), np.uint16)], 0)
        with pytest.raises((TypeError, ValueError)):
            fast.digest_spans([cells, wrong], 0)


@pytest.mark.parametrize("memory", MEMORY)
def test_memory_may_be_unaligned_and_read_only(backend: Backend, memory: str):
    cells, form = random_cells(4, 900), MEMORY[memory]
    index, values, cell_type = random_index(900, 100), random_cells(4, 100, seed=1), CELL_TYPES["F32"]
    plain, odd = cut(cells, [300, 301]), [form(span) for span in cut(cells, [300, 301])]
    assert backend.digest_spans(odd, 9) == backend.digest_spans(plain, 9)
    expected, found = (backend.step_spans(spans, index, values, cell_type, 9) for spans in (plain, odd))
    assert all_same(found[:2], expected[:2])
    target = [unaligned(span) for span in plain]
    backend.scatter_spans(target, form(index), form(values))
    cells[index] = values
    assert same(np.concatenate(target), cells)
    backend.advance_spans(odd, target, 0)
    assert same(np.concatenate(target), np.concatenate(odd))


def test_read_only_spans_are_not_written(backend: Backend):
    spans = [MEMORY["read-only"](random_cells(2, 10))]
    before = spans[0].copy()
    with pytest.raises((ValueError, TypeError)):
        backend.scatter_spans(spans, np.array([1], np.uint32), np.array([1], np.uint16))
    with pytest.raises((ValueError, TypeError)):
        backend.advance_spans([~before], spans, 0)
    assert same(spans[0], before)
