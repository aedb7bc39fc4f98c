"""Diff: exactly the differing cells, whatever the memory and however many they are."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulse_kernels import Backend
from tests.support.sampling import examples
from tests.unit.kernels.inputs import CHUNK, MEMORY, SIZES, WIDTHS, all_same, changed_arrays, random_cells, same


@pytest.mark.parametrize("width", WIDTHS)
@examples(30)
@given(data=st.data())
def test_it_finds_every_differing_cell_with_both_values_and_no_other(backend: Backend, width: int, data: st.DataObject):
    base, live, where = data.draw(changed_arrays(width))
    index, old, new = backend.diff(live, base)
    assert index.tolist() == where
    assert index.dtype == np.uint32
    assert same(old, base[where])
    assert same(new, live[where])


@pytest.mark.parametrize("width", WIDTHS)
@examples(30)
@given(data=st.data())
def test_each_backend_finds_what_the_reference_finds(
    fast: Backend, reference: Backend, width: int, data: st.DataObject
):
    base, live, _ = data.draw(changed_arrays(width))
    assert all_same(fast.diff(live, base), reference.diff(live, base))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("size", SIZES)
def test_all_cells_may_differ(backend: Backend, width: int, size: int):
    base = random_cells(width, size)
    index, old, new = backend.diff(~base, base)
    assert all_same((index, old, new), (np.arange(size, dtype=np.uint32), base, ~base))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("start", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK - 1])
@pytest.mark.parametrize("length", [1, 2, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK])
def test_runs_of_changes_may_begin_and_end_at_any_chunk_end(backend: Backend, width: int, start: int, length: int):
    base = random_cells(width, 6 * CHUNK)
    live = base.copy()
    live[start : start + length] ^= 1
    assert backend.diff(live, base)[0].tolist() == list(range(start, start + length))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("size", [1_100_003, (1 << 20) + 1])
def test_more_changes_than_the_first_buffer_holds_are_all_returned(fast: Backend, width: int, size: int):
    base = np.arange(size, dtype=f"<u{width}")
    index, old, new = fast.diff(~base, base)
    assert all_same((index, old, new), (np.arange(size, dtype=np.uint32), base, ~base))


@pytest.mark.parametrize("tail", [0, 1, CHUNK - 1])
def test_changes_that_fill_a_buffer_to_the_last_cell_are_all_returned(fast: Backend, tail: int):
    # A buffer takes another chunk as long as there is room for all of it: end the changes around that many.
    room = 1 << 16
    size = room + 4 * CHUNK + tail
    base = random_cells(2, size)
    for count in [*range(room - 2 * CHUNK - 1, room + CHUNK + 2, 7), room - CHUNK, room - CHUNK + 1, room, size - 1]:
        live = base.copy()
        live[:count] ^= 1
        live[-1] ^= 1
        assert same(fast.diff(live, base)[0], np.array([*range(count), size - 1], np.uint32))


@pytest.mark.parametrize("first", [1, 2, 31, CHUNK - 1])
def test_a_buffer_with_room_for_less_than_a_chunk_is_not_written_past_its_end(fast: Backend, first: int):
    base = random_cells(2, (1 << 16) + 4 * CHUNK)
    live = ~base
    live[first:CHUNK] = base[first:CHUNK]  # so that the buffer is never filled by whole chunks
    expected = np.array([*range(first), *range(CHUNK, len(base))], np.uint32)
    assert all_same(fast.diff(live, base), (expected, base[expected], ~base[expected]))


def test_a_result_is_not_changed_by_the_calls_that_follow(backend: Backend):
    base = random_cells(2, 3000)
    first = backend.diff(~base, base)
    kept = tuple(array.copy() for array in first)
    backend.diff(base[::-1].copy(), base)
    assert all_same(first, kept)


@pytest.mark.parametrize("width", WIDTHS)
def test_threads_do_not_disturb_each_other(backend: Backend, width: int):
    base = random_cells(width, 200_000)

    def diff(number: int) -> bool:
        live = base.copy()
        live[number::7] ^= 1
        return all_same(
            backend.diff(live, base),
            (np.arange(number, len(base), 7, dtype=np.uint32), base[number::7], live[number::7]),
        )

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(diff, range(12)))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("live_memory", MEMORY)
@pytest.mark.parametrize("base_memory", MEMORY)
def test_memory_may_be_unaligned_and_read_only(backend: Backend, width: int, live_memory: str, base_memory: str):
    base = random_cells(width, 5 * CHUNK + 3)
    live = base.copy()
    where = [0, 5, CHUNK - 1, CHUNK, 5 * CHUNK + 2]
    live[where] ^= 1
    expected = (np.array(where, np.uint32), base[where], live[where])
    assert all_same(backend.diff(MEMORY[live_memory](live), MEMORY[base_memory](base)), expected)


def test_a_small_result_does_not_hold_on_to_large_memory(backend: Backend):
    base = random_cells(2, 1 << 16)
    live = base.copy()
    live[7] ^= 1
    for array in backend.diff(live, base):
        assert array.base is None
        assert array.size == 1


def test_inputs_stay_as_they_are(backend: Backend):
    base, live = random_cells(2, 500), random_cells(2, 500, seed=1)
    before = base.copy(), live.copy()
    backend.diff(live, base)
    assert all_same((base, live), before)
