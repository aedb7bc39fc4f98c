"""Counts what a call does, where its time would depend on the machine."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType


def calls(function: Callable[[], object]) -> int:
    """Return how many functions are called, those in C too, while ``function`` runs."""
    count = 0

    def count_call(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count_call)
    try:
        function()
    finally:
        sys.setprofile(before)
    return count
