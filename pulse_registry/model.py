"""Reading a caller's model: an nn.Module or a mapping of tensors becomes a layout and arrays of raw cells.

Works on torch tensors and NumPy arrays without importing torch: a torch tensor can only be met where torch is loaded.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from pydantic import ValidationError

from pulse_registry.errors import InvalidModel
from pulse_schemas import DTYPE_ORDER, Dtype, Layout, Tensor

Model: TypeAlias = Any
"""An ``nn.Module``, or a mapping of names to torch tensors or NumPy arrays."""
PublishDtype = Literal["bf16", "keep"]

_NUMPY_DTYPES: dict[str, Dtype] = {
    "float64": "F64",
    "int64": "I64",
    "uint64": "U64",
    "float32": "F32",
    "int32": "I32",
    "uint32": "U32",
    "bfloat16": "BF16",
    "float16": "F16",
    "int16": "I16",
    "uint16": "U16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}
NUMPY_NAMES: dict[Dtype, str] = {dtype: name for name, dtype in _NUMPY_DTYPES.items()}
"""NumPy (with ml_dtypes) and torch name of each stored dtype; torch differs only in that it has the same names."""


@dataclass(frozen=True, slots=True)
class View:
    """One tensor of a model: ``cells`` is an unsigned view of its memory, of the tensor's shape and any strides.

    ``owner`` lives as long as the memory does and takes weak references; ``copied`` says that the memory is a copy made
    for reading (a tensor of another device), so that writing into it would change nothing.
    """

    name: str
    dtype: Dtype
    shape: tuple[int, ...]
    cells: np.ndarray[Any, Any]
    copied: bool
    owner: Any

    @property
    def identity(self) -> tuple[Any, ...]:
        """Equal for two names of the same memory, seen in the same way."""
        interface = self.cells.__array_interface__
        return interface["data"][0], self.dtype, self.shape, self.cells.strides


def read_model(model: Model) -> dict[str, View]:
    """Return the views of all tensors by name.

    Raises:
        InvalidModel: not a module or mapping, no tensors, or a tensor that can't be stored, by name with the reason.
    """
    if hasattr(model, "state_dict") and callable(model.state_dict):
        model = model.state_dict()
    if not isinstance(model, Mapping):
        raise InvalidModel(f"a model is an nn.Module or a mapping of names to tensors, not {type(model).__name__}")
    views = {}
    for name, value in model.items():
        if not isinstance(name, str):
            raise InvalidModel(f"tensor names are strings, not {name!r}")
        views[name] = _view(name, value)
    if not views:
        raise InvalidModel("the model has no tensors")
    return views


def layout_of(views: Mapping[str, View], publish: PublishDtype) -> Layout:
    """Return the layout under which these tensors are published.

    With ``bf16``, float32 tensors are published as BF16 and float16 and float64 ones are refused (a cast that the
    forward pass does not make would lose bits unseen); everything else is published as it is. With ``keep``, all is.
    Names of the same memory are stored once, under the first of them.

    Raises:
        InvalidModel: a tensor can't be published so, or a name is not valid.
    """
    stored: dict[tuple[Any, ...], str] = {}
    tied: dict[str, str] = {}
    tensors = []
    for name, view in views.items():
        if view.cells.size:
            first = stored.setdefault(view.identity, name)
            if first != name:
                tied[name] = first
                continue
        dtype = _published(view, publish)
        try:
            tensors.append(Tensor(name=name, dtype=dtype, shape=view.shape))
        except ValidationError as error:
            raise InvalidModel(f"tensor {name!r} can't be stored: {_reason(error)}") from error
    tensors.sort(key=lambda tensor: (DTYPE_ORDER.index(tensor.dtype), tensor.name))
    try:
        return Layout(tensors=tuple(tensors), tied=tied)
    except ValidationError as error:
        raise InvalidModel(f"the model has no valid layout: {_reason(error)}") from error


def _reason(error: ValidationError) -> str:
    faults = error.errors(include_url=False, include_context=False, include_input=False)
    return "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}".lstrip(": ") for fault in faults)


def _published(view: View, publish: PublishDtype) -> Dtype:
    if publish == "keep" or view.dtype not in ("F64", "F32", "F16"):
        return view.dtype
    if view.dtype == "F32":
        return "BF16"
    raise InvalidModel(
        f"tensor {view.name!r} is {view.dtype}, and floating tensors are published as BF16 here: a silent cast would "
        "lose bits. Open the registry with publish_dtype='keep' to publish it as it is, or cast it yourself"
    )


def _view(name: str, value: Any) -> View:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _torch_view(torch, name, value)
    if not isinstance(value, np.ndarray):
        raise InvalidModel(f"tensor {name!r} is a {type(value).__name__}; torch tensors and NumPy arrays are taken")
    dtype = _NUMPY_DTYPES.get(value.dtype.name)
    if dtype is None or not value.dtype.isnative:
        raise InvalidModel(f"tensor {name!r} has dtype {value.dtype}, which can't be stored")
    owner = value
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    return View(name, dtype, tuple(value.shape), _unsigned(value), False, owner)


def _torch_view(torch: Any, name: str, value: Any) -> View:
    dtype = _NUMPY_DTYPES.get(str(value.dtype).removeprefix("torch."))
    if dtype is None:
        raise InvalidModel(f"tensor {name!r} has dtype {value.dtype}, which can't be stored")
    if value.layout != torch.strided or value.is_quantized or value.device.type == "meta":
        raise InvalidModel(
            f"tensor {name!r} ({value.layout}, {value.device}) is not a plain dense tensor with memory of its own"
        )
    tensor = value.detach()
    if tensor.is_neg() or tensor.is_conj():
        tensor = tensor.resolve_neg().resolve_conj()
    host = tensor.cpu()
    signed = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[host.element_size()]
    cells = _unsigned(host.view(signed).numpy())
    copied = host.data_ptr() != value.data_ptr()
    return View(name, dtype, tuple(value.shape), cells, copied, value.untyped_storage())


def _unsigned(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return a view of the same memory, shape and strides, as unsigned integers."""
    if array.ndim:
        return array.view(f"u{array.itemsize}")
    return array.reshape(1).view(f"u{array.itemsize}").reshape(())
