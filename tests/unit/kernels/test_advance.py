"""Advance of one span: a diff that leaves the base equal to the live cells and knows the sums of h over both."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulse_kernels import Backend, Cells
from tests.support.sampling import examples
from tests.unit.kernels.inputs import (
    CHUNK,
    MEMORY,
    SIZES,
    WIDTHS,
    all_same,
    changed_arrays,
    random_cells,
    same,
    unaligned,
)

BUFFER = 1 << 16
"""Changes that the compiled diff collects at a time."""


def check(backend: Backend, reference: Backend, live: Cells, base: Cells, start: int = 0) -> None:
    """Compare with diff and two sums, taken one by one, and look at what is left in the base."""
    before = live.copy()
    index, old, new = backend.diff(live, base)
    *found, lanes_old, lanes_new = backend.advance_spans([live], [base], start)
    assert all_same(tuple(found), (index, old, new))
    assert lanes_old == reference.digest_sparse(index, old, start)
    assert lanes_new == reference.digest_sparse(index, new, start)
    assert same(base, live)
    assert same(live, before)


@pytest.mark.parametrize("width", WIDTHS)
@examples(20)
@given(data=st.data())
def test_it_is_diff_then_scatter_and_both_sums(backend: Backend, reference: Backend, width: int, data: st.DataObject):
    base, live, _ = data.draw(changed_arrays(width))
    check(backend, reference, live, base, data.draw(st.integers(0, 2**40)))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("size", SIZES)
def test_all_cells_may_change(backend: Backend, reference: Backend, width: int, size: int):
    base = random_cells(width, size)
    check(backend, reference, ~base, base, 2**32 - 5)


@pytest.mark.parametrize("rounded", [False, True])
def test_a_cell_that_is_changed_back_while_it_is_looked_at_did_not_change(fast: Backend, rounded: bool):
    """A change to the same pattern can't be coded: who read the version's patch would refuse it."""
    cells, dtype, rounds = 1 << 21, np.uint32 if rounded else np.uint16, 40
    live, here, there = np.zeros(cells, dtype), np.zeros(cells, dtype), np.full(cells, 1 << 16 if rounded else 1, dtype)
    done = threading.Event()

    def swap() -> None:
        while not done.is_set():
            np.copyto(live, there)
            np.copyto(live, here)

    swapping = threading.Thread(target=swap)
    swapping.start()
    try:
        for _ in range(rounds):
            _, old, new, *_ = fast.advance_spans([live], [np.zeros(cells, np.uint16)], 0)
            assert (old != new).all()
    finally:
        done.set()
        swapping.join()


@pytest.mark.parametrize("size", [BUFFER - CHUNK, BUFFER, BUFFER + CHUNK + 1, 2 * BUFFER + 5])
def test_more_changes_than_a_buffer_holds_are_all_taken_over_and_summed(fast: Backend, reference: Backend, size: int):
    base = random_cells(2, size)
    check(fast, reference, ~base, base, 77)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("live_memory", MEMORY)
def test_memory_may_be_unaligned_and_live_cells_read_only(
    backend: Backend, reference: Backend, width: int, live_memory: str
):
    base = random_cells(width, 5 * CHUNK + 3)
    live = base.copy()
    live[[0, 5, CHUNK - 1, CHUNK, 5 * CHUNK + 2]] ^= 1
    check(backend, reference, MEMORY[live_memory](live), unaligned(base))


@pytest.mark.parametrize("size", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 7, BUFFER + 4 * CHUNK])
def test_from_float32_it_is_that_of_the_rounded_patterns(backend: Backend, reference: Backend, size: int):
    live = random_cells(4, size)
    live[::7] |= 0x7F800000  # many NaN and infinities
    rounded = np.empty(size, np.uint16)
    reference.cast_f32(live, rounded)
    base, expected_base = rounded.copy(), rounded.copy()
    base[::3] ^= 1
    expected_base[::3] ^= 1
    found = backend.advance_spans([live], [base], 1000)
    expected = reference.advance_spans([rounded], [expected_base], 1000)
    assert all_same(found[:3], expected[:3])
    assert found[3:] == expected[3:]
    assert same(base, rounded)


def test_what_one_bit_apart_values_and_signs_of_zero_and_nan_payloads_differ_in_is_found(
    backend: Backend, reference: Backend
):
    base = np.array([0x0000, 0x8000, 0x7FC0, 0x7FC1, 0xFFC0, 0x7F80, 0x3F80, 0x3F80], np.uint16)
    live = np.array([0x8000, 0x0000, 0x7FC1, 0x7FC1, 0x7FC0, 0x7F81, 0x3F80, 0x3F81], np.uint16)
    assert backend.diff(live, base)[0].tolist() == [0, 1, 2, 4, 5, 7]
    check(backend, reference, live, base)
