"""The feed of a run's outer rounds: of a log of its own, which has neither versions nor workers."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Executor

from pulse_registry.outer.append_guard import OuterAppendGuard
from pulse_registry.outer.state import OuterState
from pulse_schemas.outer import OuterRecord
from pulse_server.runs.log_feed import LogFeed, Pace
from pulse_server.scheduling.looks import Looks
from pulse_server.scheduling.turns import Turns


class OuterFeed(LogFeed[OuterState, OuterRecord]):
    """What one process knows of one run's outer rounds."""

    def __init__(
        self,
        append_guard: OuterAppendGuard,
        pool: Executor,
        pace: Pace,
        *,
        looks: Looks,
        turns: Turns | None = None,
        defect: Callable[[Exception], None] = lambda error: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare to follow; nothing is asked of the store yet. See `LogFeed`."""
        empty = OuterState(append_guard.run)
        super().__init__(
            append_guard, append_guard, empty, pool, pace, looks=looks, turns=turns, defect=defect, clock=clock
        )
