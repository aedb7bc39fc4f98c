"""Gives large buffers back to the system when they are freed, in a process that moves many of them.

Once glibc has seen such a buffer freed, it takes the next ones from its threads' heaps, and keeps what is freed there:
a process with dozens of threads then holds several times what is in use.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Final

_M_MMAP_THRESHOLD: Final = -3
_THRESHOLD_BYTES: Final = 1 << 20


def return_large_buffers() -> bool:
    """Let buffers of a mebibyte or more be mappings of their own, from now on; tell whether the C library does so."""
    if sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    return mallopt is not None and bool(mallopt(_M_MMAP_THRESHOLD, _THRESHOLD_BYTES))
