"""The state digest: the documented formula, in any pieces and in any order, up to the largest flat indices."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulse_kernels import Backend, Cells
from tests.unit.kernels.inputs import MEMORY, WIDTHS, random_cells, random_index

MASK = 2**64 - 1
SEEDS = (0x243F6A8885A308D3, 0x13198A2E03707344)
GOLDEN = 0x9E3779B97F4A7C15
STARTS = (0, 1, 1023, 1024, 1025, 2**20 - 3, 2**31 - 1, 2**32 - 5, 2**32, 2**32 + 1, 2**40 - 1, 2**40 + 1023, 2**52 + 7)


def mix(x: int) -> int:
    """SplitMix64's output function, from its paper."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def h(lane: int, flat: int, cell: int) -> int:
    """The documented hash of one cell, in Python integers."""
    block, within = flat >> 10, flat & 1023
    coefficient = (mix(((SEEDS[lane] ^ MASK) + (within + 1) * GOLDEN) & MASK) >> 32) | 1
    total = 0
    for limb in range(4):
        multiplier = mix((SEEDS[lane] + (4 * block + limb + 1) * GOLDEN) & MASK) | 1
        total += multiplier * coefficient * ((cell >> (16 * limb)) & 0xFFFF)
    return total & MASK


def formula(cells: Cells, start: int) -> tuple[int, int]:
    lanes = [sum(h(lane, start + k, v) for k, v in enumerate(cells.tolist())) & MASK for lane in (0, 1)]
    return lanes[0], lanes[1]


def added(*lanes: tuple[int, int]) -> tuple[int, int]:
    return sum(a for a, _ in lanes) & MASK, sum(b for _, b in lanes) & MASK


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("start", STARTS)
def test_it_is_the_documented_formula(backend: Backend, width: int, start: int):
    cells = random_cells(width, 37)
    assert backend.digest(cells, start) == formula(cells, start)
    index = random_index(1 << 31, 37)
    expected = added(*(formula(cells[k : k + 1], start + int(i)) for k, i in enumerate(index)))
    assert backend.digest_sparse(index, cells, start) == expected


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("size", [1, 1023, 1024, 1025, 2050])
def test_it_is_the_documented_formula_over_several_blocks(backend: Backend, width: int, size: int):
    cells = random_cells(width, size)
    assert backend.digest(cells, 5) == formula(cells, 5)


@pytest.mark.parametrize("width", WIDTHS)
def test_extreme_cells_do_not_overflow_a_block(backend: Backend, width: int):
    ones = np.full(2048, (1 << (8 * width)) - 1, f"<u{width}")
    assert backend.digest(ones, 0) == formula(ones, 0)
    assert backend.digest(np.zeros_like(ones), 0) == (0, 0)


@pytest.mark.parametrize("width", WIDTHS)
@settings(max_examples=30)
@given(start=st.integers(0, 2**53), size=st.integers(0, 3000), seed=st.integers(0, 99))
def test_each_backend_agrees_with_the_reference(
    fast: Backend, reference: Backend, width: int, start: int, size: int, seed: int
):
    cells = random_cells(width, size, seed)
    assert fast.digest(cells, start) == reference.digest(cells, start)
    index = random_index(10 * size + 1, size, seed)
    assert fast.digest_sparse(index, cells, start) == reference.digest_sparse(index, cells, start)
    new = cells[::-1].copy()
    assert fast.digest_changes(index, cells, new, start) == reference.digest_changes(index, cells, new, start)
    assert fast.digest_changes(index, cells, new, start)[1] == reference.digest_sparse(index, new, start)


@pytest.mark.parametrize("width", WIDTHS)
@settings(max_examples=30)
@given(start=st.integers(0, 2**42), cuts=st.lists(st.integers(0, 5000), max_size=6))
def test_pieces_add_up_to_the_whole(backend: Backend, width: int, start: int, cuts: list[int]):
    cells = random_cells(width, 5000)
    ends = [0, *sorted(cuts), 5000]
    parts = [backend.digest(cells[a:b], start + a) for a, b in itertools.pairwise(ends)]
    assert added(*parts) == backend.digest(cells, start)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("start", STARTS)
def test_the_digest_kept_up_to_date_by_changes_is_the_full_one(backend: Backend, width: int, start: int):
    old = random_cells(width, 4000)
    new = old.copy()
    index = random_index(4000, 300)
    new[index] = random_cells(width, 300, seed=1)
    gone, come = (backend.digest_sparse(index, cells[index], start) for cells in (old, new))
    expected = tuple((a - b + c) & MASK for a, b, c in zip(backend.digest(old, start), gone, come, strict=True))
    assert backend.digest(new, start) == expected


@pytest.mark.parametrize("width", WIDTHS)
def test_every_single_change_of_a_cell_alters_both_lanes(backend: Backend, width: int):
    size = 2100
    cells = random_cells(width, size)
    before = backend.digest(cells, 2**32 - 1000)
    for k in range(0, size, 7):
        changed = cells.copy()
        changed[k] ^= changed.dtype.type(1 << (k % (8 * width)))
        after = backend.digest(changed, 2**32 - 1000)
        assert after[0] != before[0]
        assert after[1] != before[1]


def test_every_changed_16_bit_cell_alters_both_lanes_at_a_few_places(backend: Backend):
    # One cell's hash must tell all its patterns apart, in each lane alone.
    patterns = np.arange(1 << 16, dtype=np.uint16)
    for flat in (0, 1023, 2**32 + 5):
        seen = [{h(lane, flat, v) for v in range(0, 1 << 16, 17)} for lane in (0, 1)]
        assert [len(s) for s in seen] == [len(range(0, 1 << 16, 17))] * 2
        for v in (0, 17, 65535 // 17 * 17):
            assert backend.digest(patterns[v : v + 1], flat) == (h(0, flat, v), h(1, flat, v))


def test_two_cells_that_change_places_alter_both_lanes(backend: Backend):
    cells = random_cells(2, 3000)
    before = backend.digest(cells, 0)
    for a, b in [(0, 1), (5, 1029), (1023, 1024), (10, 2999)]:
        swapped = cells.copy()
        swapped[[a, b]] = cells[[b, a]]
        assert cells[a] != cells[b]
        after = backend.digest(swapped, 0)
        assert (after[0] != before[0], after[1] != before[1]) == (True, True)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("memory", MEMORY)
def test_memory_may_be_unaligned_and_read_only(backend: Backend, width: int, memory: str):
    cells, index = random_cells(width, 1500), random_index(9000, 1500)
    form = MEMORY[memory]
    assert backend.digest(form(cells), 3) == backend.digest(cells, 3)
    assert backend.digest_sparse(form(index), form(cells), 3) == backend.digest_sparse(index, cells, 3)


def test_no_cells_have_the_digest_zero(backend: Backend):
    none = np.empty(0, np.uint16)
    assert backend.digest(none, 5) == (0, 0)
    assert backend.digest_sparse(np.empty(0, np.uint32), none, 5) == (0, 0)
