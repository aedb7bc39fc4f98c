"""The service behind the routes: its store, the feeds of its runs, its threads, and how it starts and stops."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import Final, ParamSpec, TypeVar

from pulse_registry.errors import InvalidArgument, NotFound, PulseError, StoreUnavailable
from pulse_registry.log import AppendGuard, LogReader, Snapshotter, utc_now
from pulse_registry.log.documents import most_bytes
from pulse_registry.log.layouts import fetch_layout_bytes
from pulse_registry.log.runs import list_runs
from pulse_registry.process.parallel import ParallelMap
from pulse_registry.signing import PinGuard, SigningKey, Trust
from pulse_registry.signing.keys import parse_key
from pulse_registry.signing.pinned_keys import SNAPSHOT
from pulse_registry.store import PrefixStore, RetryStore, Store
from pulse_schemas import SchemaError
from pulse_schemas.api import WorkerReport
from pulse_server.auth.access import Principal
from pulse_server.auth.names import whole_name
from pulse_server.auth.quota import Quota
from pulse_server.runs.collecting import Collecting, policy_of
from pulse_server.runs.documents import DocumentStore
from pulse_server.runs.feed import Pace, RunFeed
from pulse_server.runs.feeds import Feeds
from pulse_server.runs.layouts import Layouts
from pulse_server.runs.reports import Reports
from pulse_server.scheduling.background import Background
from pulse_server.scheduling.threads import in_thread, in_turn
from pulse_server.scheduling.turns import Turns, begin_for_all
from pulse_server.settings import Settings
from pulse_server.telemetry.metrics import Metrics, RunFigures
from pulse_server.telemetry.store_metrics import MetricsStore
from pulse_server.transport.answer_cache import Kept
from pulse_server.transport.answers import FreshRoute, Rendered
from pulse_server.transport.spool import THREADS, Spool
from pulse_server.transport.urls import Urls, UrlSigner

_FOLLOWERS: Final = 56
_LOOKS: Final = 24
"""At a time, of one caller, and of followed runs that nobody asks for: the other threads are for others."""

_CALLERS: Final = 16
_CALLS: Final = 12
"""At a time, of one caller."""

_CHECKERS: Final = 8
_KEPT_BYTES: Final = 32 << 20
_LIST_S: Final = 3.0
_MOST_RUNS: Final = 100_000
"""Runs that are listed: each takes a request to find."""
_RETRY_S: Final = 1.0
"""For the store: clients wait 20 s for an answer, and try again themselves."""
_MAX_LAYOUTS: Final = 1_000
_ANNOUNCE_S: Final = 0.1
_SHARE, _COLLECT, _FOLLOW = "share reports", "collect garbage", "follow runs"
_LINES_PER_S: Final = 2_000
"""Workers that an event stream tells of in a second, about: the more there are, the longer a new list of them waits."""
_MANY_LINES: Final = 1_000

logger = logging.getLogger(__name__)
P = ParamSpec("P")
T = TypeVar("T")


class Service:
    """One process of the service. All that is true is in the bucket; this holds what makes answering fast.

    Attributes:
        settings: as given.
        store: holds all runs; retried, counted, and with small documents remembered.
        feeds: of the runs that are asked for.
        urls: signs URLs of objects.
        reports: of workers.
        leases: how many of them each token has, by run and whole name.
        checkers: threads for many small calls at once; what runs in them waits for no other.
        each: makes many such calls, some at a time, so that those of others come between.
        pages, routes: of all runs, as they are answered, by state and question.
        spool: takes the objects that go through the service.
    """

    def __init__(
        self, settings: Settings, store: Store, metrics: Metrics, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Prepare; nothing is asked of the store yet.

        Raises:
            InvalidArgument: the settings name keys that are none.
        """
        self.settings, self.metrics, self._clock = settings, metrics, clock
        self._trust, self._signer = _keys(settings)
        self._background = Background(metrics, clock=clock)
        self.store = DocumentStore(
            RetryStore(
                MetricsStore(store, metrics),
                total_s=_RETRY_S,
                first_pause_s=0.05,
                longest_pause_s=1.0,
            )
        )
        self._followers = ThreadPoolExecutor(_FOLLOWERS, "follow")
        self._turns, self._calls = Turns(_FOLLOWERS, _LOOKS), Turns(_CALLERS, _CALLS)
        self._callers = ThreadPoolExecutor(_CALLERS, "call")
        self._layouts, self._sizings = Layouts(), Turns(1, 1)
        self._lister, self._listings = ThreadPoolExecutor(1, "list"), Turns(1, 1)
        self.checkers = ThreadPoolExecutor(_CHECKERS, "check")
        self.each = ParallelMap(self.checkers, at_once=_CHECKERS)
        self.pages: Kept[Rendered] = Kept(_KEPT_BYTES)
        self.routes: Kept[FreshRoute] = Kept(_KEPT_BYTES)
        self.feeds = Feeds(self._new_feed, max_feeds=settings.max_feeds, missing_s=settings.poll_seconds, clock=clock)
        self.urls = UrlSigner(self.store, settings.url_ttl_s, signed=metrics.signed.labels("get").inc)
        self.reports = Reports(
            self.store,
            replica=secrets.token_hex(8),
            now=utc_now,
            share_s=settings.report_seconds,
            keep_s=settings.report_ttl_s,
            clock=clock,
        )
        self.leases = self._quota("leases")
        self._reporting = self._quota("reports")
        self._spoolers = ThreadPoolExecutor(THREADS, "spool")
        self.spool = Spool(self._spoolers, objects=settings.max_uploads, nbytes=settings.max_spooled_bytes)
        self.stopping = False
        self._full_nbytes: dict[str, asyncio.Task[int | None]] = {}
        self._runs: asyncio.Task[list[str]] | None = None
        self._runs_until = 0.0
        self._collecting = Collecting(
            self.store, self._new_reader, policy_of(settings), metrics, self.each, signer=self._signer
        )
        self._collects: asyncio.Task[None] | None = None
        self._gathering: dict[str, asyncio.Task[None]] = {}
        self._sharing: asyncio.Task[None] | None = None
        self._gathers_fail = False
        metrics.feeds.set_function(lambda: len(self.feeds))
        metrics.waiters.set_function(lambda: sum(feed.waiting for feed in self.feeds))
        metrics.watch_runs(self._figures)

    async def start(self) -> None:
        """Begin the work that no request asks for."""
        share = self._background.repeat(_SHARE, self.settings.report_seconds, self._share_reports)
        self._sharing = self._background.begin(_SHARE, share)
        if self.settings.gc_seconds:
            pause = self.settings.gc_seconds
            first_s = pause * secrets.randbelow(1000) / 1000  # replicas that start together don't collect together
            collect = self._background.repeat(_COLLECT, pause, self._collect_garbage, first_s=first_s)
            self._collects = self._background.begin(_COLLECT, collect)

    def stop_waiting(self) -> None:
        """Send away all who wait for news, now and from here on; call it in the event loop. The rest goes on."""
        self.stopping = True
        self.feeds.release()

    async def stop(self) -> None:
        """End: what was accepted is finished, and no thread is left at work."""
        self.stop_waiting()
        tasks = [task for task in (self._sharing, self._collects) if task is not None]
        for task in tasks:
            task.cancel()
        tasks += self._gathering.values()
        if tasks:
            await asyncio.wait(tasks)
        await self.feeds.stop()
        with self._background.surviving(_SHARE):
            await self.call(self.reports.share)
        await asyncio.to_thread(self._end_threads)

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call what may ask the store, in a thread, when it is this caller's turn."""
        return await in_turn(self._calls, self._callers, function, *args, **kwargs)

    async def get(self, run: str, key: str) -> bytes:
        """Return an object of a run.

        Raises:
            NotFound: it is not there; said without the store's own name.
            StoreUnavailable: the store failed.
        """
        known = self.store.known(f"{run}/{key}")
        read = partial(self.store.get, max_bytes=most_bytes(key))
        return known if known is not None else await self._named(run, key, read)

    async def size(self, run: str, key: str) -> int:
        """Return the size of an object of a run.

        Raises:
            As `get`.
        """
        return await self._named(run, key, self.store.size)

    def store_of(self, run: str) -> Store:
        """Return the store of one run."""
        return PrefixStore(self.store, run)

    async def runs(self) -> list[str]:
        """Return the names of all runs, sorted, as they were seconds ago.

        Raises:
            StoreUnavailable: the store failed.
        """
        now = asyncio.get_running_loop().time()
        if self._runs is None or (self._runs.done() and (now > self._runs_until or self._runs.exception())):
            listing = self.call(lambda: sorted(islice(list_runs(self.store), _MOST_RUNS)))
            self._runs = begin_for_all(listing, "list runs")
            self._runs_until = now + _LIST_S
        return await asyncio.shield(self._runs)

    async def full_nbytes(self, feed: RunFeed) -> int | None:
        """Return what all cells of a run's newest version take, None where its layout can't be read."""
        latest = feed.state.latest
        if latest is None:
            return None
        task = self._full_nbytes.get(latest.layout)
        if task is None:
            if len(self._full_nbytes) >= _MAX_LAYOUTS:
                self._full_nbytes.clear()
            sizing = self._sized(self.store_of(feed.run), latest.layout)
            task = self._full_nbytes[latest.layout] = begin_for_all(sizing, f"size {latest.layout}")
        try:
            return await asyncio.shield(task)
        except PulseError:
            self._full_nbytes.pop(latest.layout, None)
            return None

    async def _sized(self, store: Store, layout_id: str) -> int | None:
        data = await self.call(fetch_layout_bytes, store, layout_id)
        try:
            return await self.nbytes_of(data)
        except SchemaError:  # as long as it is there
            return None

    async def nbytes_of(self, layout: bytes) -> int:
        """Return what all cells of a layout take, in bytes.

        Raises:
            SchemaError: it is no layout.
            StoreUnavailable: the service is being stopped.
        """
        return await in_turn(self._sizings, self._layouts.pool, self._layouts.nbytes_of, layout)

    async def urls_of(self, run: str, wanted: Sequence[str]) -> Urls:
        """Return URLs of keys of a run, signed anew only where they are not fresh.

        Raises:
            InvalidArgument: a key is not valid.
            AccessDenied: the service has no credentials to sign with.
        """
        known = self.urls.known(run, wanted)
        return known if known is not None else await self.call(self.urls.sign, run, wanted)

    def take_report(self, feed: RunFeed, principal: Principal, worker: str, report: WorkerReport) -> None:
        """Remember the report of a token's worker, and tell the run's event streams, at a rate that they can bear.

        Of a trainer's report of a push, only the times are counted: it is no worker, though it pulled to begin with.
        Where a token has too many workers, those that reported least recently are dropped.
        """
        name = feed.run, whole_name(principal, worker)
        if report.operation == "push":
            self.metrics.count_report(report)
            if self.reports.knows(*name):
                self.forget_worker(feed, principal, worker)
            return
        nbytes = len(report.model_dump_json())
        for displaced in self._reporting.displace(principal.id, name, nbytes, self.settings.report_ttl_s):
            self.reports.drop(*displaced)
        self.metrics.count_report(report, timed=self.reports.take(*name, report))
        self._announce_workers(feed)

    def forget_worker(self, feed: RunFeed, principal: Principal, worker: str) -> None:
        """List a token's worker no more, and tell the run's event streams if it was listed."""
        name = feed.run, whole_name(principal, worker)
        self._reporting.release(principal.id, name)
        if self.reports.forget(*name):
            self._announce_workers(feed)

    async def workers_of(self, feed: RunFeed) -> bytes:
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
            feed.listing = begin_for_all(self._list_workers(feed), f"list workers of {feed.run}")
        return await asyncio.shield(feed.listing)

    async def _list_workers(self, feed: RunFeed) -> bytes:
        async with self._listings.turn(feed.run):
            began = self._clock()
            feed.listed = await in_thread(self._lister, self.reports.listing, feed.state)
            feed.listed_at = began
            return feed.listed

    async def gather_reports(self, feed: RunFeed) -> None:
        """Read what the other replicas heard of a run's workers, if that was not done of late.

        Raises:
            StoreUnavailable: the store failed.
        """
        task = self.begin_gathering(feed)
        if task is not None:
            await asyncio.shield(task)

    def begin_gathering(self, feed: RunFeed) -> asyncio.Task[None] | None:
        """Begin what `gather_reports` does, and return it; None where it was done of late. The streams are told."""
        run = feed.run
        if not self.reports.is_stale(run):
            return None
        task = self._gathering.get(run)
        if task is None:

            def done(task: asyncio.Task[None]) -> None:
                self._gathering.pop(run, None)  # its exception is looked at here, too: perhaps nobody waits for it
                if not task.cancelled() and task.exception() is None:
                    feed.announce(0)

            task = begin_for_all(self.call(self.reports.gather, run), f"gather {run}")
            self._gathering[run] = task
            task.add_done_callback(done)
        return task

    def _announce_workers(self, feed: RunFeed) -> None:
        feed.announce(max(_ANNOUNCE_S, self.reports.heard(feed.run) / _LINES_PER_S))

    async def _named(self, run: str, key: str, function: Callable[[str], T]) -> T:
        try:
            return await self.call(function, f"{run}/{key}")
        except NotFound as error:
            raise NotFound(f"run {run!r} has no {key}") from error

    def _quota(self, kind: str) -> Quota[tuple[str, str]]:
        settings = self.settings
        return Quota(kind, settings.max_token_names, settings.max_token_bytes, clock=self._clock)

    def _new_feed(self, run: str) -> RunFeed:
        store = self.store_of(run)
        reader = self._new_reader(run)
        snapshotter = Snapshotter(store, reader, signer=self._signer)
        append_guard = AppendGuard(store, run, reader, snapshotter, each=self.each)
        pace = Pace(self.settings.poll_seconds, self.settings.idle_seconds)
        return RunFeed(
            reader,
            append_guard,
            self._followers,
            pace,
            turns=self._turns,
            defect=partial(self._background.tell, _FOLLOW),
            clock=self._clock,
        )

    def _new_reader(self, run: str) -> LogReader:
        guard = None
        if self._trust is not None:
            guard = PinGuard(self._trust, self.store.url, run, self.settings.state_dir)
        return LogReader(self.store_of(run), run, guard)

    async def _collect_garbage(self) -> None:
        for run in await self._all_runs():
            with self._background.surviving(_COLLECT):  # what is wrong with one run is no matter of the next
                await self.call(self._collecting.collect, run)

    async def _all_runs(self) -> list[str]:
        try:
            return await self.runs()
        except PulseError as error:
            logger.warning("the runs can't be listed, so that no garbage is collected: %s", error)
            return []

    async def _share_reports(self) -> None:
        with self._background.surviving(_SHARE):
            await self.call(self.reports.share)
        await self._gather_unasked()

    async def _gather_unasked(self) -> None:
        """Read what the other replicas heard, run by run, so that this one's figures and lists are theirs, too."""
        failure: PulseError | None = None
        for feed in [feed for feed in self.feeds if feed.followed]:
            if self.reports.is_due(feed.run):
                try:
                    with self._background.surviving(_SHARE, but=PulseError):
                        await self.gather_reports(feed)
                except StoreUnavailable as error:
                    failure = error
                    break  # the other runs' are in the same store
                except PulseError as error:
                    failure = error
        if failure is not None and not self._gathers_fail:
            logger.warning("what other replicas heard of workers can't be read: %s", failure)
        self._gathers_fail = failure is not None

    def _figures(self) -> Iterator[RunFigures]:
        """Yield the figures of the runs that are followed: those of others would stand still."""
        for feed in self.feeds:
            if feed.exists and feed.followed:
                yield self.reports.figures(feed.state, feed.age_s)

    def _end_threads(self) -> None:
        self._layouts.close()
        for pool in (self._followers, self._callers, self.checkers, self._spoolers, self._lister):
            pool.shutdown(cancel_futures=True)


def _keys(settings: Settings) -> tuple[Trust | None, SigningKey | None]:
    """Return what the service believes, and what it signs with.

    Raises:
        InvalidArgument: the settings name no keys, or a key whose snapshots the service would not believe itself.
    """
    trust = Trust(settings.trust.split()) if settings.trust else None
    signer = None if settings.signing_key is None else SigningKey.load(settings.signing_key)
    if trust is not None and signer is not None:
        pin = trust.pin(parse_key(signer.public))
        if pin is None or SNAPSHOT not in pin.kinds:
            raise InvalidArgument(
                f"PULSE_TRUST does not pin {signer.public} for snapshots, which the service is to sign with it: add "
                f"{signer.public}={SNAPSHOT}, or take PULSE_SIGNING_KEY away"
            )
    return trust, signer
