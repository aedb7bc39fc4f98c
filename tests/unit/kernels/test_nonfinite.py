"""NaN and infinities by their bits, against what the dtypes' own arithmetic says."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulse_kernels import CELL_TYPES
from pulse_kernels.nonfinite import NONFINITE_FROM, first_nonfinite, magnitude_mask

NUMBERS = {
    "F64": np.float64,
    "F32": np.float32,
    "BF16": ml_dtypes.bfloat16,
    "F16": np.float16,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E5M2": ml_dtypes.float8_e5m2,
    "F8_E8M0": ml_dtypes.float8_e8m0fnu,
}


def first_by_arithmetic(cells, name):
    with np.errstate(all="ignore"):
        wrong = ~np.isfinite(cells.view(NUMBERS[name]).astype(np.float64))
    return int(np.argmax(wrong)) if wrong.any() else None


def each_alone(cells, name):
    return [first_nonfinite(cells[at : at + 1], CELL_TYPES[name]) == 0 for at in range(len(cells))]


def test_the_floats_are_those_of_the_cells():
    assert set(NONFINITE_FROM) == set(NUMBERS) == {name for name, t in CELL_TYPES.items() if t.is_float} | {"F8_E8M0"}


@pytest.mark.parametrize("name", ["F8_E4M3", "F8_E5M2", "F8_E8M0"])
def test_every_pattern_of_a_byte_is_told_right(name):
    cells = np.arange(256, dtype=np.uint8)
    assert each_alone(cells, name) == [first_by_arithmetic(cells[at : at + 1], name) == 0 for at in range(256)]
    assert sum(each_alone(cells, name)) == {"F8_E4M3": 2, "F8_E5M2": 8, "F8_E8M0": 1}[name]


@pytest.mark.parametrize("name", ["BF16", "F16"])
def test_every_pattern_of_two_bytes_is_told_right(name):
    cells = np.arange(1 << 16, dtype=np.uint16)
    wrong = (cells & magnitude_mask(CELL_TYPES[name])) >= NONFINITE_FROM[name]
    with np.errstate(all="ignore"):
        assert np.array_equal(wrong, ~np.isfinite(cells.view(NUMBERS[name]).astype(np.float64)))
    assert first_nonfinite(cells, CELL_TYPES[name]) == NONFINITE_FROM[name]
    assert first_nonfinite(cells[~wrong], CELL_TYPES[name]) is None


@pytest.mark.parametrize("name", ["F32", "F64"])
def test_the_ends_of_the_numbers_are_told_right(name):
    width = CELL_TYPES[name].width
    least = NONFINITE_FROM[name]
    sign = 1 << (8 * width - 1)
    patterns = [v | s for v in (0, 1, least - 1, least, least + 1, sign - 1) for s in (0, sign)]
    cells = np.array(patterns, dtype=f"<u{width}")
    assert each_alone(cells, name) == [False] * 6 + [True] * 6
    assert [first_by_arithmetic(cells[at : at + 1], name) == 0 for at in range(12)] == [False] * 6 + [True] * 6


@given(st.sampled_from(sorted(NUMBERS)), st.data())
def test_the_first_of_any_cells_is_the_first_by_arithmetic(name, data):
    width = CELL_TYPES[name].width
    cells = np.frombuffer(data.draw(st.binary(max_size=64 * width)), np.uint8)
    cells = cells[: len(cells) // width * width].view(f"<u{width}")
    assert first_nonfinite(cells, CELL_TYPES[name]) == first_by_arithmetic(cells, name)


@pytest.mark.parametrize("name", sorted(set(CELL_TYPES) - set(NUMBERS)))
def test_integers_and_bools_are_always_finite(name):
    assert first_nonfinite(np.full(9, -1).astype(f"<u{CELL_TYPES[name].width}"), CELL_TYPES[name]) is None


@pytest.mark.parametrize("at", [0, (1 << 16) - 1, 1 << 16, 200_001])
def test_one_nan_among_many_is_found_where_it_is(at):
    cells = np.zeros(200_002, np.uint16)
    assert first_nonfinite(cells, CELL_TYPES["BF16"]) is None
    cells[at] = 0xFFC0
    assert first_nonfinite(cells, CELL_TYPES["BF16"]) == at
    assert first_nonfinite(cells[at % 3 :: 3], CELL_TYPES["BF16"]) == (at - at % 3) // 3  # views with strides, too


def test_no_cells_are_finite():
    assert first_nonfinite(np.empty(0, np.uint16), CELL_TYPES["BF16"]) is None
