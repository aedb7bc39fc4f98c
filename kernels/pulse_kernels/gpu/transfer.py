"""Transfers of small tables to the device: several at once, through pinned memory, so that nobody waits for them."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import numpy.typing as npt
import torch

ALIGNED = 2
"""Numbers of 64 bits that make 16 bytes."""


def upload(device: torch.device, *arrays: npt.NDArray[Any]) -> list[torch.Tensor]:
    """Return integers on the device, int64, moved there in one transfer on the current stream.

    Each array begins at a multiple of 16 bytes, whatever the sizes of those before it: a kernel is compiled for where
    its pointers lie.
    """
    begins = list(accumulate((-(-array.size // ALIGNED) * ALIGNED for array in arrays), initial=0))
    host = torch.empty(begins[-1], dtype=torch.int64, pin_memory=device.type == "cuda")
    joined = host.numpy()
    for begin, array in zip(begins, arrays, strict=False):
        joined[begin : begin + array.size] = array.ravel()
    there = host.to(device, non_blocking=True)
    return [there[begin : begin + array.size] for begin, array in zip(begins, arrays, strict=False)]
