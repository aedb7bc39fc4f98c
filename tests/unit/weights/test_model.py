"""Reading a model: the same layout from torch, NumPy and modules; what can't be stored is refused by name."""

from __future__ import annotations

import gc
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from pulse_registry.errors import InvalidModel
from pulse_registry.weights.dtypes import NUMPY_NAMES, numpy_dtype
from pulse_registry.weights.model import layout_of, read_destination, read_model
from pulse_schemas import DTYPE_ORDER, Dtype, Layout


def torch_tensor(array: np.ndarray[Any, Any], dtype: Dtype) -> torch.Tensor:
    signed = array.reshape(-1).view(f"i{array.itemsize}").copy()
    return torch.from_numpy(signed).view(getattr(torch, NUMPY_NAMES[dtype])).reshape(array.shape)


def array_of(dtype: Dtype, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    kind = numpy_dtype(dtype)
    count = int(np.prod(shape))
    cells = np.arange(1, count + 1, dtype=np.uint64) % (2 if dtype == "BOOL" else 251)
    return cells.astype(f"u{kind.itemsize}").view(kind).reshape(shape)


def layout(model: Any, publish: str = "keep") -> Layout:
    return layout_of(read_model(model), publish)  # type: ignore[arg-type]


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(3, 4, dtype=torch.bfloat16)
        self.scale = torch.nn.Parameter(torch.tensor(1.5))
        self.register_buffer("steps", torch.arange(5))
        self.register_buffer("scratch", torch.zeros(9), persistent=False)


# -- what is read ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (1,), (2, 3)], ids=str)
@pytest.mark.parametrize("dtype", DTYPE_ORDER)
def test_torch_and_numpy_tensors_of_every_dtype_give_the_same_cells(dtype: Dtype, shape: tuple[int, ...]):
    array = array_of(dtype, shape)
    seen = [read_model({"w": value})["w"] for value in (array, torch_tensor(array, dtype))]
    expected = array.reshape(-1).view(f"u{array.itemsize}").reshape(shape)
    for view in seen:
        assert (view.name, view.dtype, view.shape, view.copied) == ("w", dtype, shape, False)
        assert view.cells.dtype == expected.dtype
        assert view.cells.shape == shape
        assert view.cells.tobytes() == expected.tobytes()


@pytest.mark.parametrize("make", [np.arange, torch.arange], ids=["numpy", "torch"])
def test_cells_are_a_view_of_the_tensors_memory(make: Callable[..., Any]):
    tensor = make(20).reshape(4, 5)
    for value, part in enumerate((tensor, tensor.T, tensor[1:, ::2], tensor[2, 3:])):
        read_model({"w": part})["w"].cells[...] = 100 + value
        assert np.unique(np.asarray(part)).tolist() == [100 + value]


def test_a_module_its_state_dict_and_numpy_arrays_have_one_layout_id():
    net = Net()
    state = net.state_dict()
    arrays = {
        name: value.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
        if value.dtype == torch.bfloat16
        else value.numpy()
        for name, value in state.items()
    }
    assert len({layout(model).id for model in (net, state, dict(state), arrays)}) == 1
    assert [(t.name, t.dtype, t.shape) for t in layout(net).tensors] == [
        ("steps", "I64", (5,)),
        ("scale", "F32", ()),
        ("inner.bias", "BF16", (4,)),
        ("inner.weight", "BF16", (4, 3)),
    ]


@given(st.permutations(["a", "b", "c.weight", "é", "z"]))
def test_the_order_of_a_mapping_does_not_matter(names: list[str]):
    arrays = {
        name: np.zeros(len(name), np.float32 if name < "c" else np.uint8) for name in ("a", "b", "c.weight", "é", "z")
    }
    assert layout({name: arrays[name] for name in names}) == layout(arrays)
    assert [t.name for t in layout(arrays).tensors] == ["a", "b", "c.weight", "z", "é"]


def test_only_names_dtypes_and_shapes_make_the_id():
    first = layout({"w": np.zeros((2, 3), np.float32)})
    assert layout({"w": np.ones((2, 3), np.float32)}).id == first.id
    assert layout({"w": np.zeros((3, 2), np.float32).T}).id == first.id
    for other in (
        {"v": np.zeros((2, 3), np.float32)},
        {"w": np.zeros((3, 2), np.float32)},
        {"w": np.zeros((2, 3), np.int32)},
    ):
        assert layout(other).id != first.id


@pytest.mark.parametrize("make", [np.arange, torch.arange], ids=["numpy", "torch"])
def test_tensors_that_are_not_contiguous_are_read_in_the_order_of_their_cells(make: Callable[..., Any]):
    tensor = make(24).reshape(4, 6)
    for strided in (tensor.T, tensor[::2, 1::3], tensor[1:3, 2:]):
        view = read_model({"w": strided})["w"]
        assert not view.copied
        assert view.cells.tolist() == strided.tolist()


def test_numpy_arrays_may_run_backwards():
    array = np.arange(10, dtype=np.int16)[::-1]
    assert read_model({"w": array})["w"].cells.tolist() == list(range(9, -1, -1))


def test_gradients_do_not_matter():
    tensor = torch.nn.Parameter(torch.ones(3))
    view = read_model({"w": tensor})["w"]
    view.cells[:] = 0
    assert tensor.tolist() == [0, 0, 0]


def test_what_torch_negates_lazily_is_read_as_a_copy_of_the_true_values():
    lazy = torch.tensor([1 + 2j, 3 - 4j]).conj().imag
    assert lazy.is_neg()
    view = read_model({"w": lazy})["w"]
    assert view.cells.view(np.float32).tolist() == [-2.0, 4.0]
    assert view.copied


# -- tied names --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [np.zeros, torch.zeros], ids=["numpy", "torch"])
def test_names_of_the_same_memory_are_stored_once_under_the_first(make: Callable[..., Any]):
    weight = make((3, 4))
    tied = layout({"embed": weight, "other": make((3, 4)), "head": weight[:]})
    assert [t.name for t in tied.tensors] == ["embed", "other"]
    assert tied.tied == {"head": "embed"}
    assert layout({"head": weight, "embed": weight}).tied == {"embed": "head"}


@pytest.mark.parametrize("make", [np.zeros, torch.zeros], ids=["numpy", "torch"])
def test_other_views_of_the_same_memory_are_tensors_of_their_own(make: Callable[..., Any]):
    weight = make((4, 4))
    for other in (weight.T, weight[:2], weight.reshape(16), weight[1:]):
        described = layout({"a": weight, "b": other})
        assert [t.name for t in described.tensors] == ["a", "b"]
        assert not described.tied


def test_the_same_memory_as_another_dtype_is_a_tensor_of_its_own():
    weight = torch.zeros(4)
    assert not layout({"a": weight, "b": weight.view(torch.int32)}).tied


def test_a_module_with_tied_parameters_is_published_once():
    net = torch.nn.ModuleDict({"embed": torch.nn.Embedding(5, 3), "head": torch.nn.Linear(3, 5, bias=False)})
    net["head"].weight = net["embed"].weight
    described = layout(net, "bf16")
    assert [(t.name, t.dtype) for t in described.tensors] == [("embed.weight", "BF16")]
    assert described.tied == {"head.weight": "embed.weight"}


@pytest.mark.parametrize("none", [np.zeros(0), np.zeros((3, 0)), torch.zeros(0)], ids=["numpy", "rows", "torch"])
def test_tensors_without_cells_are_never_tied(none: Any):
    assert not layout({"a": none, "b": none}).tied


# -- publishing as BF16 ------------------------------------------------------------------------------------------------


def test_under_bf16_float32_is_published_as_bf16_and_the_rest_as_it_is():
    arrays = {dtype: array_of(dtype, (3,)) for dtype in DTYPE_ORDER if dtype not in ("F64", "F16")}
    published = {t.name: t.dtype for t in layout(arrays, "bf16").tensors}
    assert published == {dtype: "BF16" if dtype == "F32" else dtype for dtype in arrays}


@pytest.mark.parametrize("dtype", ["F64", "F16"])
@pytest.mark.parametrize("framework", ["torch", "numpy"])
def test_under_bf16_other_floats_are_refused_by_name_with_what_to_do(dtype: Dtype, framework: str):
    array = array_of(dtype, (3,))
    model = {"fine": np.zeros(3, np.float32), "layer.w": torch_tensor(array, dtype) if framework == "torch" else array}
    with pytest.raises(InvalidModel, match=rf"'layer\.w' is {dtype}.*dtype='keep'.*cast it yourself"):
        layout(model, "bf16")
    assert {t.name: t.dtype for t in layout(model, "keep").tensors} == {"fine": "F32", "layer.w": dtype}


# -- what is refused ---------------------------------------------------------------------------------------------------


def quantized() -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.quantize_per_tensor is on its way out
        return torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)


