"""Huge pages for memory that is to be filled at once: one fault of the system in place of 512."""

from __future__ import annotations

import functools
import mmap
from contextlib import suppress
from pathlib import Path
from typing import Final

_LEAST_ORDER: Final = Path("/sys/module/page_reporting/parameters/page_reporting_order")
_LARGEST_ORDER: Final = max(10, (mmap.PAGESIZE // 8).bit_length() - 1)
"""Of the pieces in which Linux keeps free memory: 4 MiB where pages have 4 KiB, a huge page where they have more."""


def ask(memory: mmap.mmap) -> None:
    """Ask for huge pages for private memory that nobody has written to yet, where they are cheaper.

    A host that takes free memory back takes just these: it then spends more on them than all of the faults cost.
    """
    if hasattr(mmap, "MADV_HUGEPAGE") and not host_takes_back():
        with suppress(OSError):  # a kernel that was built without them
            memory.madvise(mmap.MADV_HUGEPAGE)


@functools.cache
def host_takes_back(least_order: Path = _LEAST_ORDER) -> bool:
    """Tell whether this is a virtual machine that reports free memory to its host, as it was when first asked.

    Linux says of which order on pieces are reported. While no device wants to know, it says -1, and before Linux 6.2 a
    higher order than there is.
    """
    try:
        return 0 <= int(least_order.read_text()) <= _LARGEST_ORDER
    except (OSError, ValueError):
        return False
