"""Dtypes: the NumPy (with ml_dtypes) and the torch dtype of each stored one. Imports no torch."""

from __future__ import annotations

import functools
from typing import Any

import ml_dtypes
import numpy as np

from pulse_schemas import Dtype

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
    "float8_e8m0fnu": "F8_E8M0",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "int8": "I8",
    "uint8": "U8",
    "float4_e2m1fn_x2": "F4",
    "bool": "BOOL",
}
NUMPY_NAMES: dict[Dtype, str] = {dtype: name for name, dtype in _NUMPY_DTYPES.items()}
"""NumPy (with ml_dtypes) and torch name of each stored dtype; torch differs only in that it has the same names."""
_FLOAT4_PAIRS = np.dtype([(NUMPY_NAMES["F4"], "u1")])
"""NumPy has no dtype of two elements a byte: a structure of one byte, named as torch's dtype is, stands for it."""


# To make a dtype's name takes longer than all else that is done for a tensor.
@functools.cache
def of_numpy(dtype: np.dtype[Any]) -> Dtype | None:
    """Return the stored dtype of a NumPy one; None if there is none."""
    return "F4" if dtype == _FLOAT4_PAIRS else _NUMPY_DTYPES.get(dtype.name)


def advice(dtype: np.dtype[Any]) -> str:
    """Return what a refusal of a NumPy dtype says more: how to give its cells another way; mostly nothing."""
    if dtype.name != "float4_e2m1fn":
        return ""
    return f" with one element a byte: pack two, the first in the low four bits, into a byte of {_FLOAT4_PAIRS!r}"


def numpy_dtype(dtype: Dtype) -> np.dtype[Any]:
    """Return the NumPy dtype that stands for a stored one; those that NumPy does not have are from ml_dtypes."""
    name = NUMPY_NAMES[dtype]
    return _FLOAT4_PAIRS if dtype == "F4" else np.dtype(getattr(ml_dtypes, name, None) or name)


@functools.cache
def of_torch(dtype: Any) -> Dtype | None:
    """Return the stored dtype of a torch one; None if there is none."""
    return _NUMPY_DTYPES.get(str(dtype).removeprefix("torch."))
