"""The SIMD code against plain loops: every bit of a mask, at every place, for each width."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulse_kernels.cpu.loops import simd
from tests.unit.kernels.inputs import WIDTHS, random_cells, unaligned

WORDS = (
    st.integers(0, 2**64 - 1)
    | st.sampled_from([0, 1, 1 << 63, 2**64 - 1])
    | st.integers(0, 63).map(lambda k: 2**64 - (1 << k))
)


@pytest.fixture(scope="module")
def loops() -> dict[str, Callable[..., Any]]:
    """The functions as compiled ones that Python can call; compiled for each type that they meet."""

    def differing(live: Any, base: Any, at: Any) -> Any:
        return simd.differing(live, base, np.uint64(at))

    def cell(live: Any, base: Any, at: Any) -> Any:
        return simd.cell(live, base, np.uint64(at))

    def bits(mask: Any) -> Any:
        return simd.lowest(mask), simd.ones(mask)

    def deposit(bits: Any, mask: Any) -> Any:
        return simd.deposit(bits, mask), simd.expand(bits, mask)

    def compress(cells: Any, at: Any, mask: Any, out: Any, n: Any) -> None:
        simd.compress(cells, np.uint64(at), np.uint64(mask), out, np.uint64(n))

    def add_products(cells: Any, at: Any, steps: Any, shift: Any, tables: Any, row: Any, sums: Any) -> None:
        simd.add_products(cells, np.uint64(at), np.uint64(steps), shift, *tables, np.uint64(row), sums)

    every = (differing, cell, bits, compress, deposit, add_products)
    return {function.__name__: numba.njit(function) for function in every}


@settings(max_examples=300)
@given(bits=WORDS, mask=WORDS)
def test_bits_are_deposited_where_a_mask_has_some(loops: dict[str, Any], bits: int, mask: int):
    places = [k for k in range(64) if mask >> k & 1]
    expected = sum(1 << place for n, place in enumerate(places) if bits >> n & 1)
    assert loops["deposit"](np.uint64(bits), np.uint64(mask)) == (expected, expected)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("at", [0, 1, 63, 100])
def test_the_mask_of_differing_cells_has_a_bit_for_each(loops: dict[str, Any], width: int, at: int):
    base = random_cells(width, at + 64)
    for where in ([], [0], [63], [31, 32], list(range(64)), [5, 8, 13, 21, 34, 55]):
        live = unaligned(base)
        live[[at + k for k in where]] ^= 1 << (8 * width - 1)
        live[:at] ^= 1  # what comes before the block does not matter
        assert int(loops["differing"](live, base, at)) == sum(1 << k for k in where)


def test_float32_patterns_differ_where_their_rounding_does(loops: dict[str, Any]):
    high = np.arange(1 << 16, dtype=np.uint32) << 16
    for low in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF):
        live = high | np.uint32(low)
        base = np.arange(1 << 16, dtype=np.uint16)
        for at in range(0, 1 << 16, 64 * 37):
            rounded = [int(loops["cell"](live, base, at + k)) for k in range(64)]
            expected = sum(1 << k for k in range(64) if rounded[k] != int(base[at + k]))
            assert int(loops["differing"](live, base, at)) == expected


@pytest.mark.parametrize("width", WIDTHS)
def test_a_cell_of_the_base_type_is_itself(loops: dict[str, Any], width: int):
    cells = unaligned(random_cells(width, 50))
    assert [int(loops["cell"](cells, cells, k)) for k in range(50)] == cells.tolist()


@pytest.mark.parametrize("mask", [1, 2, 1 << 63, 2**64 - 1, 0b1011000, 0xF0F0F0F000000000])
def test_bits_are_found_and_counted(loops: dict[str, Any], mask: int):
    lowest, ones = loops["bits"](np.uint64(mask))
    assert (int(lowest), int(ones)) == ((mask & -mask).bit_length() - 1, mask.bit_count())


@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize("mask", [0, 1, 1 << 15, 0xFFFF, 0b1011000, 0xFF00FFFF])
def test_the_cells_that_a_mask_has_are_written_end_to_end(loops: dict[str, Any], width: int, mask: int):
    cells, out = unaligned(random_cells(width, 40)), unaligned(random_cells(width, 40, seed=1))
    before, wanted = out.copy(), [v for k, v in enumerate(cells[7 : 7 + simd.STEP].tolist()) if mask >> k & 1]
    loops["compress"](cells, 7, mask, out, 11)
    assert out[11 : 11 + len(wanted)].tolist() == wanted
    assert out[:11].tolist() == before[:11].tolist()
    assert out[11 + simd.STEP :].tolist() == before[11 + simd.STEP :].tolist()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("steps", [0, 1, 5])
def test_products_of_limbs_and_table_entries_add_up_to_64_bits(loops: dict[str, Any], width: int, steps: int):
    tables = tuple(np.random.default_rng(k).integers(2**31, 2**32, 200, np.uint32) for k in (1, 2))
    cells = unaligned(random_cells(width, 100) | random_cells(width, 100, seed=1))
    for shift in range(0, 8 * width, 16):
        limbs = [(v >> shift) & 0xFFFF for v in cells[3 : 3 + 16 * steps].tolist()]
        sums = np.array([7, 2**64 - 1], np.uint64)
        loops["add_products"](cells, 3, steps, cells.dtype.type(shift), tables, 9, sums)
        products = [sum(a * b for a, b in zip(limbs, table[9:].tolist(), strict=False)) for table in tables]
        assert sums.tolist() == [(7 + products[0]) % 2**64, (2**64 - 1 + products[1]) % 2**64]
