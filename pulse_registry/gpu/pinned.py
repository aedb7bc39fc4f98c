"""Pinned host memory of exactly the size that is wanted: torch's allocator rounds up to a power of two."""

from __future__ import annotations

import mmap
import weakref
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import torch

from pulse_registry.process.fork import only_in_this_process


def pinned_bytes(nbytes: int, device: torch.device) -> torch.Tensor:
    """Return so many bytes of host memory, uint8, that a GPU copies from and to by itself; given back with the tensor.

    On a CPU it is plain memory.

    Raises:
        RuntimeError: there is not so much memory, or not so much may be locked.
    """
    memory = mmap.mmap(-1, max(nbytes, 1))
    with suppress(OSError):  # a kernel without huge pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    array = np.frombuffer(memory, np.uint8)[:nbytes]
    if device.type == "cuda" and nbytes:
        runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        torch.cuda.check_error(runtime.cudaHostRegister(array.ctypes.data, nbytes, 0))
        # With the array, which goes before the pages do.
        unpin = weakref.finalize(array, only_in_this_process(partial(_unpin, runtime, device, array.ctypes.data)))
        unpin.atexit = False
    return torch.from_numpy(array)


def _unpin(runtime: Any, device: torch.device, address: int) -> None:
    torch.cuda.synchronize(device)  # copies may be under way
    runtime.cudaHostUnregister(address)
