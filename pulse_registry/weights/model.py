"""Reading a caller's model: an nn.Module or a mapping of tensors becomes a layout and arrays of raw cells.

Works on torch tensors and NumPy arrays without importing torch: a torch tensor can only be met where torch is loaded.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, TypeGuard

import numpy as np
import numpy.typing as npt
from pydantic import ValidationError

from pulse_kernels import CELL_TYPES
from pulse_registry.errors import InvalidModel
from pulse_registry.process.cycle_collector import cycles_kept
from pulse_registry.weights.dtypes import advice, of_numpy, of_torch
from pulse_registry.weights.file_tensor import FileTensor
from pulse_registry.weights.module import SPREAD_BY_ZERO_3, module_tensors
from pulse_registry.weights.slice import Part, Slice, is_sharded, parts_of
from pulse_schemas import DTYPE_ORDER, Dtype, Layout, Tensor, faults

if TYPE_CHECKING:
    import torch


class HasStateDict(Protocol):
    """An ``nn.Module``, or whatever gives its tensors by name as one does."""

    def state_dict(self) -> Mapping[str, Any]:
        """Return the tensors by name, over the memory that they live in."""
        ...


Model: TypeAlias = "HasStateDict | Mapping[str, torch.Tensor | npt.NDArray[Any] | FileTensor | Slice | Sequence[Slice]]"
"""An ``nn.Module``, or a mapping of names to torch tensors (DTensors too), NumPy arrays, the slices that this rank
holds of one or, to be published, tensors in files."""
PublishDtype = Literal["bf16", "keep"]

_UNSIGNED: dict[int, np.dtype[Any]] = {width: np.dtype(f"u{width}") for width in (1, 2, 4, 8)}


@dataclass(slots=True, eq=False)
class View:
    """One tensor of a model, or the part of one that this rank holds.

    Attributes:
        name, dtype, shape: of the tensor that is here; the name of a part says which one it is.
        copied: what there is to see is a copy made for reading, so that writing into it would change nothing.
        owner: lives as long as the memory does, and takes weak references.
        identity: equal for two names of the same memory, seen in the same way.
        tensor: the torch tensor, detached; None for others.
        read: returns ``cells``; once.
        range: returns cells by their flat indices, where they are not to be read as a whole.
        part: which cells of a tensor these are; None: all of the tensor of this name.

    A rank of many may have 70,000 of them: so it is small.
    """

    name: str
    dtype: Dtype
    shape: tuple[int, ...]
    copied: bool
    owner: Any
    identity: tuple[Any, ...]
    tensor: Any
    read: Callable[[], np.ndarray[Any, Any]]
    range: Callable[[int, int], np.ndarray[Any, Any]] | None = None
    part: Part | None = None
    _cells: np.ndarray[Any, Any] | None = None

    @property
    def cells(self) -> np.ndarray[Any, Any]:
        """An unsigned view of the memory, of the tensor's shape and any strides; of another device's, a copy.

        It is made when it is first asked for: what works where the tensor is never does.
        """
        if self._cells is None:
            self._cells = self.read()
        return self._cells

    def span(self, start: int, stop: int) -> np.ndarray[Any, Any]:
        """Return cells by their flat indices: where they are if they lie end to end there, else copied."""
        if self.range is not None:
            return self.range(start, stop)
        if self.cells.flags.c_contiguous:
            return self.cells.reshape(-1)[start:stop]
        return np.ascontiguousarray(self.cells.flat[start:stop])

    @property
    def size(self) -> int:
        """How many cells."""
        return math.prod(self.shape)

    @property
    def on_host(self) -> bool:
        """Whether the memory is the host's."""
        return self.tensor is None or self.tensor.device.type == "cpu"


def tensors_of(model: Model) -> Mapping[str, Any]:
    """Return a model's tensors by name; a module's without the names that wrappers, such as DDP, put in.

    Raises:
        InvalidModel: not a module or mapping; or two names of a module are one without those of wrappers.
    """
    if is_module(model):
        return module_tensors(model)
    found: Any = model.state_dict() if hasattr(model, "state_dict") and callable(model.state_dict) else model
    if not isinstance(found, Mapping):
        raise InvalidModel(f"a model is an nn.Module or a mapping of names to tensors, not {type(found).__name__}")
    return found


@cycles_kept()
def read_tensors(tensors: Mapping[str, Any]) -> dict[str, View]:
    """Return the views of tensors by name.

    Raises:
        InvalidModel: no tensors, or one that can't be stored, by name with the reason.
    """
    views = {}
    for name, value in tensors.items():
        if not isinstance(name, str):
            raise InvalidModel(f"tensor names are strings, not {name!r}")
        for view in _sharded(name, value) if is_sharded(value) else (view_of(name, value),):
            if view.name in views and view.size:
                raise InvalidModel(f"slice {view.name!r} is given twice: name the memory of it that is to be used")
            views[view.name] = view
    if not views:
        raise InvalidModel("the model has no tensors")
    return views


