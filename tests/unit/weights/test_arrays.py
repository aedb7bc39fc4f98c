"""Weights: cells by group and group-local index, wherever the tensors lie; what can't be written is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pulse_kernels import Backend, get_backend
from pulse_registry.errors import InvalidModel, LayoutMismatch
from pulse_registry.weights.arrays import Weights, arrays_over
from pulse_registry.weights.cell_space import Geometry
from pulse_registry.weights.digest import Digest
from pulse_registry.weights.fit import check_layout
from pulse_registry.weights.model import read_model
from tests.support.groups import flat_cells, geometry_of, group_cells, mixed_model, strided, weights_of

FORMS = {"contiguous": dict, "strided": strided}
by_form = pytest.mark.parametrize("form", FORMS)


@pytest.fixture(params=["reference", "numba"], scope="module")
def backend(request: pytest.FixtureRequest) -> Backend:
    return get_backend(request.param)


def some_index(size: int, seed: int) -> np.ndarray[Any, Any]:
    """Return places in a group; with seed 0 all of them, with 1 none, else some."""
    if seed < 2:
        return np.arange(0 if seed else size, dtype=np.uint32)
    rng = np.random.default_rng(seed)
    return np.sort(rng.choice(size, rng.integers(1, size + 1), replace=False)).astype(np.uint32)


# -- reading and writing -----------------------------------------------------------------------------------------------


@by_form
def test_the_spans_of_the_groups_are_all_cells_in_flat_order(form: str):
    model = FORMS[form](mixed_model())
    geometry = geometry_of(model)
    weights = weights_of(geometry, model)
    assert len(geometry.groups) == 7
    spans = [cells for group in geometry.groups for cells in weights.spans(group)]
    assert [cell for cells in spans for cell in cells.tolist()] == flat_cells(geometry, model)
    assert all(cells.ndim == 1 and cells.flags.c_contiguous for cells in spans)
    for group in geometry.groups:
        assert weights.copy_of(group).tolist() == group_cells(geometry, model, group.number).tolist()


@by_form
@pytest.mark.parametrize("seed", range(12))
def test_gather_returns_the_cells_at_group_local_indices(backend: Backend, form: str, seed: int):
    model = FORMS[form](mixed_model())
    geometry = geometry_of(model)
    weights = weights_of(geometry, model)
    for group in geometry.groups:
        index = some_index(group.cells, seed)
        found = weights.gather(backend, group, index)
        assert found.dtype == group.cell_type.dtype
        assert found.tolist() == group_cells(geometry, model, group.number)[index].tolist()


@by_form
@pytest.mark.parametrize("seed", range(12))
def test_scatter_writes_those_cells_and_no_other(backend: Backend, form: str, seed: int):
    model = FORMS[form](mixed_model())
    geometry = geometry_of(model)
    weights = weights_of(geometry, model)
    expected = flat_cells(geometry, model)
    for group in geometry.groups:
        index = some_index(group.cells, seed)
        values = (~group_cells(geometry, model, group.number))[index]
        for place, value in zip(index.tolist(), values.tolist(), strict=True):
            expected[group.start + place] = value
        weights.scatter(backend, group, index, values)
        weights.scatter(backend, group, index, values)  # idempotent
    assert flat_cells(geometry, model) == expected


@by_form
def test_fill_writes_one_group_and_no_other(form: str):
    model = FORMS[form](mixed_model())
    geometry = geometry_of(model)
    weights = weights_of(geometry, model)
    expected = flat_cells(geometry, model)
    for group in geometry.groups:
        cells = ~group_cells(geometry, model, group.number)
        expected[group.start : group.start + group.cells] = cells.tolist()
        weights.fill(group, cells)
        assert flat_cells(geometry, model) == expected


def test_cells_in_one_piece_are_read_where_they_are_group_by_group():
    model = mixed_model()
    geometry = geometry_of(model)
    weights, piece = weights_of(geometry, model), Weights.in_one_piece(geometry)
    assert any(len(group.spans) > 1 for group in geometry.groups)
    for group in geometry.groups:
        piece.fill(group, weights.copy_of(group))
    for group in geometry.groups:
        cells = piece.in_piece(group)
        assert cells is not None
        assert cells.dtype == group.cell_type.dtype
        assert np.array_equal(cells, weights.copy_of(group))
        assert all(np.shares_memory(cells, span) for span in piece.spans(group))
        assert weights.in_piece(group) is None
    piece.adopt(weights)
    assert piece.in_piece(geometry.groups[0]) is None


@by_form
@pytest.mark.parametrize("past", [0, 1, 2**31])
def test_scatter_past_the_group_raises_and_writes_nothing(backend: Backend, form: str, past: int):
    model = FORMS[form](mixed_model())
    geometry = geometry_of(model)
    weights, before = weights_of(geometry, model), flat_cells(geometry, model)
    for group in geometry.groups:
        index = np.array([0, group.cells + past], np.uint32)
        with pytest.raises(IndexError, match=f"group {group.number}"):
            weights.scatter(backend, group, index, np.ones(2, group.cell_type.dtype))
    assert flat_cells(geometry, model) == before


@by_form
def test_the_digest_is_that_of_all_cells_however_they_lie(backend: Backend, form: str):
    model = FORMS[form](mixed_model())
    geometry = geometry_of(model)
    weights = weights_of(geometry, model)
    expected, flat = Digest(), 0
    for tensor in geometry.layout.tensors:
        cells = np.ascontiguousarray(read_model(model)[tensor.name].cells).reshape(-1)
        expected += Digest(*backend.digest(cells, flat))
        flat += len(cells)
    assert weights.digest(backend, map) == expected
    assert sum((weights.digest_of(backend, group) for group in geometry.groups), Digest()) == expected
    weights.fill(geometry.groups[-1], ~weights.copy_of(geometry.groups[-1]))
    assert weights.digest(backend, map) != expected


@settings(max_examples=25)
@given(
    sizes=st.lists(st.integers(0, 80), min_size=1, max_size=6),
    strides=st.lists(st.booleans(), min_size=6, max_size=6),
    seed=st.integers(2, 10**6),
)
def test_scatter_then_gather_gives_back_any_values(sizes: list[int], strides: list[bool], seed: int):
    backend = get_backend("numba")
    plain = {f"t{n}": np.zeros(size, np.uint16) for n, size in enumerate(sizes)}
    other = strided(plain)
    model = {name: other[name] if strides[n] else plain[name] for n, name in enumerate(plain)}
    geometry = geometry_of(model)
    weights = weights_of(geometry, model)
    for group in geometry.groups:
        index = some_index(group.cells, seed)
        values = np.random.default_rng(seed).integers(1, 65536, len(index)).astype(np.uint16)
        weights.scatter(backend, group, index, values)
        assert weights.gather(backend, group, index).tolist() == values.tolist()
    assert sum(flat_cells(geometry, model)) == sum(int(weights.copy_of(g).sum(dtype=int)) for g in geometry.groups)


def test_new_weights_have_the_layouts_shapes_and_cell_types():
    geometry = geometry_of(mixed_model())
    weights = Weights.empty(geometry)
    assert [(a.shape, a.dtype.itemsize) for a in weights.arrays] == [
        (tensor.shape, int(group_type))
        for tensor, group_type in zip(geometry.layout.tensors, [4, 4, 2, 2, 2, 2, 1], strict=True)
    ]
    assert all(array.flags.c_contiguous and array.flags.writeable for array in weights.arrays)


# -- what can be written in place --------------------------------------------------------------------------------------


def into(model: dict[str, Any], target: dict[str, Any]) -> Weights:
    """Take ``target`` as the place for a version of ``model``."""
    return Weights.into(geometry_of(model), read_model(target))


@pytest.mark.parametrize("at", [0, 8])
def test_arrays_over_one_memory_lie_end_to_end_and_write_through(at: int):
    model = mixed_model()
    geometry = geometry_of(model)
    memory = np.zeros(at + geometry.nbytes, np.uint8)
    arrays = arrays_over(geometry, memory, at=at)
    for tensor, array in zip(geometry.layout.tensors, arrays, strict=True):
        array[...] = model[tensor.name].view(array.dtype)
        assert (array.shape, array.flags.aligned) == (tensor.shape, True)
    ordered = b"".join(model[tensor.name].tobytes() for tensor in geometry.layout.tensors)
    assert memory.tobytes() == bytes(at) + ordered
    first, size = len(arrays) - 2, sum(map(geometry.tensor_bytes, range(len(arrays) - 2)))
    last_two = arrays_over(geometry, memory, range(first, len(arrays)), at + size)
    assert [array.tobytes() for array in last_two] == [array.tobytes() for array in arrays[first:]]


def test_read_only_memory_is_refused_by_name():
    target = {"v": np.zeros(3, np.uint16), "w": np.zeros(3, np.uint16)}
    target["w"].flags.writeable = False
    with pytest.raises(InvalidModel, match="'w' is read-only"):
        into(target, target)


@pytest.mark.parametrize(
    "expanded",
    [
        torch.zeros(3, 1).expand(3, 4),
        torch.zeros(1).expand(5),
        torch.zeros(1, dtype=torch.uint8).expand(5),
        torch.zeros(5, dtype=torch.int16).as_strided((4, 2), (1, 1)),  # windows that overlap
        torch.zeros(9, dtype=torch.int16).as_strided((2, 3), (2, 1)),
    ],
    ids=["rows", "one cell", "one byte", "windows", "rows that overlap"],
)
def test_tensors_whose_cells_share_memory_are_refused_by_name(expanded: torch.Tensor):
    with pytest.raises(InvalidModel, match="'w' is expanded"):
        into({"w": torch.zeros(expanded.shape, dtype=expanded.dtype)}, {"w": expanded})


@pytest.mark.parametrize(
    "target",
    [
        np.zeros(5, np.uint16)[None],  # NumPy gives the new axis a stride of 0
        np.zeros(5, np.uint16)[:, None, None],
        np.zeros((4, 5), np.uint16).T,
        np.zeros((4, 6), np.uint16)[::2, ::-3],
        np.zeros((2, 3, 4), np.uint16).transpose(1, 2, 0),
        np.zeros((0, 5), np.uint16),
        np.zeros((), np.uint16),
        np.zeros((1, 1), np.uint16),
        np.zeros((3, 8), np.uint16)[:, 2:4],
    ],
    ids=lambda array: f"{array.shape} {array.strides}",
)
def test_tensors_with_memory_of_their_own_are_taken_whatever_their_strides(target: np.ndarray[Any, Any]):
    weights = into({"w": np.zeros(target.shape, np.uint16)}, {"w": target})
    for group in weights.geometry.groups:
        weights.fill(group, np.arange(1, group.cells + 1, dtype=np.uint16))
    assert target.reshape(-1).tolist() == list(range(1, target.size + 1))


# -- layouts that differ -----------------------------------------------------------------------------------------------

VERSION = {"a": np.zeros((2, 3), np.uint16), "b": np.zeros(4, np.uint16), "c": np.zeros(4, np.uint8)}
TIED = {"a": VERSION["b"], "b": VERSION["b"]}


@pytest.mark.parametrize(
    ("version", "model", "message"),
    [
        (VERSION, {k: VERSION[k] for k in "ac"}, "'b' of the version is not in the model"),
        (VERSION, {**VERSION, "d": np.zeros(1)}, "'d' of the model is not in the version"),
        (VERSION, {**VERSION, "a": np.zeros((3, 2), np.uint16)}, r"'a' is U16 \[3, 2\] in the model and U16 \[2, 3\]"),
        (
            VERSION,
            {**VERSION, "b": np.zeros(4, np.int16)},
            r"'b' is I16 \[4\] in the model and U16 \[4\] in the version",
        ),
        (VERSION, {**VERSION, "c": np.zeros((), np.uint8)}, r"'c' is U8 \[\] in the model and U8 \[4\]"),
        (VERSION, {"x": np.zeros(4, np.uint16)}, "'a' of the version is not in the model"),
        (TIED, {"a": np.zeros(4, np.uint16), "b": np.zeros(4, np.uint16)}, "'b' is tied to 'a' in the version, not"),
        (
            {"a": np.zeros(4, np.uint16), "b": np.zeros(4, np.uint16)},
            {"a": VERSION["b"], "b": VERSION["b"]},
            "'b' is tied to 'a' in the model, not in the version",
        ),
    ],
    ids=["missing", "surplus", "shape", "dtype", "scalar", "other names", "tied in the version", "tied in the model"],
)
def test_the_first_difference_of_the_layouts_is_named(version: dict[str, Any], model: dict[str, Any], message: str):
    geometry = geometry_of(version)
    with pytest.raises(LayoutMismatch, match=message):
        check_layout(geometry.layout, read_model(model))
    if "tied" not in message:  # in host memory, that is for the cells to say
        with pytest.raises(LayoutMismatch, match=message):
            Weights.into(geometry, read_model(model))


def test_equal_layouts_pass_whatever_the_order_of_names_and_which_tied_name_comes_first():
    check_layout(geometry_of(VERSION).layout, read_model(dict(reversed(VERSION.items()))))
    check_layout(geometry_of(TIED).layout, read_model({"b": VERSION["b"], "a": VERSION["b"]}))


def test_a_tied_name_that_the_model_does_not_have_is_no_difference():
    check_layout(geometry_of(TIED).layout, read_model({"a": VERSION["b"]}))


def test_empty_tensors_are_never_tied():
    none = np.zeros(0, np.uint16)
    geometry: Geometry = geometry_of({"a": np.zeros(0, np.uint16), "b": np.zeros(0, np.uint16)})
    check_layout(geometry.layout, read_model({"a": none, "b": none}))
