"""New tensors over a layout's cells, for callers who bring none: torch tensors or NumPy arrays, without a copy."""

from __future__ import annotations

import importlib.util
from typing import Any, Literal

import ml_dtypes
import numpy as np

from pulse_registry.model import NUMPY_NAMES
from pulse_registry.weights import Weights
from pulse_schemas import Dtype

Framework = Literal["auto", "torch", "numpy"]


def new_tensors(weights: Weights, framework: Framework = "auto") -> dict[str, Any]:
    """Return the tensors by name, tied names included (the same object); they share memory with ``weights``.

    ``auto`` is torch where it is installed. NumPy has no BF16 and FP8 of its own: those dtypes are from ml_dtypes.
    """
    if framework == "auto":
        framework = "torch" if importlib.util.find_spec("torch") else "numpy"
    layout = weights.geometry.layout
    make = _torch_tensor if framework == "torch" else _numpy_array
    tensors = {
        tensor.name: make(cells, tensor.dtype) for tensor, cells in zip(layout.tensors, weights.arrays, strict=True)
    }
    return tensors | {alias: tensors[name] for alias, name in layout.tied.items()}


def _numpy_array(cells: np.ndarray[Any, Any], dtype: Dtype) -> Any:
    name = NUMPY_NAMES[dtype]
    kind = getattr(ml_dtypes, name, None) or name
    return cells.reshape(-1).view(kind).reshape(cells.shape)


def _torch_tensor(cells: np.ndarray[Any, Any], dtype: Dtype) -> Any:
    import torch

    signed = cells.reshape(-1).view(f"i{cells.itemsize}")
    return torch.from_numpy(signed).view(getattr(torch, NUMPY_NAMES[dtype])).reshape(cells.shape)
