"""Merging two lists of distances: as adding two sparse vectors mod 2**bits. Union and places of indices: as sets."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulse_kernels import Backend, Cells, Index
from tests.support.sampling import examples
from tests.unit.kernels.inputs import MEMORY, WIDTHS, all_same, deltas, places, random_cells, random_index, same


def added(first: tuple[Index, Cells], second: tuple[Index, Cells]) -> tuple[Index, Cells]:
    width = first[1].itemsize
    total: dict[int, int] = {}
    for index, distance in (first, second):
        for place, step in zip(index.tolist(), distance.tolist(), strict=True):
            total[place] = (total.get(place, 0) + step) % (1 << (8 * width))
    kept = sorted(place for place, step in total.items() if step)
    return np.array(kept, np.uint32), np.array([total[place] for place in kept], f"<u{width}")


@pytest.mark.parametrize("width", WIDTHS)
@examples(30)
@given(data=st.data())
def test_it_adds_distances_at_equal_places_and_drops_zeros(backend: Backend, width: int, data: st.DataObject):
    first, second = data.draw(deltas(width, 60)), data.draw(deltas(width, 60))
    assert all_same(backend.merge(first, second), added(first, second))


@pytest.mark.parametrize("width", WIDTHS)
def test_a_list_and_its_negative_cancel_out(backend: Backend, width: int):
    index, distance = random_index(1000, 200), random_cells(width, 200) | 1
    negative = ~distance + distance.dtype.type(1)
    merged = backend.merge((index, distance), (index, negative))
    assert all_same(merged, (np.empty(0, np.uint32), np.empty(0, distance.dtype)))


@pytest.mark.parametrize("width", WIDTHS)
def test_zeros_drop_out_wherever_they_stand(backend: Backend, width: int):
    half = 1 << (8 * width - 1)
    first = np.array([1, 4, 7, 2**32 - 1], np.uint32), np.array([half, 1, half, half], f"<u{width}")
    second = np.array([1, 5, 7, 2**32 - 1], np.uint32), np.array([half, 2, half, half], f"<u{width}")
    merged = backend.merge(first, second)
    assert all_same(merged, (np.array([4, 5], np.uint32), np.array([1, 2], f"<u{width}")))


@pytest.mark.parametrize("width", WIDTHS)
def test_an_empty_list_changes_nothing_on_either_side(backend: Backend, width: int):
    some = random_index(500, 30), random_cells(width, 30) | 1
    none = np.empty(0, np.uint32), np.empty(0, some[1].dtype)
    assert all_same(backend.merge(some, none), some)
    assert all_same(backend.merge(none, some), some)
    assert all_same(backend.merge(none, none), none)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("memory", MEMORY)
def test_memory_may_be_unaligned_and_read_only(backend: Backend, width: int, memory: str):
    first = random_index(500, 60), random_cells(width, 60) | 1
    second = random_index(500, 90, seed=1), random_cells(width, 90, seed=1) | 1
    form = MEMORY[memory]
    merged = backend.merge((form(first[0]), form(first[1])), (form(second[0]), form(second[1])))
    assert all_same(merged, added(first, second))


NONE = np.empty(0, np.uint32)
EXTREME = np.array([0, 1, 2**31 - 1, 2**31, 2**32 - 1], np.uint32)


@examples(30)
@given(first=places(200), second=places(200))
def test_the_union_of_two_lists_is_that_of_the_sets_in_order(backend: Backend, first: list[int], second: list[int]):
    union = backend.union(np.array(first, np.uint32), np.array(second, np.uint32))
    assert same(union, np.array(sorted({*first, *second}), np.uint32))


@examples(30)
@given(among=places(200), data=st.data())
def test_the_places_of_some_indices_lead_back_to_them(backend: Backend, among: list[int], data: st.DataObject):
    index = [place for place in among if data.draw(st.booleans())]
    found = backend.locate(np.array(among, np.uint32), np.array(index, np.uint32))
    assert same(found, np.array([among.index(place) for place in index], np.uint32))


@pytest.mark.parametrize("memory", MEMORY)
def test_union_and_places_take_the_largest_indices_and_any_memory(backend: Backend, memory: str):
    form, some = MEMORY[memory], EXTREME[[0, 3, 4]]
    assert same(backend.union(form(EXTREME), form(some)), EXTREME)
    assert same(backend.union(form(some), form(EXTREME)), EXTREME)
    assert same(backend.union(form(EXTREME[1:2]), form(some)), EXTREME[[0, 1, 3, 4]])
    assert same(backend.locate(form(EXTREME), form(some)), np.array([0, 3, 4], np.uint32))
    assert same(backend.locate(form(EXTREME), form(EXTREME)), np.arange(5, dtype=np.uint32))


def test_union_and_places_of_nothing(backend: Backend):
    assert same(backend.union(NONE, NONE), NONE)
    assert same(backend.union(EXTREME, NONE), EXTREME)
    assert same(backend.union(NONE, EXTREME), EXTREME)
    assert same(backend.locate(EXTREME, NONE), NONE)
    assert same(backend.locate(NONE, NONE), NONE)
    union = backend.union(EXTREME, NONE)
    assert not np.shares_memory(union, EXTREME)
