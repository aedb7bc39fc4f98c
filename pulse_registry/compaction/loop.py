"""Compaction loop: makes one missing merged patch or keyframe after the other, and waits when there is none."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

from pulse_registry.compaction.compactor import Attached, Compactor
from pulse_registry.errors import StoreUnavailable

_logger = logging.getLogger(__name__)


def follow(compactor: Compactor, stop: threading.Event, poll_seconds: float | None) -> Iterator[Attached]:
    """Yield what each task attached, until ``stop`` is set, which is looked at between tasks.

    Args:
        compactor: does the tasks.
        stop: ends it.
        poll_seconds: how long to wait before looking again; None ends when nothing is left to do.

    Raises:
        As ``Compactor.step``; but while following, a store that fails is asked again after the pause.
    """
    while not stop.is_set():
        try:
            done = compactor.step()
        except StoreUnavailable as error:
            if poll_seconds is None:
                raise
            _logger.warning("the store failed, and is asked again in %g s: %s", poll_seconds, error)
            done = None
        if done is not None:
            yield done
        elif poll_seconds is None:
            return
        else:
            stop.wait(poll_seconds)
