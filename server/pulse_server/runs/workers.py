"""The workers of the runs that are asked for: their reports are taken, shared with other replicas, and listed."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from pulse_registry.errors import PulseError, StoreUnavailable
from pulse_registry.log import RunState, utc_now
from pulse_registry.store import Store
from pulse_schemas.api import RunSummary, WorkerReport
from pulse_server.auth.access import Principal
from pulse_server.auth.names import whole_name
from pulse_server.auth.quota import Quota
from pulse_server.runs.feed import RunFeed
from pulse_server.runs.feeds import Feeds
from pulse_server.runs.listing import Listing
from pulse_server.runs.reports import Reports
from pulse_server.runs.roster import MOST, MOST_BYTES, Roster
from pulse_server.runs.summary import Recent, run_summary
from pulse_server.scheduling.background import Background
from pulse_server.scheduling.threads import Calls, in_thread
from pulse_server.scheduling.turns import CALLER, Turns, begin_for_all
from pulse_server.settings import Settings
from pulse_server.telemetry.metrics import Metrics, RunFigures

SHARE: Final = "share reports"
_ANNOUNCE_S: Final = 0.1
_LINES_PER_S: Final = 2_000
"""Workers that are looked through in a second, about: the more there are, the longer a new list of them waits."""
_MANY_LINES: Final = 1_000
_BREATH_S: Final = 0.01
"""Between two runs whose reports are shared."""
_REST_S: Final = 2.0
"""Until streams are told what there was no room for."""

logger = logging.getLogger(__name__)


class Workers:
    """Takes the reports of workers, and lists them. Not thread-safe: one event loop asks.

    Attributes:
        reports: as this replica knows them.
    """

    def __init__(
        self,
        store: Store,
        feeds: Feeds[RunFeed],
        call: Calls,
        background: Background,
        metrics: Metrics,
        settings: Settings,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin with no report; nothing is asked of the store yet.

        Args:
            store: holds all runs.
            feeds: of the runs that are asked for.
            call: asks the store.
            background: hears of what fails in ``share``.
            metrics: count reports.
            settings: how often reports are shared, how long they count, and how many a token may send.
            clock: monotonic time in seconds.
        """
        self.reports = Reports(
            store,
            replica=secrets.token_hex(8),
            now=utc_now,
            share_s=settings.report_seconds,
            keep_s=settings.report_ttl_s,
            clock=clock,
        )
        self._feeds, self._call, self._background, self._metrics, self._clock = feeds, call, background, metrics, clock
        self._keep_s, self._report_s = settings.report_ttl_s, settings.report_seconds
        self._quota: Quota[tuple[str, str]] = Quota(
            "reports", settings.max_token_names, settings.max_token_bytes, clock=clock
        )
        self._lister, self._listings = ThreadPoolExecutor(1, "list"), Turns(1, 1)
        self._gathering: dict[str, asyncio.Task[None]] = {}
        self._gathers_fail = False

    def take(self, feed: RunFeed, principal: Principal, worker: str, report: WorkerReport) -> None:
        """Remember the report of a token's worker, and tell the run's event streams, at a rate that they can bear.

        Of a trainer's report of a push, only the times are counted: it is no worker, though it pulled to begin with.
        Where a token has too many workers, those that reported least recently are dropped.
        """
        name = feed.run, whole_name(principal, worker)
        if report.operation == "push":
            self._metrics.count_report(report)
            if self.reports.knows(*name):
                self.forget(feed, principal, worker)
            return
        nbytes = len(report.model_dump_json())
        for displaced in self._quota.displace(principal.id, name, nbytes, self._keep_s):
            self.reports.drop(*displaced)
        self._metrics.count_report(report, timed=self.reports.take(*name, report))
        self._announce(feed)

    def forget(self, feed: RunFeed, principal: Principal, worker: str) -> None:
        """List a token's worker no more, and tell the run's event streams if it was listed."""
        name = feed.run, whole_name(principal, worker)
        self._quota.release(principal.id, name)
        if self.reports.forget(*name):
            self._announce(feed)

    async def listing(self, feed: RunFeed) -> Listing:
        """Return the list of a run's workers as it is answered, with all that was told before this was called.

        But of a thousand and more workers, as it was a while ago: the more there are, the rarer a new list is made.
        """
        heard = self.reports.heard(feed.run)
        pause_s = heard / _LINES_PER_S if heard >= _MANY_LINES else 0.0
        if self._clock() - feed.listed_at < pause_s:
            return feed.listed
        if feed.listing is not None:  # it may have begun before the last report
            await asyncio.wait((feed.listing,))
        if feed.listing is None or feed.listing.done():
            feed.listing = begin_for_all(self._list(feed), f"list workers of {feed.run}")
        return await asyncio.shield(feed.listing)

    async def roster(self, feed: RunFeed) -> Roster:
        """Return what event streams tell of a run's workers, with what was announced before this was called.

        It is made anew now and then, too: reports grow old.
        """
        roster, asked = feed.roster, self._look_of(feed)
        while roster.looked < asked:  # one that is being made may have begun before
            if roster.making is None or roster.making.done():
                roster.making = begin_for_all(self._renew(feed), f"tell of workers of {feed.run}")
            await asyncio.shield(roster.making)
        return roster

    async def summaries(self, feeds: Sequence[RunFeed]) -> list[RunSummary]:
        """Return how runs and their workers stand, as far as this replica knows."""
        asked = [(feed.state, feed.recent) for feed in feeds]
        async with self._listings.turn(CALLER.get()):
            return await in_thread(self._lister, self._summaries, asked)

    async def gather(self, feed: RunFeed) -> None:
        """Read what the other replicas heard of a run's workers, if that was not done of late.

        Raises:
            StoreUnavailable: the store failed.
        """
        task = self.begin_gathering(feed)
        if task is not None:
            await asyncio.shield(task)

    def begin_gathering(self, feed: RunFeed) -> asyncio.Task[None] | None:
        """Begin what `gather` does, and return it; None where it was done of late. The streams are told."""
        run = feed.run
        if not self.reports.is_stale(run):
            return None
        task = self._gathering.get(run)
        if task is None:

            def done(task: asyncio.Task[None]) -> None:
                self._gathering.pop(run, None)  # its exception is looked at here, too: perhaps nobody waits for it
                if not task.cancelled() and task.exception() is None:
                    feed.announce(0)

            task = begin_for_all(self._call(self.reports.gather, run), f"gather {run}")
            self._gathering[run] = task
            task.add_done_callback(done)
        return task

    def gathers(self) -> list[asyncio.Task[None]]:
        """Return the gathers that are under way."""
        return [*self._gathering.values()]

    async def share(self) -> None:
        """Write what is new for the other replicas; what fails is logged."""
        with self._background.surviving(SHARE):
            await self._call(self.reports.share)

    async def share_and_gather(self) -> None:
        """Share, then read what the other replicas heard, so that this one's figures and lists are theirs, too.

        One run after the other, with a rest after each: hundreds in a row would keep answers waiting for seconds.
        """
        for run in self.reports.unshared():
            with self._background.surviving(SHARE):
                await self._call(self.reports.share_run, run)
            await asyncio.sleep(_BREATH_S)
        failure: PulseError | None = None
        for feed in [feed for feed in self._feeds if feed.followed]:
            if self.reports.is_due(feed.run):
                await asyncio.sleep(_BREATH_S)
                try:
                    with self._background.surviving(SHARE, but=PulseError):
                        await self.gather(feed)
                except StoreUnavailable as error:
                    failure = error
                    break  # the other runs' are in the same store
                except PulseError as error:
                    failure = error
        if failure is not None and not self._gathers_fail:
            logger.warning("the workers' reports to other replicas can't be read: %s", failure)
        self._gathers_fail = failure is not None

    def figures(self) -> Iterator[RunFigures]:
        """Yield the figures of the runs that are followed: those of others would stand still."""
        for feed in self._feeds:
            if feed.exists and feed.followed:
                yield self.reports.figures(feed.state, feed.age_s)

    def close(self) -> None:
        """End the thread that makes lists."""
        self._lister.shutdown(cancel_futures=True)

    def _summaries(self, asked: Iterable[tuple[RunState, Recent]]) -> list[RunSummary]:
        return [self._summary(state, recent) for state, recent in asked]

    def _summary(self, state: RunState, recent: Recent) -> RunSummary:
        recent.take(state)
        return run_summary(state, recent, *self.reports.overview(state))

    def _announce(self, feed: RunFeed) -> None:
        feed.announce(max(_ANNOUNCE_S, self.reports.heard(feed.run) / _LINES_PER_S))

    def _look_of(self, feed: RunFeed) -> tuple[int, int]:
        return feed.edition, int(self._clock() / self._report_s)

    async def _renew(self, feed: RunFeed) -> None:
        async with self._listings.turn(feed.run):
            looked = self._look_of(feed)
            found = await in_thread(self._lister, self.reports.standing, feed.state, MOST, MOST_BYTES)
        feed.roster.looked = looked
        if not feed.roster.follow(*found):
            feed.announce(_REST_S)

    async def _list(self, feed: RunFeed) -> Listing:
        async with self._listings.turn(feed.run):
            began = self._clock()
            feed.listed = await in_thread(self._lister, self.reports.listing, feed.state)
            feed.listed_at = began
            return feed.listed
