"""How tests wait: for what must come, however busy the machine is, and never for time to pass.

A test that shows that something is *not* waited for keeps it from coming until it has seen what it wanted, or puts it
off by `NEVER_S`: to wait for it would be a hang, which `HANG_S` ends.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

HANG_S: Final = 120.0
"""A guard against hangs, and no expectation: what takes a tenth of a second may take many on a busy machine."""

NEVER_S: Final = 3600.0
"""Longer than any test may run: for what must not come to its end while one looks."""


def until(condition: Callable[[], object]) -> None:
    """Wait until a condition holds that other threads or processes bring about.

    Raises:
        AssertionError: it did not come about.
    """
    tick, ends = threading.Event(), time.monotonic() + HANG_S
    while not condition():
        if time.monotonic() > ends:
            raise AssertionError(f"it did not come about in {HANG_S:g} s")
        tick.wait(0.005)
