"""Where the cells of slices lie in a layout: as a count of single cells says."""

from __future__ import annotations

import itertools
import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pulse_registry import Slice
from pulse_registry.push.holdings import fingerprint
from pulse_registry.weights.cell_space import Geometry
from pulse_registry.weights.model import layout_of, read_model
from pulse_registry.weights.slice_map import SliceMap
from pulse_schemas import DTYPE_ORDER, Layout, Tensor
from tests.support.groups import small_groups

Shapes = list[tuple[int, ...]]


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    shapes = draw(st.lists(st.lists(st.integers(0, 5), max_size=3), min_size=1, max_size=6))
    tensors = [
        Tensor(name=f"t{number}", dtype=draw(st.sampled_from(["U8", "U16", "U32"])), shape=tuple(shape))
        for number, shape in enumerate(shapes)
    ]
    return Layout(tensors=tuple(sorted(tensors, key=lambda t: (DTYPE_ORDER.index(t.dtype), t.name))))


@st.composite
def held(draw: st.DrawFn, layout: Layout) -> dict[str, list[Slice]]:
    """Return slices of some tensors: two boxes side by side along a dimension, or a run."""
    model: dict[str, list[Slice]] = {}
    for tensor in draw(st.permutations(layout.tensors)):
        dtype = np.dtype({"U8": np.uint8, "U16": np.uint16, "U32": np.uint32}[tensor.dtype])
        size = math.prod(tensor.shape)
        if not tensor.shape or draw(st.booleans()):
            first = draw(st.integers(0, size))
            stop = draw(st.integers(first, size))
            model[tensor.name] = [Slice(np.zeros(stop - first, dtype), of=tensor.shape, at=first)]
            continue
        dim = draw(st.integers(0, len(tensor.shape) - 1))
        cuts = sorted(draw(st.tuples(*[st.integers(0, tensor.shape[dim])] * 3)))
        boxes = []
        for first, stop in itertools.pairwise(cuts):
            offsets, sizes = [0] * len(tensor.shape), list(tensor.shape)
            offsets[dim], sizes[dim] = first, stop - first
            if math.prod(sizes):
                boxes.append(Slice(np.zeros(sizes, dtype), of=tensor.shape, at=offsets))
        if boxes:
            model[tensor.name] = boxes
    return model


@given(data=st.data(), layout=layouts(), group_bytes=st.sampled_from([16, 48, 1 << 20]))
@settings(max_examples=100)
def test_each_group_has_the_cells_that_slices_hold_of_it(data: st.DataObject, layout: Layout, group_bytes: int) -> None:
    model = data.draw(held(layout))
    if not model:
        return
    with small_groups(group_bytes):
        geometry = Geometry(layout)
        slices = SliceMap.of(geometry, read_model(model), partial=True, alone=False)
        flat = {one.number: one.box.to_flat(np.arange(one.box.cells)) + one.start for one in slices.slices}
        counts = []
        for group in geometry.groups:
            assert geometry.groups.end(group.number) == group.start + group.cells
            found = [(part.slice.number, part.first, part.stop) for part in slices.held(group)]
            expected = []
            for number, cells in flat.items():
                inside = np.flatnonzero((cells >= group.start) & (cells < group.start + group.cells))
                if len(inside):
                    expected.append((number, int(inside[0]), int(inside[-1]) + 1))
                    assert len(inside) == inside[-1] + 1 - inside[0]
            tensors = [part.slice.tensor for part in slices.held(group)]
            assert tensors == sorted(tensors)
            assert sorted(found) == sorted(expected)
            assert slices.holds(group) == (sum(stop - first for _, first, stop in found) == group.cells)
            counts += [sum(stop - first for _, first, stop in found)] if found else []
        assert slices.groups == [group.number for group in geometry.groups if slices.held(group)]
        assert slices.counts.tolist() == counts
        assert slices.whole == all(slices.holds(geometry.groups[number]) for number in slices.groups)


@given(data=st.data(), layout=layouts())
@settings(max_examples=60)
def test_models_of_one_fingerprint_hold_the_same_cells_of_one_layout(data: st.DataObject, layout: Layout) -> None:
    one, other = (data.draw(held(layout)) for _ in range(2))
    if not one or not other:
        return
    views, others = read_model(one), read_model(other)
    same = [(v.name, v.shape, v.part) for v in views.values()] == [(v.name, v.shape, v.part) for v in others.values()]
    assert (fingerprint(views) == fingerprint(others)) == same
    if same:
        assert layout_of(views, "keep") == layout_of(others, "keep")


def test_a_fingerprint_says_what_is_tied_and_nothing_of_where_the_memory_is() -> None:
    first, second = np.zeros(4, np.uint16), np.zeros(4, np.uint16)
    tied = fingerprint(read_model({"a": first, "b": first, "c": second}))
    assert tied == fingerprint(read_model({"a": second, "b": second, "c": first}))
    assert tied != fingerprint(read_model({"a": first, "b": second, "c": second}))
    assert tied != fingerprint(read_model({"a": first, "b": second, "c": np.zeros(4, np.uint16)}))
