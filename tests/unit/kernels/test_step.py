"""Step: what a delta makes of the cells it finds, with the sums of h over both; the cells are only read."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulse_kernels import CELL_TYPES, Backend, CellType
from tests.support.sampling import examples
from tests.unit.kernels.inputs import MEMORY, TYPES, deltas, random_cells, random_index, same

by_name = pytest.mark.parametrize("cell_type", TYPES, ids=lambda t: t.name)


@by_name
@examples(8)
@given(data=st.data())
def test_it_is_gather_then_move_and_both_sums(
    backend: Backend, reference: Backend, cell_type: CellType, data: st.DataObject
):
    cells = random_cells(cell_type.width, 300, data.draw(st.integers(0, 99)))
    index, distance = data.draw(deltas(cell_type.width))
    start = data.draw(st.integers(0, 2**40))
    before = cells.copy()
    old, new, lanes_old, lanes_new = backend.step(cells, index, distance, cell_type, start)
    assert same(old, cells[index])
    assert same(new, reference.move(old, distance, cell_type))
    assert lanes_old == reference.digest_sparse(index, old, start)
    assert lanes_new == reference.digest_sparse(index, new, start)
    assert same(cells, before)


@by_name
def test_it_leads_from_what_advance_found_old_to_what_it_found_new(backend: Backend, cell_type: CellType):
    cells = random_cells(cell_type.width, 4000)
    live, index = cells.copy(), random_index(4000, 400)
    live[index] = random_cells(cell_type.width, 400, seed=1)
    before = cells.copy()
    found, old, new, lanes_old, lanes_new = backend.advance_spans([live], [cells], 5)
    stepped = backend.step(before, found, backend.distance(old, new, cell_type), cell_type, 5)
    assert same(stepped[0], old)
    assert same(stepped[1], new)
    assert stepped[2:] == (lanes_old, lanes_new)


@pytest.mark.parametrize("size", [0, 1, 10, 500])
@pytest.mark.parametrize("past", [0, 1, 2**31, 2**32 - 501])
def test_an_index_past_the_end_raises(backend: Backend, size: int, past: int):
    index = np.array([*range(size), size + past], np.uint32)
    with pytest.raises(IndexError):
        backend.step(random_cells(2, size), index, np.ones(len(index), np.uint16), CELL_TYPES["BF16"], 0)


def test_no_changes_are_no_error_even_on_no_cells(backend: Backend):
    for size in (0, 5):
        none = np.empty(0, np.uint16)
        found = backend.step(random_cells(2, size), np.empty(0, np.uint32), none, CELL_TYPES["BF16"], 3)
        assert same(found[0], none)
        assert same(found[1], none)
        assert found[2:] == ((0, 0), (0, 0))


@pytest.mark.parametrize("memory", MEMORY)
def test_memory_may_be_unaligned_and_read_only(backend: Backend, memory: str):
    form, cell_type = MEMORY[memory], CELL_TYPES["F32"]
    cells, index, distance = random_cells(4, 900), random_index(900, 100), random_cells(4, 100, seed=1)
    expected = backend.step(cells, index, distance, cell_type, 9)
    found = backend.step(form(cells), form(index), form(distance), cell_type, 9)
    assert same(found[0], expected[0])
    assert same(found[1], expected[1])
    assert found[2:] == expected[2:]
