"""New tensors: over the same memory as the weights they come from, in torch or NumPy."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
import torch

from pulse_registry.weights.arrays import Weights
from pulse_registry.weights.cell_space import Geometry
from pulse_registry.weights.dtypes import NUMPY_NAMES, numpy_dtype
from pulse_registry.weights.model import layout_of, read_model
from pulse_registry.weights.tensors import Framework, new_tensors
from pulse_schemas import DTYPE_ORDER, Layout, Tensor

LAYOUT = Layout(
    tensors=tuple(
        Tensor(name=f"{dtype}{n}", dtype=dtype, shape=shape)
        for dtype in DTYPE_ORDER
        for n, shape in enumerate([(), (0, 3), (2, 3)])
        if (dtype, shape) != ("F4", ())
    ),
    tied={"alias": "BF162", "another": "BF162", "none": "U81"},
)
by_framework = pytest.mark.parametrize("framework", ["torch", "numpy"])


@pytest.fixture
def weights() -> Weights:
    made = Weights.empty(Geometry(LAYOUT))
    for array in made.arrays:
        array[...] = (np.arange(array.size) % 2 + (0 if array.itemsize == 1 else 0x1200)).reshape(array.shape)
    return made


@by_framework
def test_every_dtype_and_shape_comes_out_as_it_is_in_the_layout(weights: Weights, framework: Framework):
    tensors = new_tensors(weights, framework)
    views = read_model(tensors)
    for number, tensor in enumerate(LAYOUT.tensors):
        view = views[tensor.name]
        assert (view.dtype, view.shape) == (tensor.dtype, tensor.shape)
        assert view.cells.tolist() == weights.arrays[number].tolist()
        expected = getattr(torch, NUMPY_NAMES[tensor.dtype]) if framework == "torch" else numpy_dtype(tensor.dtype)
        assert tensors[tensor.name].dtype == expected
    assert isinstance(tensors["U80"], torch.Tensor if framework == "torch" else np.ndarray)


@by_framework
def test_the_tensors_share_memory_with_the_weights(weights: Weights, framework: Framework):
    tensors = new_tensors(weights, framework)
    for tensor, array in zip(LAYOUT.tensors, weights.arrays, strict=True):
        array[...] ^= 1
        assert read_model(tensors)[tensor.name].cells.tolist() == array.tolist()
        if array.size:
            assert (
                read_model(tensors)[tensor.name].cells.__array_interface__["data"] == array.__array_interface__["data"]
            )


@by_framework
def test_tied_names_are_one_object(weights: Weights, framework: Framework):
    tensors = new_tensors(weights, framework)
    assert tensors["alias"] is tensors["another"] is tensors["BF162"]
    assert tensors["none"] is tensors["U81"]
    assert set(tensors) == {tensor.name for tensor in LAYOUT.tensors} | set(LAYOUT.tied)
    # The empty one can't be told to be tied by its memory; all else is the layout that it came from.
    assert layout_of(read_model({k: v for k, v in tensors.items() if k != "none"}), "keep").tied == {
        "alias": "BF162",
        "another": "BF162",
    }


@by_framework
def test_the_tensors_can_be_written_and_outlive_the_weights(framework: Framework):
    made = Weights.empty(Geometry(Layout(tensors=(Tensor(name="w", dtype="F32", shape=(3,)),))))
    tensor = new_tensors(made, framework)["w"]
    del made
    tensor[:] = 1.5
    assert tensor.tolist() == [1.5, 1.5, 1.5]


def test_auto_is_torch_where_it_is_installed_and_numpy_elsewhere(weights: Weights, monkeypatch: pytest.MonkeyPatch):
    assert isinstance(new_tensors(weights)["U80"], torch.Tensor)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert isinstance(new_tensors(weights, "auto")["U80"], np.ndarray)
