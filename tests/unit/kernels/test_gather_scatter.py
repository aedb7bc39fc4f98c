"""Gather and scatter: single cells, bounds checked before anything is touched."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulse_kernels import Backend
from tests.unit.kernels.inputs import MEMORY, WIDTHS, places, random_cells, random_index, same, unaligned


@pytest.mark.parametrize("width", WIDTHS)
@settings(max_examples=40)
@given(data=st.data())
def test_what_is_scattered_is_gathered_and_nothing_else_changes(backend: Backend, width: int, data: st.DataObject):
    size = data.draw(st.integers(0, 200))
    cells = random_cells(width, size)
    index = np.array(data.draw(places(size)), np.uint32)
    values = random_cells(width, len(index), seed=1)
    expected = dict(enumerate(cells.tolist())) | dict(zip(index.tolist(), values.tolist(), strict=True))
    assert backend.scatter(cells, index, values) is None
    assert cells.tolist() == [expected[i] for i in range(size)]
    assert same(backend.gather(cells, index), values)


@pytest.mark.parametrize("width", WIDTHS)
def test_gather_returns_memory_of_its_own(backend: Backend, width: int):
    cells = random_cells(width, 100)
    found = backend.gather(cells, np.arange(100, dtype=np.uint32))
    assert same(found, cells)
    assert not np.shares_memory(found, cells)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("memory", MEMORY)
def test_memory_may_be_unaligned_and_read_only(backend: Backend, width: int, memory: str):
    cells, index, values = random_cells(width, 300), random_index(300, 40), random_cells(width, 40, seed=1)
    form = MEMORY[memory]
    assert same(backend.gather(form(cells), form(index)), cells[index])
    target = unaligned(cells)
    backend.scatter(target, form(index), form(values))
    cells[index] = values
    assert same(target, cells)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("size", [0, 1, 10])
@pytest.mark.parametrize("past", [0, 1, 2**31, 2**32 - 11])
def test_an_index_past_the_end_raises_and_nothing_is_written(backend: Backend, width: int, size: int, past: int):
    cells = random_cells(width, size)
    before = cells.copy()
    index = np.array([*range(size), size + past], np.uint32)
    values = random_cells(width, len(index), seed=1)
    with pytest.raises(IndexError):
        backend.scatter(cells, index, values)
    assert same(cells, before)
    with pytest.raises(IndexError):
        backend.gather(cells, index)


def test_an_empty_index_is_no_error_even_on_no_cells(backend: Backend):
    for size in (0, 5):
        cells, none = random_cells(2, size), np.empty(0, np.uint32)
        assert same(backend.gather(cells, none), np.empty(0, np.uint16))
        backend.scatter(cells, none, np.empty(0, np.uint16))


def test_scatter_refuses_read_only_cells(backend: Backend):
    cells = MEMORY["read-only"](random_cells(2, 10))
    before = cells.copy()
    with pytest.raises((ValueError, TypeError)):
        backend.scatter(cells, np.array([1], np.uint32), np.array([1], np.uint16))
    assert same(cells, before)
