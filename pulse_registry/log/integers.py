"""Integers that a caller gives: Python's, NumPy's or torch's, of 64 bits."""

from __future__ import annotations

import operator
import reprlib
from typing import SupportsIndex

import numpy as np

from pulse_registry.errors import InvalidArgument


def integer(value: SupportsIndex, name: str) -> int:
    """Return an integer of Python, NumPy or torch as Python's.

    Raises:
        InvalidArgument: it is none, or over 64 bits with a sign.
    """
    if isinstance(value, bool | np.bool_):
        raise InvalidArgument(f"{name} is {value!r}; it is an integer")
    try:
        number = operator.index(value)
    except TypeError:
        raise InvalidArgument(f"{name} is {reprlib.repr(value)}; it is an integer") from None
    if not -(2**63) <= number < 2**63:
        raise InvalidArgument(f"{name} is an integer of {number.bit_length()} bits; it has at most 64, with its sign")
    return number
