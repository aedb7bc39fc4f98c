"""Geometry: groups tile the flat cell space, dtype by dtype, whatever the shapes; nothing is allocated for it."""

from __future__ import annotations

import math
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulse_kernels import CELL_TYPES, GROUP_BYTES
from pulse_registry.weights import cell_space as geometry_module
from pulse_registry.weights.cell_space import Geometry, Group, Span
from pulse_schemas import DTYPE_ORDER, Dtype, Layout, Tensor


def layout(*tensors: tuple[str, Dtype, tuple[int, ...]]) -> Layout:
    made = [Tensor(name=name, dtype=dtype, shape=shape) for name, dtype, shape in tensors]
    return Layout(tensors=tuple(sorted(made, key=lambda t: (DTYPE_ORDER.index(t.dtype), t.name))))


def check_tiling(geometry: Geometry, group_bytes: int) -> None:
    """Check that the groups are consecutive, of one dtype each, as full as they can be, and all cells."""
    flat, in_tensor = 0, [0] * len(geometry.sizes)
    starts = [sum(geometry.sizes[:n]) for n in range(len(geometry.sizes))]
    for number, group in enumerate(geometry.groups):
        assert (group.number, group.start) == (number, flat)
        capacity = group_bytes // group.cell_type.width
        assert 0 < group.cells <= capacity
        assert sum(span.stop - span.start for span in group.spans) == group.cells
        for span in group.spans:
            assert 0 <= span.start < span.stop <= geometry.sizes[span.tensor]
            assert geometry.layout.tensors[span.tensor].dtype == group.cell_type.name
            assert span.start == in_tensor[span.tensor]
            assert starts[span.tensor] + span.start == flat
            in_tensor[span.tensor] = span.stop
            flat += span.stop - span.start
        following = geometry.groups[number + 1] if number + 1 < len(geometry.groups) else None
        if following is not None and following.cell_type == group.cell_type:
            assert group.cells == capacity
    assert in_tensor == geometry.sizes
    assert flat == geometry.cells
    assert geometry.groups.cells.tolist() == [group.cells for group in geometry.groups]


shapes = st.lists(st.integers(0, 7), max_size=3).map(tuple)
kinds = st.tuples(st.sampled_from(DTYPE_ORDER), shapes).filter(lambda kind: kind != ("F4", ()))
models = st.lists(kinds, min_size=1, max_size=12)


@given(models)
def test_groups_tile_the_flat_space(tensors: list[tuple[Dtype, tuple[int, ...]]]):
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(geometry_module, "GROUP_BYTES", 64)
        geometry = Geometry(layout(*((f"t{n:02d}", *tensor) for n, tensor in enumerate(tensors))))
    check_tiling(geometry, 64)
    assert geometry.sizes == [math.prod(tensor.shape) for tensor in geometry.layout.tensors]
    assert geometry.nbytes == sum(math.prod(shape) * CELL_TYPES[dtype].width for dtype, shape in tensors)


@pytest.mark.parametrize("dtype", DTYPE_ORDER)
def test_the_cells_of_a_dtype_are_cut_every_16_mib(dtype: Dtype):
    capacity = GROUP_BYTES // CELL_TYPES[dtype].width
    for size, expected in [
        (1, [1]),
        (capacity - 1, [capacity - 1]),
        (capacity, [capacity]),
        (capacity + 1, [capacity, 1]),
        (3 * capacity, [capacity] * 3),
    ]:
        geometry = Geometry(layout(("w", dtype, (size,))))
        assert [group.cells for group in geometry.groups] == expected
        check_tiling(geometry, GROUP_BYTES)


def test_a_group_holds_the_ends_of_several_tensors():
    capacity = GROUP_BYTES // 2
    geometry = Geometry(layout(("a", "BF16", (capacity - 1,)), ("b", "BF16", (3,)), ("c", "BF16", ())))
    assert tuple(geometry.groups) == (
        Group(0, 0, capacity, CELL_TYPES["BF16"], (Span(0, 0, capacity - 1), Span(1, 0, 1))),
        Group(1, capacity, 3, CELL_TYPES["BF16"], (Span(1, 1, 3), Span(2, 0, 1))),
    )


def test_a_group_never_holds_two_dtypes():
    geometry = Geometry(layout(("a", "F32", (3,)), ("b", "BF16", (5,)), ("c", "U8", (2,)), ("d", "BOOL", ())))
    assert [(g.start, g.cells, g.cell_type.name) for g in geometry.groups] == [
        (0, 3, "F32"),
        (3, 5, "BF16"),
        (8, 2, "U8"),
        (10, 1, "BOOL"),
    ]


def test_tensors_without_cells_have_no_span_and_break_no_group():
    geometry = Geometry(
        layout(
            ("a", "F32", (0, 9)),
            ("b", "BF16", (2,)),
            ("c", "BF16", (0,)),
            ("d", "BF16", (4, 0, 2)),
            ("e", "BF16", (3,)),
        )
    )
    assert geometry.sizes == [0, 2, 0, 0, 3]
    assert tuple(geometry.groups) == (Group(0, 0, 5, CELL_TYPES["BF16"], (Span(1, 0, 2), Span(4, 0, 3))),)


def test_a_layout_without_any_cells_has_no_groups():
    geometry = Geometry(layout(("a", "F32", (0,)), ("b", "I64", (3, 0))))
    assert (tuple(geometry.groups), geometry.cells, geometry.nbytes) == ((), 0, 0)


@pytest.mark.parametrize(
    ("shape", "dtype"), [((2**31 + 5,), "BF16"), ((2**16, 2**16 + 1), "U8"), ((3, 2**32 + 1), "BF16")]
)
def test_tensors_over_2_31_cells_are_described_exactly(shape: tuple[int, ...], dtype: Dtype):
    geometry = Geometry(layout(("before", dtype, (7,)), ("huge", dtype, shape), ("last", dtype, (11,))))
    check_tiling(geometry, GROUP_BYTES)
    assert geometry.cells == math.prod(shape) + 18
    assert geometry.nbytes == geometry.cells * CELL_TYPES[dtype].width
    last = geometry.groups[-1]
    assert last.start + last.cells == math.prod(shape) + 18
    assert last.spans[-1] == Span(2, 0, 11)
    assert max(group.cells for group in geometry.groups) < 2**32


def test_the_id_is_the_layouts():
    described = layout(("a", "F32", (3,)))
    assert Geometry(described).id == described.id


def test_the_most_cells_that_a_layout_may_have_take_no_memory_and_few_steps():
    most = layout(("w", "F64", (2**42 - 5,)), ("x", "U8", (5,)))
    tracemalloc.start()
    try:
        geometry = Geometry(most)
        last, middle = geometry.groups[-1], geometry.groups[2**20]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20
    assert (geometry.cells, geometry.nbytes, len(geometry.groups)) == (2**42, 8 * (2**42 - 5) + 5, 2**21 + 1)
    assert last == Group(2**21, 2**42 - 5, 5, CELL_TYPES["U8"], (Span(1, 0, 5),))
    assert (middle.start, middle.cells, middle.spans) == (2**41, 2**21, (Span(0, 2**41, 2**41 + 2**21),))


def test_groups_are_a_sequence():
    geometry = Geometry(layout(("a", "F32", (2**23,)), ("b", "BF16", (5,))))
    found = list(geometry.groups)
    assert [group.number for group in found] == [0, 1, 2]
    assert geometry.groups[1] is found[1]
    assert (geometry.groups[-1], tuple(geometry.groups[1:])) == (found[2], tuple(found[1:]))
    for number in (3, -4):
        with pytest.raises(IndexError):
            geometry.groups[number]
