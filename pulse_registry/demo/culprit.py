"""Culprit: of ranks that failed together, the one that made the others fail."""

from __future__ import annotations

import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess

from pulse_registry.demo.messages import Event, Failed

SETTLE_SECONDS = 5.0
"""How long the others' reasons are waited for."""


def culprit(
    failed: Failed,
    killed: Callable[[], BaseProcess | None],
    hear: Callable[[], Event | None],
    seconds: float = SETTLE_SECONDS,
) -> Failed | BaseProcess:
    """Return what made a rank fail: the end of one makes the others fail, and these may tell first.

    Args:
        failed: what was told first.
        killed: returns a process that a signal ended, once there is one.
        hear: returns what else was told, or None after a moment in which nothing was.
        seconds: to wait for it.
    """
    give_up = time.monotonic() + seconds
    while time.monotonic() < give_up:
        if (process := killed()) is not None:
            return process
        other = hear()
        if isinstance(other, Failed) and failed.peer_lost and not other.peer_lost:
            return other
    return failed
