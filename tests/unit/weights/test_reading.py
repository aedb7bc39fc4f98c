"""Readings: what is kept from one to the next is what a fresh look would find, after whatever was done to a model."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pulse_kernels import SpanTable, get_backend
from pulse_registry.errors import InvalidModel
from pulse_registry.weights.arrays import Weights
from pulse_registry.weights.cell_space import Geometry
from pulse_registry.weights.model import View, layout_of, read_model
from pulse_registry.weights.reading import ModelReader, Reading, once, spans_of
from pulse_registry.weights.slice import Slice
from tests.support.sampling import examples

BACKEND = get_backend("reference")
CELLS = 24
"""Of each piece of memory: it takes several shapes."""

Change = Callable[[dict[str, Any], st.DataObject], None]
by_framework = pytest.mark.parametrize("framework", ["torch", "numpy", "both"])


def tensors(framework: str, names: str = "abc") -> dict[str, Any]:
    made = {name: np.arange(number, number + CELLS, dtype=np.int32) for number, name in enumerate(names)}
    of_torch = {"numpy": "", "torch": names, "both": names[1:]}[framework]
    return {name: torch.from_numpy(array) if name in of_torch else array for name, array in made.items()}


def told(views: Mapping[str, View], publish: Any) -> tuple[Any, ...]:
    """Return all that pushes and pulls take from the views of a model."""
    layout = once(views, ("layout", publish), lambda: layout_of(views, publish))
    geometry = Geometry(layout)
    cells = [
        np.concatenate([np.asarray(span) for span in (spans.arrays() if isinstance(spans, SpanTable) else spans)])
        for spans in (spans_of(views, geometry, group) for group in geometry.groups)
    ]
    try:
        weights = Weights.into(geometry, views)
        into: Any = [weights.copy_of(group).tolist() for group in geometry.groups], weights.tied, weights.plain
        into += ([list(array.strides) for array in weights.arrays],)
        written = [weights.gather(BACKEND, group, np.array([0], np.uint32)).tolist() for group in geometry.groups]
    except InvalidModel as error:
        into, written = str(error), []
    kinds = [(view.name, view.dtype, view.shape, view.identity, view.copied) for view in views.values()]
    return layout.id, [found.tolist() for found in cells], into, written, kinds


def outcome(read: Callable[[], Mapping[str, View]]) -> tuple[Any, ...] | str:
    try:
        views = read()
        return told(views, "keep")
    except (InvalidModel, ValueError) as error:
        return str(error)


def _some(model: dict[str, Any], data: st.DataObject) -> str:
    return data.draw(st.sampled_from(sorted(model)))


def change_a_cell(model: dict[str, Any], data: st.DataObject) -> None:
    value = model[_some(model, data)]
    if value.reshape(-1).shape[0] and not (isinstance(value, np.ndarray) and not value.flags.writeable):
        value.reshape(-1)[0] = 1


def replace_memory(model: dict[str, Any], data: st.DataObject) -> None:
    name = _some(model, data)
    value = model[name]
    model[name] = value.copy() if isinstance(value, np.ndarray) else value.clone()


def tie(model: dict[str, Any], data: st.DataObject) -> None:
    model[_some(model, data)] = model[_some(model, data)]


def rename(model: dict[str, Any], data: st.DataObject) -> None:
    name = _some(model, data)
    items = [(name + "x" if key == name else key, value) for key, value in model.items()]
    model.clear()
    model.update(items)


def reorder(model: dict[str, Any], data: st.DataObject) -> None:
    items = data.draw(st.permutations(list(model.items())))
    model.clear()
    model.update(items)


def swap(model: dict[str, Any], data: st.DataObject) -> None:
    one, other = _some(model, data), _some(model, data)
    model[one], model[other] = model[other], model[one]


def reshape(model: dict[str, Any], data: st.DataObject) -> None:
    name = _some(model, data)
    size = model[name].reshape(-1).shape[0]
    shapes = [(size,), (size, 1), (1, size), (1, 1, size)] + ([(2, size // 2), (size // 2, 2)] if size % 2 == 0 else [])
    model[name] = model[name].reshape(data.draw(st.sampled_from(shapes)))


def other_strides(model: dict[str, Any], data: st.DataObject) -> None:
    name = _some(model, data)
    value = model[name]
    side = next((n for n in (6, 4, 2, 1) if value.reshape(-1).shape[0] >= n * n), 0)
    square = value.reshape(-1)[: side * side].reshape(side, side)
    model[name] = square.T if data.draw(st.booleans()) else square


def other_dtype(model: dict[str, Any], data: st.DataObject) -> None:
    name = _some(model, data)
    if isinstance(model[name], np.ndarray):
        model[name] = np.ascontiguousarray(model[name]).view(data.draw(st.sampled_from(["i4", "f4", "i2"])))
    else:
        kinds = [torch.int32, torch.float32, torch.int16]
        model[name] = model[name].contiguous().view(data.draw(st.sampled_from(kinds)))


def add(model: dict[str, Any], data: st.DataObject) -> None:
    model["new" + _some(model, data)] = model[_some(model, data)]


def take_away(model: dict[str, Any], data: st.DataObject) -> None:
    del model[_some(model, data)]


def empty(model: dict[str, Any], data: st.DataObject) -> None:
    name = _some(model, data)
    model[name] = model[name][:0]


def in_place(model: dict[str, Any], data: st.DataObject) -> None:
    """Change what an object says of its memory, or which memory it has; the object stays."""
    name = _some(model, data)
    value, how = model[name], data.draw(st.integers(0, 5))
    if isinstance(value, np.ndarray):
        if how == 0:
            value.flags.writeable = not value.flags.writeable and value.flags.owndata
        elif how < 3 and value.flags.c_contiguous:
            value.shape = (value.size, 1) if value.ndim == 1 else (value.size,)  # type: ignore[misc]
        elif value.dtype.itemsize == 4 and value.flags.c_contiguous:
            value.dtype = np.dtype(np.uint32)  # type: ignore[misc]
        return
    cells = value.detach().reshape(-1)
    if how == 0:
        value.data = cells.clone()
    elif how == 1:
        value.data = cells.view(torch.float32)
    elif how == 2:
        value.data = cells[: len(cells) // 2]
    elif how == 3:
        value.data = cells[1:]
    elif how == 4 and value.ndim == 2:
        value.t_()
    elif how == 5 and value.ndim == 2:
        value.data = value.detach().t()


def another_device(model: dict[str, Any], data: st.DataObject) -> None:
    name = _some(model, data)
    if isinstance(model[name], torch.Tensor):
        model[name] = model[name].to("meta")


CHANGES: list[Change] = [
    *(change_a_cell, replace_memory, tie, rename, reorder, swap, reshape, other_strides),
    *(other_dtype, add, take_away, empty, in_place, in_place, another_device),
]


@pytest.mark.slow
@by_framework
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # NumPy's, of shapes that are set
@examples(120)
@given(data=st.data())
def test_what_is_kept_is_what_a_fresh_look_finds_after_any_change(framework: str, data: st.DataObject):
    model, reader = tensors(framework), ModelReader()
    assert outcome(lambda: reader.read(model)) == outcome(lambda: read_model(model))
    for change in data.draw(st.lists(st.sampled_from(CHANGES), min_size=1, max_size=6)):
        if not model:
            break
        change(model, data)
        assert outcome(lambda: reader.read(model)) == outcome(lambda: read_model(model)), change
        assert outcome(lambda: reader.read(model)) == outcome(lambda: read_model(model)), change


def views_made(views: Mapping[str, View]) -> bool:
    """Whether what follows from the tensors is made anew: it is not where a reading is of those of the last one."""
    made: list[bool] = []
    once(views, "layout", lambda: made.append(True))
    return bool(made)


def in_halves(model: dict[str, Any], *, kind: type = tuple) -> dict[str, Any]:
    """Return tensors as the upper halves of others; one without cells, or of no dimension, as it is."""
    return {
        name: Slice(value, of=kind((*shape[:-1], 2 * shape[-1])), at=kind((*[0] * len(shape[:-1]), shape[-1])))
        if (shape := tuple(value.shape)) and 0 not in shape
        else value
        for name, value in model.items()
    }


def said(views: Mapping[str, View]) -> list[tuple[Any, ...]]:
    """Return all that is in views, and the cells."""
    return [
        (name, view.name, view.dtype, view.shape, view.identity, view.part, view.copied, view.cells.tolist())
        for name, view in views.items()
    ]


@by_framework
@pytest.mark.parametrize("kind", [tuple, list])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # NumPy's, of shapes that are set
@examples(60)
@given(data=st.data())
def test_what_is_kept_of_slices_is_what_a_fresh_look_finds_after_any_change(
    framework: str, kind: type, data: st.DataObject
):
    model, reader = tensors(framework), ModelReader()
    for change in data.draw(st.lists(st.sampled_from([change_a_cell, *CHANGES]), min_size=1, max_size=6)):
        found: list[Any] = []
        for read in (reader.read, reader.read, read_model):
            try:
                found.append(said(read(in_halves(model, kind=kind))))
            except (InvalidModel, ValueError) as error:
                found.append(str(error))
        assert found[0] == found[1] == found[2], change
        if not model:
            break
        change(model, data)


def test_slices_are_read_once_until_one_says_that_it_is_of_other_cells():
    cells, reader = np.arange(8, dtype=np.int32), ModelReader()

    def of(at: Any, of: Any = (4, 4), *, several: bool = False) -> dict[str, Any]:
        part = Slice(cells.reshape(2, 4), of=of, at=at)
        return {"a": [part] if several else part, "b": torch.zeros(3)}

    kept, other = torch.zeros(3), [0, 0]
    models = [of((0, 0)), of((2, 0)), of(0), of(8), of((0, 0), (8, 4)), of((0, 0), several=True), of(other)]
    for model in models:
        model["b"] = kept
        assert views_made(reader.read(model))
        assert not views_made(reader.read(dict(model)))
    other[0] = 2
    views = reader.read(models[-1])
    assert views["a[2:4, 0:4]"].part == read_model(models[-1])["a[2:4, 0:4]"].part


@pytest.mark.parametrize("at", [np.array(0), torch.tensor(0), [np.array(0), 0], (torch.tensor(0), 0)], ids=str)
def test_a_slice_whose_offset_is_changed_in_place_is_of_other_cells(at: Any):
    cells, reader = np.arange(8, dtype=np.int32).reshape(2, 4), ModelReader()
    model = {"a": Slice(cells, of=(4, 4), at=at)}
    for _ in range(2):
        assert list(reader.read(model)) == list(read_model(model))
    offset = at[0] if isinstance(at, list | tuple) else at
    offset += 2
    assert list(reader.read(model)) == list(read_model(model))


def test_a_slice_at_an_offset_that_is_no_whole_number_is_read_anew_each_time():
    model, reader = {"a": Slice(np.arange(8, dtype=np.int32).reshape(2, 4), of=(4, 4), at=(2.0, 0))}, ModelReader()  # type: ignore[arg-type]
    for _ in range(2):
        assert views_made(reader.read(model))


def test_models_that_take_turns_are_each_read_once():
    models, reader = [tensors("torch") for _ in range(4)], ModelReader()
    for model in models:
        assert views_made(reader.read(model))
    for model in models * 2:
        assert not views_made(reader.read(model))
    assert views_made(reader.read(tensors("torch")))
    assert views_made(reader.read(models[0]))
    assert not views_made(reader.read(models[3]))


@by_framework
def test_tensors_that_stay_are_read_once_and_their_cells_may_change(framework: str):
    model, reader = tensors(framework), ModelReader()
    assert views_made(reader.read(model))
    model["a"][3] = 77
    views = reader.read(dict(model))
    assert not views_made(views)
    assert views["a"].cells[3] == 77


def test_a_state_dict_that_makes_new_tensor_objects_is_of_the_same_tensors():
    net, reader = torch.nn.Linear(3, 4), ModelReader()
    assert views_made(reader.read(net))
    gc.collect()
    assert not views_made(reader.read(net))
    assert not views_made(reader.read(net.state_dict()))
    net.weight.data = net.weight.data.clone()
    assert views_made(reader.read(net))


def test_a_tensor_that_is_negated_where_it_lies_is_another():
    complex_, reader = torch.tensor([1 + 2j, 3 + 4j]), ModelReader()
    model = {"w": complex_.imag}
    assert views_made(reader.read(model))
    assert not views_made(reader.read(model))
    views = reader.read({"w": complex_.conj().imag})
    assert views["w"].copied
    assert views["w"].cells.view(np.float32).tolist() == [-2, -4]


@pytest.mark.parametrize("framework", ["torch", "numpy"])
def test_memory_that_was_let_go_of_is_not_taken_for_what_lies_there_now(framework: str):
    memory, reader = bytearray(4 * CELLS), ModelReader()

    def over() -> dict[str, Any]:
        array = np.frombuffer(memory, np.int32)
        return {"w": array if framework == "numpy" else torch.frombuffer(memory, dtype=torch.int32)}

    model = over()
    assert views_made(reader.read(model))
    assert not views_made(reader.read(model))
    model = over()
    gc.collect()
    assert views_made(reader.read(model))


@by_framework
def test_no_tensor_is_kept_alive_by_a_reader_and_all_are_by_a_reading(framework: str):
    model, reader = tensors(framework), ModelReader()
    layout = layout_of(reader.read(model), "keep")
    views = reader.read(model)
    assert isinstance(views, Reading)
    told(views, "keep")
    owners = [weakref.ref(view.owner) for view in read_model(model).values()]
    model.clear()
    gc.collect()
    assert all(owner() is not None for owner in owners)
    assert layout_of(views, "keep") == layout
    del views
    gc.collect()
    assert [owner() for owner in owners] == [None] * 3


ARRAY = np.arange(16, dtype=np.int32).reshape(4, 4)
TENSOR = torch.from_numpy(ARRAY)
NOTHING = torch.zeros(0)
LOCKED = ARRAY[:]
LOCKED.flags.writeable = False


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"a": TENSOR}, {"b": TENSOR}),
        ({"a": TENSOR, "b": TENSOR}, {"b": TENSOR, "a": TENSOR}),
        ({"a": TENSOR}, {"a": TENSOR, "b": TENSOR}),
        ({"a": TENSOR[:2]}, {"a": TENSOR[2:]}),
        ({"a": TENSOR}, {"a": TENSOR.t()}),
        ({"a": TENSOR}, {"a": TENSOR.view(2, 8)}),
        ({"a": TENSOR}, {"a": TENSOR.view(torch.float32)}),
        ({"a": TENSOR}, {"a": torch.nn.Parameter(TENSOR, requires_grad=False)}),
        ({"a": TENSOR}, {"a": ARRAY}),
        ({"a": TENSOR}, {"a": Slice(TENSOR, of=(4, 4), at=(0, 0))}),
        ({"a": ARRAY}, {"b": ARRAY}),
        ({"a": ARRAY[:2]}, {"a": ARRAY[2:]}),
        ({"a": ARRAY}, {"a": ARRAY.T}),
        ({"a": ARRAY}, {"a": ARRAY.reshape(2, 8)}),
        ({"a": ARRAY}, {"a": ARRAY.view(np.float32)}),
        ({"a": ARRAY}, {"a": LOCKED}),
        ({"a": ARRAY}, {"a": TENSOR}),
    ],
)
def test_what_differs_in_one_way_alone_is_another_model(before: dict[str, Any], after: dict[str, Any]):
    reader = ModelReader()
    assert views_made(reader.read(before))
    assert not views_made(reader.read(before))
    assert views_made(reader.read(after))


def test_a_tensor_without_cells_that_comes_to_be_elsewhere_is_refused():
    reader = ModelReader()
    assert views_made(reader.read({"a": TENSOR, "b": NOTHING}))
    assert not views_made(reader.read({"a": TENSOR, "b": NOTHING}))
    with pytest.raises(InvalidModel, match="'b' is on the device meta"):
        reader.read({"a": TENSOR, "b": NOTHING.to("meta")})


def test_a_tensor_without_cells_that_zero_3_has_spread_since_is_refused():
    reader, spread = ModelReader(), torch.empty(0)
    for _ in range(2):
        reader.read({"a": TENSOR, "b": spread})
    spread.ds_shape = (4, 4)  # type: ignore[attr-defined]
    with pytest.raises(InvalidModel, match="'b' is spread over ranks by DeepSpeed ZeRO-3"):
        reader.read({"a": TENSOR, "b": spread})


@pytest.mark.slow
def test_a_reading_keeps_the_memory_of_tensors_that_are_moved():
    model, reader = {"a": torch.zeros(CELLS)}, ModelReader()
    memory = weakref.ref(model["a"].untyped_storage())
    reader.read(model)
    views = reader.read(model)
    model["a"].data = torch.ones(CELLS)
    gc.collect()
    assert memory() is not None
    del views
    gc.collect()
    assert memory() is None


def test_weights_to_be_written_keep_their_memory_wherever_the_tensors_are_moved():
    """A version that is staged is written later: what the tensors were then is there, and is what is written."""
    model, reader, index = tensors("torch"), ModelReader(), np.array([0, CELLS], np.uint32)
    geometry = Geometry(layout_of(reader.read(model), "keep"))
    [group] = geometry.groups
    before = model["a"].detach()
    assert Weights.into(geometry, reader.read(model)).gather(BACKEND, group, index).tolist() == [0, 1]
    weights = Weights.into(geometry, reader.read(model))
    model["a"].data = torch.zeros(CELLS, dtype=torch.int32)
    weights.scatter(get_backend("numba"), group, index, np.array([7, 8], np.uint32))
    assert (int(before[0]), int(model["b"][0]), int(model["a"][0])) == (7, 8, 0)


def test_a_tensor_that_was_moved_before_it_was_looked_at_is_refused_and_the_next_reading_has_it():
    model, reader = tensors("torch"), ModelReader()
    geometry = Geometry(layout_of(reader.read(model), "keep"))
    [group] = geometry.groups
    weights = Weights.into(geometry, reader.read(model))
    weights = Weights.into(geometry, reader.read(model))
    model["a"].data = torch.full((CELLS,), 5, dtype=torch.int32)
    for _ in range(2):
        with pytest.raises(InvalidModel, match="'a' was given other memory"):
            weights.copy_of(group)
        with pytest.raises(InvalidModel, match="'a' was given other memory"):
            weights.where(group)
    assert Weights.into(geometry, reader.read(model)).copy_of(group)[0] == 5


class Sharded:
    """Shards of a kind that nobody told of."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor, self.shape = tensor, tensor.shape

    def __create_chunk_list__(self) -> list[Any]:
        return [SimpleNamespace(offsets=(0,), sizes=tuple(self.shape))]

    def to_local(self) -> torch.Tensor:
        return self.tensor


