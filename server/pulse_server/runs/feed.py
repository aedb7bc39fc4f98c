"""A run's feed: the feed of its log, with its newest version as an answer, and the list of its workers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Executor

from pulse_registry.log import AppendGuard, LogReader, RunState
from pulse_schemas import Record
from pulse_server.runs.bodies import version_body
from pulse_server.runs.listing import Listing
from pulse_server.runs.log_feed import LogFeed, Pace
from pulse_server.runs.roster import Roster
from pulse_server.runs.summary import Recent
from pulse_server.scheduling.looks import Looks
from pulse_server.scheduling.turns import Turns
from pulse_server.scheduling.waiters import Waiters
from pulse_server.transport.answers import Rendered


class RunFeed(LogFeed[RunState, Record]):
    """What one process knows of one run.

    Attributes:
        latest: the newest version as an answer, None before there is one.
        listing, listed, listed_at: the list of workers that is being made, the last one, and when that was begun.
        roster: what event streams tell of the workers.
        edition: a number that changes when those who follow the run's workers should look at them again.
        recent: what is said of the newest versions; for the thread that makes lists.
        on_news: called when the state or the edition is another one.
    """

    def __init__(
        self,
        reader: LogReader,
        append_guard: AppendGuard,
        pool: Executor,
        pace: Pace,
        *,
        looks: Looks,
        turns: Turns | None = None,
        defect: Callable[[Exception], None] = lambda error: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare to follow; nothing is asked of the store yet. See `LogFeed`."""
        super().__init__(
            reader, append_guard, RunState(reader.run), pool, pace, looks=looks, turns=turns, defect=defect, clock=clock
        )
        self.latest: Rendered | None = None
        self.listing: asyncio.Task[Listing] | None = None
        self.listed, self.listed_at = Listing(reader.run), float("-inf")
        self.roster = Roster(reader.run, clock)
        self.edition = 0
        self.recent = Recent()
        self.on_news: Callable[[str], None] = lambda run: None
        self._streams = Waiters()
        self._announcing: asyncio.TimerHandle | None = None

    @property
    def in_use(self) -> bool:
        """Whether somebody relies on this very object."""
        return bool(self._streams) or super().in_use

    async def wait_for_edition(self, edition: int, seen: int, timeout_s: float) -> None:
        """Wait until the edition is another one, or a version over ``seen`` is there, or the time is over."""
        if self.edition == edition and len(self.state.versions) - 1 <= seen and not self._stopped:
            self._rouse()
            await self._streams.park(timeout_s)

    def announce(self, pause_s: float) -> None:
        """Begin a new edition in ``pause_s`` seconds, for all that is announced until then."""
        if self._announcing is None and not self._stopped:
            self._announcing = asyncio.get_running_loop().call_later(pause_s, self._begin_edition)

    async def stop(self) -> None:
        """End: see `LogFeed.stop`."""
        if self._announcing is not None:
            self._announcing.cancel()
        await super().stop()

    @property
    def _wanted(self) -> bool:
        return bool(self._streams) or super()._wanted

    def _renew(self) -> None:
        state = self.state
        self.latest = None if state.latest is None else Rendered.of(version_body(state, state.latest))

    def _begin_edition(self) -> None:
        self._announcing = None
        self.edition += 1
        self._streams.wake()
        self.on_news(self.run)

    def _wake(self) -> None:
        super()._wake()
        self._streams.wake()
        self.on_news(self.run)
