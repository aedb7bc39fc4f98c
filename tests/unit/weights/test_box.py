"""Boxes against NumPy's own indexing: numbering, cutting and overlap."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pulse_registry.weights.box import Box

SHAPES = st.lists(st.sampled_from([0, 1, 2, 3, 5]), max_size=4).map(tuple)


@st.composite
def boxes(draw: st.DrawFn, shape: tuple[int, ...] | None = None) -> tuple[tuple[int, ...], Box, npt.NDArray[np.int64]]:
    """Draw a shape, a box of it, and the flat indices of the box's cells, in order, as NumPy finds them."""
    shape = draw(SHAPES) if shape is None else shape
    flat = np.arange(math.prod(shape), dtype=np.int64)
    if draw(st.booleans()):
        start = draw(st.integers(0, len(flat)))
        size = draw(st.integers(0, len(flat) - start))
        return shape, Box.run(len(flat), start, size), flat[start : start + size]
    offsets = tuple(draw(st.integers(0, size)) for size in shape)
    sizes = tuple(draw(st.integers(0, size - at)) for size, at in zip(shape, offsets, strict=True))
    where = tuple(slice(at, at + size) for at, size in zip(offsets, sizes, strict=True))
    return shape, Box.of(shape, offsets, sizes), flat.reshape(shape)[where].reshape(-1)


@given(boxes())
@example(((5, 4), Box.of((5, 4), (1, 1), (2, 2)), np.array([5, 6, 9, 10])))
@settings(max_examples=300)
def test_a_box_numbers_its_cells_as_numpy_lays_them_out(drawn: Any) -> None:
    shape, box, cells = drawn
    every = np.arange(math.prod(shape), dtype=np.int64)
    assert box.cells == len(cells)
    np.testing.assert_array_equal(box.to_flat(np.arange(len(cells), dtype=np.int64)), cells)
    assert [box.flat_of(local) for local in range(len(cells))] == cells.tolist()
    inside, local = box.to_local(every)
    np.testing.assert_array_equal(every[inside], cells)
    np.testing.assert_array_equal(local, np.arange(len(cells)))
    assert [box.below(flat) for flat in range(len(every) + 1)] == np.searchsorted(
        cells, np.arange(len(every) + 1)
    ).tolist()
    assert box.whole == (len(cells) == len(every))
    assert box.start is None or not len(cells) or box.start == cells[0]


@given(boxes(), st.data())
def test_a_box_cuts_its_cells_out_of_any_run(drawn: Any, data: st.DataObject) -> None:
    shape, box, cells = drawn
    every = np.arange(math.prod(shape), dtype=np.uint16)
    start = data.draw(st.integers(0, len(every)))
    stop = data.draw(st.integers(start, len(every)))
    np.testing.assert_array_equal(box.cut(start, every[start:stop]), cells[(cells >= start) & (cells < stop)])


@given(st.data())
def test_boxes_that_hold_the_same_cells_are_equal_and_others_meet_where_they_share_one(data: st.DataObject) -> None:
    shape, one, first = data.draw(boxes())
    _, other, second = data.draw(boxes(shape))
    assert one.meets(other) == bool(np.intersect1d(first, second).size)
    assert (one == other) == np.array_equal(first, second)


def test_boxes_of_rows_experts_and_runs_have_one_dimension() -> None:
    assert Box.of((8, 4, 6), (3, 0, 0), (1, 4, 6)) == Box.run(192, 72, 24)
    assert Box.of((8, 4, 6), (3, 1, 0), (1, 2, 6)) == Box.run(192, 78, 12)
    assert Box.of((8, 6), (2, 0), (4, 6)) == Box((48,), (12,), (24,))
    assert Box.of((), (), ()) == Box((1,), (0,), (1,))
    assert Box.of((8, 6), (0, 2), (8, 2)) == Box((8, 6), (0, 2), (8, 2))


@pytest.mark.parametrize(
    ("shape", "offsets", "sizes"), [((4,), (2,), (3,)), ((4,), (-1,), (2,)), ((4, 2), (0,), (4,)), ((4,), (5,), (0,))]
)
def test_a_box_outside_of_its_tensor_is_refused(
    shape: tuple[int, ...], offsets: tuple[int, ...], sizes: tuple[int, ...]
) -> None:
    with pytest.raises(ValueError, match="shape"):
        Box.of(shape, offsets, sizes)