class Packed(torch.Tensor):
    """Looks like a tensor, and has no memory: as sharded, quantized and traced tensors do."""

    @staticmethod
    def __new__(cls) -> Packed:
        return torch.Tensor._make_wrapper_subclass(cls, (3,), dtype=torch.bfloat16)

    @classmethod
    def __torch_dispatch__(cls, function: Any, *_: Any, **__: Any) -> Any:
        pytest.fail(f"{function} was called on it")


def nested() -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "prototype stage"
        return torch.nested.nested_tensor([[1.0], [1.0, 2.0]])


def fake() -> torch.Tensor:
    with FakeTensorMode():
        return torch.zeros(3)


def freed() -> torch.nn.Parameter:
    """Return a parameter whose memory FSDP, or who offloads it, has given back."""
    parameter = torch.nn.Parameter(torch.zeros(3))
    parameter.untyped_storage().resize_(0)
    return parameter


def partitioned() -> torch.nn.Parameter:
    """Return a parameter as DeepSpeed ZeRO-3 leaves it between steps: its cells are in ``ds_tensor``, a part a rank."""
    parameter = torch.nn.Parameter(torch.empty(0))
    parameter.ds_shape = torch.Size((3,))  # type: ignore[attr-defined]
    return parameter


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "complex torch": (lambda: torch.zeros(3, dtype=torch.complex64), "complex64"),
    "complex numpy": (lambda: np.zeros(3, np.complex128), "complex128"),
    "sparse": (lambda: torch.eye(3).to_sparse(), "sparse_coo"),
    "packed": (Packed, "is a Packed, .*Pass the plain tensors that it is made of, or a Slice of each shard"),
    "fake": (fake, "is a FakeTensor, "),
    "functional": (lambda: torch._to_functional_tensor(torch.zeros(3)), "without memory of its own"),
    "nested": (nested, "not a plain dense tensor"),
    "lazy": (lambda: torch.nn.LazyLinear(3).weight, "UninitializedParameter .*Call `forward`"),
    "zeros that are not there": (lambda: torch._efficientzerotensor(3), "without memory of its own"),
    "meta": (lambda: torch.empty(3, device="meta"), "meta"),
    "freed": (freed, "memory was freed or they were offloaded: bring them back first"),
    "partitioned": (partitioned, "DeepSpeed ZeRO-3, and has no cells here: use ZeRO-2 .*GatheredParameters"),
    "strings": (lambda: np.array(["a"]), "U1"),
    "objects": (lambda: np.array([None]), "object"),
    "records": (lambda: np.zeros(3, "u4,u4"), "u4"),
    "dates": (lambda: np.zeros(3, "M8[s]"), "datetime64"),
    "4-bit floats, one a byte": (lambda: np.zeros(3, ml_dtypes.float4_e2m1fn), "pack two, the first in the low four"),
    "4-bit floats of no dimension": (lambda: torch.tensor(9, dtype=torch.uint8).view(torch.float4_e2m1fn_x2), "pairs"),
    "4-bit integers": (lambda: np.zeros(3, ml_dtypes.int4), "int4"),
    "fp8 of another kind": (lambda: torch.zeros(3).to(torch.float8_e4m3fnuz), "float8_e4m3fnuz"),
    "foreign byte order": (lambda: np.zeros(3, ">f4"), ">f4"),
    "a list": (lambda: [1.0, 2.0], "list"),
    "a number": (lambda: 1.0, "float"),
    "a NumPy scalar": (lambda: np.float32(1), "float32"),
    "nothing": (lambda: None, "NoneType"),
    "a nested mapping": (lambda: {"w": np.zeros(3)}, "dict"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_tensors_that_cannot_be_stored_are_refused_by_name_with_the_reason(case: str):
    make, reason = REFUSED[case]
    with pytest.raises(InvalidModel, match=rf"'layer\.w'.*({reason})"):
        layout({"fine": np.zeros(3, np.float32), "layer.w": make()})


def test_quantized_tensors_are_refused_by_name():
    with pytest.raises(InvalidModel, match=r"'layer\.w'.*qint8"):
        layout({"layer.w": quantized()})


def test_parameters_of_ones_own_kind_are_read_as_what_they_are():
    class Own(torch.nn.Parameter):
        pass

    model = {"own": Own(torch.ones(3)), "buffer": torch.nn.Buffer(torch.ones(3)), "as": torch.ones(3).as_subclass(Own)}
    assert {view.cells.view(np.float32).tolist() == [1, 1, 1] for view in read_destination(model).values()} == {True}


@pytest.mark.parametrize("model", [None, 5, [np.zeros(3)], np.zeros(3), torch.zeros(3), "model"], ids=repr)
def test_what_is_no_module_or_mapping_is_refused(model: Any):
    with pytest.raises(InvalidModel, match="mapping"):
        read_model(model)


@pytest.mark.parametrize("model", [{}, torch.nn.ReLU()], ids=["mapping", "module"])
def test_a_model_without_tensors_is_refused(model: Any):
    with pytest.raises(InvalidModel, match="no tensors"):
        read_model(model)


@pytest.mark.parametrize("name", [5, None, b"w", ("a", "b")], ids=repr)
def test_names_that_are_no_strings_are_refused(name: Any):
    with pytest.raises(InvalidModel, match="names are strings"):
        read_model({name: np.zeros(3)})


@pytest.mark.parametrize("name", ["", "a\nb", "\x00", "x" * 513, "\ud800", "__metadata__"], ids=ascii)
def test_names_that_no_layout_can_have_are_refused(name: str):
    with pytest.raises(InvalidModel) as caught:
        layout({name: np.zeros(3)})
    assert repr(name) in str(caught.value)


def test_more_dimensions_than_a_layout_can_have_are_refused():
    with pytest.raises(InvalidModel, match="'w'"):
        layout({"w": np.zeros((1,) * 33)})
    assert layout({"w": np.zeros((1,) * 32)}).tensors[0].shape == (1,) * 32


# -- what is written into ----------------------------------------------------------------------------------------------


class Overrides(Net):
    """Gives clones of its weights."""

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return {name: value.clone() for name, value in super().state_dict(*args, **kwargs).items()}


class Keeps(Net):
    """Gives the same clones at each call."""

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        if not hasattr(self, "kept"):
            self.kept = {name: value.clone() for name, value in super().state_dict(*args, **kwargs).items()}
        return self.kept


class Holds:
    """Is no module, and has a state dict of what another one gives."""

    def __init__(self, net: torch.nn.Module) -> None:
        self.net = net

    def state_dict(self) -> Any:
        return self.net.state_dict()


def hooked(hook: Callable[..., Any]) -> Net:
    net = Net()
    net.inner._register_state_dict_hook(hook)
    return net


def clones_one(_: Any, state: dict[str, Any], prefix: str, __: Any) -> None:
    state[f"{prefix}weight"] = state[f"{prefix}weight"].clone()


def splits_one(_: Any, state: dict[str, Any], prefix: str, __: Any) -> None:
    state[f"{prefix}first"], state[f"{prefix}rest"] = state.pop(f"{prefix}weight").split([1, 3])


def adds_none(_: Any, state: dict[str, Any], prefix: str, __: Any) -> None:
    state[f"{prefix}none"] = torch.zeros(0)


def as_numpy(_: Any, state: dict[str, Any], prefix: str, __: Any) -> None:
    state[f"{prefix}weight"] = state[f"{prefix}weight"].view(torch.int16).numpy()


COPIES: dict[str, Callable[[], Any]] = {
    "an override": Overrides,
    "an override that keeps its copies": Keeps,
    "a hook": lambda: hooked(clones_one),
    "a hook that makes arrays": lambda: hooked(as_numpy),
    "no module": lambda: Holds(Overrides()),
    "a mapping of what is computed when it is read": lambda: {"w": torch.tensor([1 + 2j]).conj().imag},
}
OWN: dict[str, Callable[[], Any]] = {
    "a module": Net,
    "its state dict": lambda: Net().state_dict(),
    "a hook that splits": lambda: hooked(splits_one),
    "a hook that adds a tensor without cells": lambda: hooked(adds_none),
    "no module": lambda: Holds(Net()),
    "a scripted module": lambda: quiet_script(Net()),
    "a mapping of copies": lambda: Overrides().state_dict(),
}


def quiet_script(net: torch.nn.Module) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit.script is on its way out
        return torch.jit.script(torch.nn.Sequential(net.get_submodule("inner")))


@pytest.mark.parametrize("case", COPIES)
def test_copies_are_read_but_refused_where_they_would_be_written_into(case: str):
    model = COPIES[case]()
    assert read_model(model)
    with pytest.raises(InvalidModel, match=r"tensor '[\w.]+' is a copy .*Pass a mapping"):
        read_destination(model)


@pytest.mark.parametrize("case", OWN)
def test_what_is_written_into_a_models_own_memory_changes_the_model(case: str):
    model = OWN[case]()
    for view in read_destination(model).values():
        view.cells[...] = 1
    for view in read_model(model).values():
        assert np.all(view.cells == 1), view.name


# -- owners ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [np.zeros, torch.zeros], ids=["numpy", "torch"])
def test_the_owner_lives_as_long_as_the_memory_and_no_longer(make: Callable[..., Any]):
    memory = make(10)
    tensor: Any = memory[2:]
    owner = weakref.ref(read_model({"w": tensor})["w"].owner)
    gc.collect()
    assert owner() is not None
    tensor = memory[2:]  # another tensor object over the same memory
    assert read_model({"w": tensor})["w"].owner is owner()
    del tensor
    assert owner() is not None
    del memory
    gc.collect()
    assert owner() is None


def test_a_module_whose_parameters_zero_3_spread_is_refused_though_its_state_dict_tells_nothing() -> None:
    module = torch.nn.Linear(3, 2, bias=False)
    module.weight.data = torch.empty(0)
    module.weight.ds_shape = torch.Size((2, 3))  # type: ignore[assignment]
    with pytest.raises(InvalidModel, match=r"'weight' is spread over ranks by DeepSpeed ZeRO-3.*GatheredParameters"):
        read_model(module)
