"""How much memory a call takes."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable


def peak_of(call: Callable[[], object]) -> int:
    """Return the most bytes that Python's memory, and NumPy's, grew by at any moment of a call."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
