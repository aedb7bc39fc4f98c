"""The feeds of one process: made when a run is first asked for, bounded in number, dropped when nobody asks."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, Generic, TypeVar

from pulse_registry.errors import NotFound, PulseError
from pulse_server.runs.log_feed import LogFeed

_LISTED_AGE_S: Final = 5.0
_MAX_MISSING: Final = 10_000

F = TypeVar("F", bound=LogFeed[Any, Any])


class Feeds(Generic[F]):
    """Finds the feed of a run. A run that does not exist has none; that is remembered for a moment."""

    def __init__(
        self,
        make: Callable[[str], F],
        *,
        max_feeds: int,
        missing_s: float,
        what: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare; nothing is followed yet.

        Args:
            make: returns a new feed of a run.
            max_feeds: feeds that are kept; more only while all of them are in use.
            missing_s: how long a run that was not there is taken as not there.
            what: of runs is followed, where it is not their own log: a run may lack it.
            clock: monotonic time in seconds.
        """
        self._what = what
        self._make, self._max, self._missing_s, self._clock = make, max_feeds, missing_s, clock
        self._feeds: OrderedDict[str, F] = OrderedDict()
        self._missing: dict[str, float] = {}

    def __iter__(self) -> Iterator[F]:
        """Iterate over the feeds, the most recently used first."""
        return iter([*reversed(self._feeds.values())])

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._feeds)

    def live(self, run: str) -> F | None:
        """Return the feed of a run that is being followed, if it is `reliable`: nobody need look before the answer."""
        feed = self._feeds.get(run)
        if feed is None or not feed.reliable or not feed.exists:
            return None
        self._feeds.move_to_end(run)
        feed.follow()
        return feed

    async def open(self, run: str, *, follow: bool = True, remember: bool = True) -> F:
        """Return the feed of a run, with a state that is young, or, while the store does not answer, old.

        Args:
            run: the run's name.
            follow: whether to look at its log from now on.
            remember: whether a run that was not there a moment ago need not be looked for again. Those who ask at the
                same time share a look in any case.

        Raises:
            NotFound: there is no such run.
            CorruptObject, UnsupportedFormat, StoreUnavailable: its log was never read, and can't be.
        """
        feed = self.live(run) if follow else None
        if feed is not None:
            return feed
        if remember and self._clock() < self._missing.get(run, 0.0):
            raise self._none(run)
        feed = self._find(run)
        if follow or not feed.opened or feed.age_s > _LISTED_AGE_S:
            await self._look(feed)
        if not feed.exists:
            self._miss(feed)
            raise self._none(run)
        self._missing.pop(run, None)
        self._make_room(feed)
        if follow:
            feed.follow()
        return feed

    @contextmanager
    def hold(self, run: str) -> Iterator[F]:
        """Keep the one feed of a run, which need not exist yet, while a record is appended through it."""
        feed = self._find(run)
        feed.users += 1
        try:
            yield feed
        finally:
            feed.users -= 1
            if feed.exists:
                self._missing.pop(run, None)
                self._make_room(feed)
            else:
                self._drop(feed)

    def release(self) -> None:
        """Send away all who wait."""
        for feed in self:
            feed.release()

    async def stop(self) -> None:
        """End all feeds."""
        await asyncio.gather(*(feed.stop() for feed in self))
        self._feeds.clear()

    async def _look(self, feed: F) -> None:
        feed.users += 1
        try:
            await feed.refresh()
        except PulseError:
            if not feed.opened:
                raise
        finally:
            feed.users -= 1
            if not feed.opened:
                self._drop(feed)

    def _find(self, run: str) -> F:
        feed = self._feeds.get(run)
        if feed is None:
            feed = self._feeds[run] = self._make(run)
            feed.on_idle = self._drop
        self._feeds.move_to_end(run)
        return feed

    def _make_room(self, wanted: F) -> None:
        """Drop the feeds that were not used for longest, if they are not in use; for a run that is there, no other."""
        if len(self._feeds) <= self._max:
            return
        there = [feed for feed in self._feeds.values() if feed.exists]
        unused = [feed for feed in there if not feed.in_use and feed is not wanted]
        for feed in unused[: max(0, len(there) - self._max)]:
            self._drop(feed)

    def _drop(self, feed: F) -> None:
        if not feed.in_use and self._feeds.get(feed.run) is feed:
            del self._feeds[feed.run]
            feed.drop()

    def _miss(self, feed: F) -> None:
        self._drop(feed)
        if len(self._missing) >= _MAX_MISSING:
            self._missing.clear()
        self._missing[feed.run] = self._clock() + self._missing_s

    def _none(self, run: str) -> NotFound:
        return NotFound(f"run {run!r} has no {self._what}" if self._what else f"there is no run {run!r}")
