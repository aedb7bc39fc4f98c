"""Distances: the order of each dtype's patterns is a bijection in which neighbouring values are neighbours."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulse_kernels import CELL_TYPES, Backend, Cells, CellType
from tests.support.sampling import examples
from tests.unit.kernels.inputs import MEMORY, TYPES, place_in_order, random_cells, same

FLOATS = {
    "F64": np.float64,
    "F32": np.float32,
    "BF16": ml_dtypes.bfloat16,
    "F16": np.float16,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E5M2": ml_dtypes.float8_e5m2,
}
by_name = pytest.mark.parametrize("cell_type", TYPES, ids=lambda t: t.name)
of_floats = pytest.mark.parametrize("name", FLOATS)


def all_patterns(cell_type: CellType) -> Cells:
    return np.arange(1 << cell_type.bits, dtype=np.uint64).astype(cell_type.dtype)


def test_every_float_dtype_is_known_as_one():
    assert {t.name for t in TYPES if t.is_float} == set(FLOATS)


@pytest.mark.parametrize("cell_type", [t for t in TYPES if t.width == 1], ids=lambda t: t.name)
def test_all_pairs_of_8_bit_cells_have_the_distance_of_the_definition_and_move_inverts_it(
    backend: Backend, cell_type: CellType
):
    patterns = all_patterns(cell_type)
    old, new = np.repeat(patterns, 256), np.tile(patterns, 256)
    distance = backend.distance(old, new, cell_type)
    where = {p: place_in_order(p, cell_type) for p in range(256)}
    expected = [(where[b] - where[a]) % 256 for a in range(256) for b in range(256)]
    assert distance.dtype == np.uint8
    assert distance.tolist() == expected
    assert same(backend.move(old, distance, cell_type), new)


@pytest.mark.parametrize("cell_type", [t for t in TYPES if t.width == 2], ids=lambda t: t.name)
def test_16_bit_distances_are_a_bijection_from_every_old_cell_tried(backend: Backend, cell_type: CellType):
    new = all_patterns(cell_type)
    places = np.array([place_in_order(pattern, cell_type) for pattern in range(65536)])
    for start in (0, 1, 0x7FFF, 0x8000, 0xFFFF, 0x3F80, 0xBF80, 0x7F80, 0xFF81):
        old = np.full_like(new, start)
        distance = backend.distance(old, new, cell_type)
        assert np.array_equal(distance, (places - places[start]) % 65536)
        assert len(np.unique(distance)) == 65536
        assert same(backend.move(old, distance, cell_type), new)


@by_name
@examples(12)
@given(data=st.data())
def test_distance_is_the_definitions_and_move_inverts_it(backend: Backend, cell_type: CellType, data: st.DataObject):
    top = (1 << cell_type.bits) - 1
    sign = 1 << (cell_type.bits - 1)
    cell = st.one_of(st.sampled_from([0, 1, sign - 1, sign, sign + 1, top]), st.integers(0, top))
    pairs = data.draw(st.lists(st.tuples(cell, cell), max_size=70))
    old = np.array([a for a, _ in pairs], cell_type.dtype)
    new = np.array([b for _, b in pairs], cell_type.dtype)
    distance = backend.distance(old, new, cell_type)
    expected = [(place_in_order(b, cell_type) - place_in_order(a, cell_type)) % (top + 1) for a, b in pairs]
    assert same(distance, np.array(expected, cell_type.dtype))
    assert same(backend.move(old, distance, cell_type), new)


@by_name
def test_each_backend_agrees_with_the_reference(fast: Backend, reference: Backend, cell_type: CellType):
    old, new = random_cells(cell_type.width, 5000), random_cells(cell_type.width, 5000, seed=1)
    distance = reference.distance(old, new, cell_type)
    assert same(fast.distance(old, new, cell_type), distance)
    assert same(fast.move(old, distance, cell_type), reference.move(old, distance, cell_type))
    none = old[:0]
    assert same(fast.distance(none, none, cell_type), none)
    assert same(fast.move(none, none, cell_type), none)


@of_floats
def test_minus_zero_and_zero_are_one_apart(backend: Backend, name: str):
    cell_type = CELL_TYPES[name]
    minus, plus = np.array([1 << (cell_type.bits - 1)], cell_type.dtype), np.zeros(1, cell_type.dtype)
    assert backend.distance(minus, plus, cell_type).tolist() == [1]
    assert backend.distance(plus, minus, cell_type).tolist() == [(1 << cell_type.bits) - 1]


@of_floats
def test_the_order_of_the_patterns_is_the_order_of_the_finite_values(backend: Backend, name: str):
    cell_type = CELL_TYPES[name]
    patterns = all_patterns(cell_type) if cell_type.width <= 2 else np.unique(random_cells(cell_type.width, 20_000))
    with np.errstate(all="ignore"):  # signalling NaNs are converted too
        values = patterns.view(FLOATS[name]).astype(np.float64)
    patterns, values = patterns[np.isfinite(values)], values[np.isfinite(values)]
    lowest = np.full_like(patterns, (1 << cell_type.bits) - 1)  # the pattern of all ones is the first in the order
    place = backend.distance(lowest, patterns, cell_type)
    in_order = values[np.argsort(place)]
    assert (np.diff(in_order) >= 0).all()
    assert (np.diff(in_order) == 0).sum() <= 1  # -0.0 and 0.0 alone are equal
    assert len(patterns) > 100


@by_name
@pytest.mark.parametrize("memory", MEMORY)
def test_memory_may_be_unaligned_and_read_only(backend: Backend, cell_type: CellType, memory: str):
    old, new = random_cells(cell_type.width, 100), random_cells(cell_type.width, 100, seed=1)
    form = MEMORY[memory]
    distance = backend.distance(form(old), form(new), cell_type)
    assert same(distance, backend.distance(old, new, cell_type))
    assert same(backend.move(form(old), form(distance), cell_type), new)