def read_model(model: Model) -> dict[str, View]:
    """Return the views of all tensors by name; a module's without the names that wrappers, such as DDP, put in.

    Raises:
        InvalidModel: as ``tensors_of`` and ``read_tensors``.
    """
    return read_tensors(tensors_of(model))


def read_destination(model: Model) -> dict[str, View]:
    """Return the views of a model that is to be written into: ``read_model``, and ``check_own``."""
    views = read_model(model)
    check_own(model, views)
    return views


def check_own(model: Model, views: Mapping[str, View]) -> None:
    """Refuse a view of what is no memory of the model's own, where the model is to be written into.

    Of a module, that is the memory of its parameters and buffers; of whatever else has a ``state_dict``, one that two
    calls of it share. A mapping is taken at its word.

    Raises:
        InvalidModel: a tensor is a copy, so that to write into it would leave the model as it is.
    """
    is_own = _ownership(model)
    for view in views.values():
        if (view.copied or not is_own(view)) and view.size:
            raise InvalidModel(
                f"tensor {view.name!r} is a copy of what the model computes with: to write into it would change "
                "nothing. Pass a mapping of names to the tensors themselves"
            )


def _ownership(model: Model) -> Callable[[View], bool]:
    """Return what tells whether a view of a model is of its own memory."""
    if is_module(model):
        torch = sys.modules["torch"]
        given = (*model.parameters(), *model.buffers())
        local = [part for one in given for part in ([t for _, t in parts_of("", one)] if is_sharded(one) else [one])]
        plain = (tensor for tensor in local if hindrance(torch, tensor) is None)
        memory = {_address(tensor.untyped_storage()) for tensor in plain}
        return lambda view: view.tensor is not None and _address(view.owner) in memory
    if hasattr(model, "state_dict"):
        again = read_model(model)  # while the views from before live, a copy has another address than theirs
        return lambda view: view.name in again and again[view.name].identity == view.identity
    return lambda view: True


def is_module(model: Model) -> TypeGuard[torch.nn.Module]:
    """Whether a model is one of torch's modules."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(model, torch.nn.Module)


def _address(storage: Any) -> tuple[str, int]:
    return str(storage.device), storage.data_ptr()


@cycles_kept()
def layout_of(views: Mapping[str, View], publish: PublishDtype) -> Layout:
    """Return the layout under which these tensors are published.

    With ``bf16``, float32 tensors are published as BF16 and float16 and float64 ones are refused (a cast that the
    forward pass does not make would lose bits unseen); everything else is published as it is. With ``keep``, all is.
    Names of the same memory are stored once, under the first of them. Slices are published as the tensors that they
    are parts of.

    Raises:
        InvalidModel: a tensor can't be published so, or a name is not valid.
    """
    stored: dict[tuple[Any, ...], str] = {}
    tied: dict[str, str] = {}
    kinds: dict[str, tuple[Dtype, tuple[int, ...]]] = {}
    tensors = []
    for view in views.values():
        name, shape = (view.name, view.shape) if view.part is None else (view.part.name, view.part.shape)
        if view.size:
            box = None if view.part is None else view.part.box
            first = stored.setdefault((view.identity, box), name)
            if first != name:
                tied[name] = first
                continue
        kind = _published(view, publish), shape
        if kinds.setdefault(name, kind) != kind:
            raise InvalidModel(f"slices of tensor {name!r} have two shapes or dtypes: {kinds[name]} and {kind}")
    for name, (dtype, shape) in kinds.items():
        if name in tied:
            continue
        try:
            tensors.append(Tensor(name=name, dtype=dtype, shape=shape))
        except ValidationError as error:
            raise InvalidModel(f"tensor {name!r} can't be stored: {faults(error, 'layout')}") from error
    tensors.sort(key=lambda tensor: (DTYPE_ORDER.index(tensor.dtype), tensor.name))
    try:
        return Layout(tensors=tuple(tensors), tied=tied)
    except ValidationError as error:
        raise InvalidModel(f"the model has no valid layout: {faults(error, 'layout')}") from error


def is_sharded_model(model: Model) -> bool:
    """Whether any tensor of a model is given by its shards, or may be: a DTensor counts though all of it is here."""
    values = (
        module_tensors(model) if is_module(model) else model.state_dict() if hasattr(model, "state_dict") else model
    )
    return isinstance(values, Mapping) and any(map(is_sharded, values.values()))


def check_whole(views: Mapping[str, View]) -> None:
    """Refuse slices where whole tensors are needed.

    Raises:
        InvalidModel: a tensor is a slice of another one.
    """
    for view in views.values():
        if view.part is not None:
            raise InvalidModel(
                f"tensor {view.part.name!r} is sharded, and this registry pushes whole tensors: open it on every rank, "
                "with process_group, and call push on all of them"
            )


def _published(view: View, publish: PublishDtype) -> Dtype:
    if publish == "keep" or view.dtype not in ("F64", "F32", "F16"):
        return view.dtype
    if view.dtype == "F32":
        return "BF16"
    raise InvalidModel(
        f"tensor {view.name!r} is {view.dtype}, and floating tensors are published as BF16 here: a silent cast would "
        "lose bits. Open the registry with PushOptions(dtype='keep') to publish it as it is, or cast it yourself"
    )


def _sharded(name: str, value: Any) -> list[View]:
    """Return the views of what is here of a tensor; one that is all here is like any other."""
    found = []
    for part, tensor in parts_of(name, value):
        if part.box.whole and tuple(tensor.shape) == part.shape:
            found.append(view_of(name, tensor))
        else:
            found.append(view_of(part.label, tensor, part))
    return found


def view_of(name: str, value: Any, part: Part | None = None) -> View:
    """Return the view of a plain tensor, or of the part of one that it is.

    Raises:
        InvalidModel: it can't be stored.
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _torch_view(torch, name, value, part)
    if isinstance(value, FileTensor):
        return _file_view(name, value, part)
    if not isinstance(value, np.ndarray):
        raise InvalidModel(f"tensor {name!r} is a {type(value).__name__}; torch tensors and NumPy arrays are taken")
    dtype = of_numpy(value.dtype)
    if dtype is None or not value.dtype.isnative:
        raise InvalidModel(f"tensor {name!r} has dtype {value.dtype}, which can't be stored{advice(value.dtype)}")
    owner = value
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    where: int = value.ctypes.data
    strides = None if value.flags.c_contiguous else value.strides
    identity = where, dtype, value.shape, strides
    return View(name, dtype, value.shape, False, owner, identity, None, partial(_unsigned, value), part=part)


