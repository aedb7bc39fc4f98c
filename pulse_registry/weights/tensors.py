"""New tensors over a layout's cells, for callers who bring none: torch tensors or NumPy arrays, without a copy."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from pulse_registry.errors import InvalidArgument
from pulse_registry.weights.arrays import Weights
from pulse_registry.weights.dtypes import NUMPY_NAMES, numpy_dtype
from pulse_schemas import Dtype

if TYPE_CHECKING:
    import torch

Framework = Literal["auto", "torch", "numpy"]


def framework_of(name: Framework) -> Literal["torch", "numpy"]:
    """Return the framework that a name stands for here; ``auto`` is torch where it is installed.

    Raises:
        InvalidArgument: there is no such name, or torch is not installed.
    """
    if name not in get_args(Framework):
        raise InvalidArgument(f"framework is {name!r}; it is one of {', '.join(get_args(Framework))}")
    installed = importlib.util.find_spec("torch") is not None
    if name == "torch" and not installed:
        raise InvalidArgument("framework is 'torch', which is not installed: pip install 'pulse-registry[torch]'")
    return "torch" if installed and name != "numpy" else "numpy"


def new_tensors(weights: Weights, framework: Framework = "auto") -> dict[str, Any]:
    """Return the tensors by name, tied names included (the same object); they share memory with ``weights``.

    NumPy has no BF16 and FP8 of its own: those dtypes are from ml_dtypes; a pair of F4 is a structure of one byte.

    Raises:
        InvalidArgument: as ``framework_of``; or torch is older than a tensor's dtype.
    """
    layout = weights.geometry.layout
    make = _torch_tensor if framework_of(framework) == "torch" else _numpy_array
    tensors = {
        tensor.name: make(cells, tensor.dtype) for tensor, cells in zip(layout.tensors, weights.arrays, strict=True)
    }
    return tensors | {alias: tensors[name] for alias, name in layout.tied.items()}


def _numpy_array(cells: np.ndarray[Any, Any], dtype: Dtype) -> Any:
    return cells.reshape(-1).view(numpy_dtype(dtype)).reshape(cells.shape)


def torch_dtype(dtype: Dtype) -> torch.dtype:
    """Return the torch dtype of a stored one.

    Raises:
        InvalidArgument: torch is older than it.
    """
    import torch

    found = getattr(torch, NUMPY_NAMES[dtype], None)
    if not isinstance(found, torch.dtype):
        raise InvalidArgument(
            f"torch {torch.__version__} has no {NUMPY_NAMES[dtype]}: upgrade it, or take framework='numpy'"
        )
    return found


def _torch_tensor(cells: np.ndarray[Any, Any], dtype: Dtype) -> Any:
    import torch

    signed = cells.reshape(-1).view(f"i{cells.itemsize}")
    return torch.from_numpy(signed).view(torch_dtype(dtype)).reshape(cells.shape)
