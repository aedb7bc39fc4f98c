"""Frequency tables: levels from counts, frequencies from levels, stored bytes, and every rule of these."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulse_kernels import CodecError
from pulse_kernels.format.frequencies import (
    BOUNDS,
    SCALE,
    WEIGHTS,
    cumulative,
    frequencies,
    levels_of,
    read_table,
    store_table,
)

levels = st.lists(st.integers(0, 31), min_size=1, max_size=252)
counts = st.lists(st.one_of(st.just(0), st.integers(1, 9), st.integers(1, 2**24)), min_size=1, max_size=252)


def test_the_weights_are_thirds_of_an_octave_apart():
    assert [round(8 * 2 ** (level / 3)) for level in range(31)] == list(WEIGHTS)
    assert [math.isqrt(a * b) for a, b in itertools.pairwise(WEIGHTS)] == list(BOUNDS)


@given(counts)
def test_levels_keep_what_is_present_and_the_order_of_counts(found: list[int]):
    chosen = levels_of(found)
    assert [level > 0 for level in chosen] == [count > 0 for count in found]
    by_count = [level for _, level in sorted(zip(found, chosen, strict=True))]
    assert by_count == sorted(by_count)
    if any(found):
        assert max(chosen) == 31


@given(levels)
def test_frequencies_add_up_and_leave_no_symbol_out(table: list[int]):
    found = frequencies(table)
    assert [f > 0 for f in found] == [level > 0 for level in table]
    assert sum(found) == (SCALE if any(table) else 0)
    assert cumulative(found) == [sum(found[:k]) for k in range(len(found))]


def test_frequencies_are_the_documented_ones():
    assert frequencies([31, 0, 1]) == [1 + 8192 * 4094 // 8200 + 1, 0, 1 + 8 * 4094 // 8200]
    assert frequencies([5, 5, 5]) == [1366, 1365, 1365]
    assert frequencies([0, 7]) == [0, 4096]


@given(levels)
def test_a_table_is_read_as_it_was_stored(table: list[int]):
    data = store_table(table)
    assert read_table(b"xy" + data + b"z", 2, len(table)) == (table, 2 + len(data))


BAD = {
    "nothing": b"",
    "half a head": b"\0",
    "levels cut off": bytes((0, 4, 0xFF, 0xFF)),
    "a symbol past the last": bytes((250, 3, 0xFF, 0x7F)),
    "a range past the last": bytes((1, 252)) + b"\xff" * 158,
    "an empty table that begins late": bytes((1, 0)),
    "the first level is zero": bytes((0, 2, 0b11100000, 0b11)),
    "the last level is zero": bytes((0, 2, 0b00011111, 0)),
    "the only level is zero": bytes((0, 1, 0)),
    "padding that is not zero": bytes((0, 1, 0b00100001)),
}


@pytest.mark.parametrize("name", BAD)
def test_a_table_that_breaks_a_rule_is_refused(name: str):
    with pytest.raises(CodecError, match="table"):
        read_table(BAD[name], 0, 252)


# -- the compiled loops ------------------------------------------------------------------------------------------------


@given(st.lists(counts, min_size=1, max_size=6), st.booleans())
def test_the_compiled_tables_are_the_references_bytes(tables: list[list[int]], keep_empty: bool):
    from pulse_kernels.cpu.coding import divisors_by_frequency
    from pulse_kernels.cpu.compile import compiled
    from pulse_kernels.cpu.loops.frequencies import SYMBOLS, TABLE_BYTES

    shape = (len(tables), SYMBOLS)
    found = np.zeros(shape, np.uint32)
    for row, table in zip(found, tables, strict=True):
        row[: len(table)] = table
    out, ways = np.empty(len(tables) * TABLE_BYTES, np.uint8), np.zeros((*shape, 4), np.uint64)
    constants = np.array(WEIGHTS, np.uint32), np.array(BOUNDS, np.uint32), divisors_by_frequency()
    scratch = np.empty(SYMBOLS, np.uint32)
    size = compiled("store_tables", 4)(found, *constants, keep_empty, scratch, out, ways)
    stored = [store_table(levels_of(table)) for table in tables if keep_empty or any(table)]
    assert out[:size].tobytes() == b"".join(stored)
    for row, table in zip(ways, tables, strict=True):
        expected = frequencies(levels_of(table))
        divisors, below = divisors_by_frequency()[expected].tolist(), cumulative(expected)
        coded = [[f << 20, d, 4096 - f, b] for f, d, b in zip(expected, divisors, below, strict=True) if f]
        assert [way for way in row.tolist() if way[0]] == coded


def test_divisors_divide_exactly_wherever_the_coder_divides():
    from pulse_kernels.cpu.coding import divisors_by_frequency
    from pulse_kernels.cpu.loops.frequencies import SLOTS

    f = np.arange(1, SLOTS + 1, dtype=np.uint64)
    divisor = divisors_by_frequency()[1:]
    quotients = np.random.default_rng(0).integers(0, 2**20, (60, SLOTS)).astype(np.uint64)
    quotients[:4] = np.array([[0], [1], [2**20 - 1], [2**19]], np.uint64)
    for q in quotients:
        for rest in (np.zeros_like(f), f - np.uint64(1), f // np.uint64(2)):
            x = q * f + rest
            found = (x * divisor) >> np.uint64(44)
            assert (found == q).all()