def _file_view(name: str, tensor: FileTensor, part: Part | None) -> View:
    def whole() -> np.ndarray[Any, Any]:
        return tensor.cells(0, math.prod(tensor.shape)).reshape(tensor.shape)

    return View(name, tensor.dtype, tensor.shape, True, tensor, tensor.identity, None, whole, tensor.cells, part)


def _torch_view(torch: Any, name: str, value: Any, part: Part | None) -> View:
    dtype = of_torch(value.dtype)
    if dtype is None:
        raise InvalidModel(f"tensor {name!r} has dtype {value.dtype}, which can't be stored")
    if (why := hindrance(torch, value)) is not None:
        raise InvalidModel(f"tensor {name!r} {why}")
    tensor = value.detach()
    if tensor.is_neg() or tensor.is_conj():
        tensor = tensor.resolve_neg().resolve_conj()
    if dtype in ("F8_E8M0", "F4"):
        tensor = tensor.view(torch.uint8)  # what is done with cells is not there for all dtypes
    shape, owner, where = tuple(value.shape), value.untyped_storage(), tensor.data_ptr()
    copied, width = where != value.data_ptr(), CELL_TYPES[dtype].width
    # In bytes, as of a NumPy array over the same memory.
    strides = None if tensor.is_contiguous() else tuple([step * width for step in tensor.stride()])
    device = value.device
    identity = (where, dtype, shape, strides) if device.type == "cpu" else (where, str(device), dtype, shape, strides)
    return View(name, dtype, shape, copied, owner, identity, tensor, partial(fetched, tensor), part=part)


def fetched(tensor: Any) -> np.ndarray[Any, Any]:
    """Return the memory of a tensor, or a copy of another device's, as unsigned integers."""
    torch = sys.modules["torch"]
    signed = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    return _unsigned(tensor.cpu().view(signed).numpy())


def hindrance(torch: Any, value: Any) -> str | None:
    """Say why a tensor has no memory whose bytes are its cells; None if it has."""
    if type(value).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        return (
            f"is a {type(value).__name__}, which is no plain tensor with memory of its own, nor one whose shards can "
            "be told (a DTensor). Pass the plain tensors that it is made of, or a Slice of each shard"
        )
    if value.device.type == "meta":
        return "is on the device meta, where it has no cells: give the model memory (to_empty) and weights first"
    if value.layout != torch.strided or value.is_quantized or value.is_nested:
        return f"({value.layout}, {value.device}) is not a plain dense tensor with memory of its own"
    without = f"is a {type(value).__name__} without memory of its own"
    try:
        storage = value.untyped_storage()
        if not value.numel() and math.prod(getattr(value, "ds_shape", (0,))):
            return SPREAD_BY_ZERO_3
        if storage.data_ptr() or not value.numel():
            return None
        if storage.nbytes():
            return without
        return "has no cells, since its memory was freed or they were offloaded: bring them back first, on every rank"
    except (RuntimeError, ValueError) as error:  # of a lazy module before its first call, or within a transform
        return f"{without}: {error}"


def _unsigned(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return a view of the same memory, shape and strides, as unsigned integers."""
    if array.ndim:
        return array.view(_UNSIGNED[array.itemsize])
    return array.reshape(1).view(_UNSIGNED[array.itemsize]).reshape(())