@pytest.mark.parametrize(
    "model",
    [lambda: {"a": torch.tensor([1 + 2j]).conj().imag}, lambda: {"a": Sharded(torch.zeros(4))}],
    ids=["a copy", "shards of another kind"],
)
def test_tensors_of_which_a_look_does_not_tell_all_are_read_each_time(model: Callable[[], dict[str, Any]]):
    given_, reader = model(), ModelReader()
    for _ in range(2):
        views = reader.read(given_)
        assert views_made(views)
        assert list(views) == list(read_model(given_))


def test_what_can_not_be_made_is_refused_each_time():
    reader, model = ModelReader(), {"a": torch.zeros(4, dtype=torch.float16)}
    for _ in range(2):
        views = reader.read(model)
        with pytest.raises(InvalidModel, match="published as BF16"):
            once(views, "layout", partial(layout_of, views, "bf16"))


# -- destinations ------------------------------------------------------------------------------------------------------


class Copies:
    """Gives copies of its tensors from some call on."""

    def __init__(self, calls: int) -> None:
        self.tensors, self.left = tensors("torch"), calls

    def state_dict(self) -> dict[str, Any]:
        self.left -= 1
        return {name: value if self.left >= 0 else value.clone() for name, value in self.tensors.items()}


def test_a_state_dict_of_copies_is_no_destination_however_often_it_was_one():
    reader = ModelReader()
    model = Copies(4)
    for _ in range(2):
        reader.read_destination(model)
    for _ in range(2):
        with pytest.raises(InvalidModel, match="is a copy"):
            reader.read_destination(model)


def test_a_module_whose_parameters_left_its_state_dict_is_no_destination():
    net, reader = torch.nn.Linear(3, 4), ModelReader()
    kept = {name: value.detach() for name, value in net.state_dict().items()}
    net.register_state_dict_post_hook(lambda module, state, prefix, metadata: state.update(kept))
    reader.read_destination(net)
    assert views_made(reader.read_destination(net))
    assert not views_made(reader.read_destination(net))
    net.weight.data = net.weight.data.clone()
    for _ in range(2):
        with pytest.raises(InvalidModel, match="'weight' is a copy"):
            reader.read_destination(net)
    net.weight.data = kept["weight"]
    assert list(reader.read_destination(net)) == ["weight", "bias"]
