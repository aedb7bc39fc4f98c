"""The service behind the routes: its store, the feeds of its runs, its threads, and how it starts and stops."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import Final, ParamSpec, TypeVar

from pulse_registry.errors import InvalidArgument, NotFound, PulseError
from pulse_registry.format.keys import below_root
from pulse_registry.log import AppendGuard, LogReader, Snapshotter
from pulse_registry.log.documents import most_bytes
from pulse_registry.log.runs import list_runs
from pulse_registry.outer.append_guard import OuterAppendGuard
from pulse_registry.process.parallel import ParallelMap
from pulse_registry.signing import PinGuard, SigningKey, Trust
from pulse_registry.signing.keys import parse_key
from pulse_registry.signing.pinned_keys import SNAPSHOT
from pulse_registry.store import RetryPolicy, RetryStore, RunStore, Store
from pulse_server.auth.quota import Quota
from pulse_server.runs.collecting import Collecting, policy_of
from pulse_server.runs.documents import DocumentStore
from pulse_server.runs.feed import RunFeed
from pulse_server.runs.feeds import Feeds
from pulse_server.runs.fleet import Fleet
from pulse_server.runs.homes import Homes
from pulse_server.runs.layer_counts import LayerCounts
from pulse_server.runs.layout_sizes import LayoutSizes
from pulse_server.runs.log_feed import Pace
from pulse_server.runs.outer_feed import OuterFeed
from pulse_server.runs.workers import SHARE, Workers
from pulse_server.scheduling.background import Background
from pulse_server.scheduling.looks import Looks
from pulse_server.scheduling.threads import Calls
from pulse_server.scheduling.turns import Turns, begin_for_all
from pulse_server.settings import Settings
from pulse_server.telemetry.metrics import Metrics
from pulse_server.telemetry.store_metrics import MetricsStore
from pulse_server.transport.answer_cache import Kept
from pulse_server.transport.answers import FreshRoute, Rendered
from pulse_server.transport.spool import THREADS, Spool
from pulse_server.transport.urls import Urls, UrlSigner

_ASKERS: Final = 56
_ASKED: Final = 24
"""Looks and appends at a time, of one caller: the other threads are for others."""

_CALLERS: Final = 16
_CALLS: Final = 12
"""At a time, of one caller."""

_RENDERERS: Final = 2
_CHECKERS: Final = 8
_KEPT_BYTES: Final = 32 << 20
_LIST_S: Final = 3.0
_MOST_RUNS: Final = 100_000
"""Runs that are listed: a thousand take a request."""
_RETRY_S: Final = 1.0
"""For the store: clients wait 20 s for an answer, and try again themselves."""
_COLLECT, _FOLLOW = "collect garbage", "follow runs"

logger = logging.getLogger(__name__)
P = ParamSpec("P")
T = TypeVar("T")


class Service:
    """One process of the service. All that is true is in the bucket; this holds what makes answering fast.

    Attributes:
        settings: as given.
        store: holds all runs; retried, counted, and with small documents remembered.
        feeds: of the runs that are asked for.
        outer_feeds: of the outer rounds that are asked for.
        urls: signs URLs of objects.
        call: calls what may ask the store, in a thread, when it is the caller's turn.
        render: calls what makes an answer of memory alone, in a thread, so that the event loop goes on.
        sizes: of layouts.
        workers: of the runs that are asked for.
        fleet: what streams about many runs tell.
        leases: how many of them each token has, by run and whole name.
        checkers: threads for many small calls at once; what runs in them waits for no other.
        each: makes many such calls, some at a time, so that those of others come between.
        pages, routes: of all runs, as they are answered, by state and question.
        layers: counts what versions change, by layers.
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
                MetricsStore(store, metrics), RetryPolicy(total_s=_RETRY_S, first_pause_s=0.05, longest_pause_s=1.0)
            )
        )
        self._looks = Looks()
        self._askers, self._turns = ThreadPoolExecutor(_ASKERS, "ask"), Turns(_ASKERS, _ASKED)
        self.call = Calls("call", _CALLERS, _CALLS)
        self.render = Calls("render", _RENDERERS, 1)
        self.sizes = LayoutSizes(self.store, self.call)
        self.checkers = ThreadPoolExecutor(_CHECKERS, "check")
        self.each = ParallelMap(self.checkers, at_once=_CHECKERS)
        self.layers = LayerCounts(self.store_of, self.each)
        self.pages: Kept[Rendered] = Kept(_KEPT_BYTES)
        self.routes: Kept[FreshRoute] = Kept(_KEPT_BYTES)
        self.feeds = Feeds(self._new_feed, max_feeds=settings.max_feeds, missing_s=settings.poll_seconds, clock=clock)
        self.outer_feeds = Feeds(
            self._new_outer_feed,
            max_feeds=settings.max_feeds,
            missing_s=settings.poll_seconds,
            what="outer rounds",
            clock=clock,
        )
        self.urls = UrlSigner(self.store, settings.url_ttl_s, signed=metrics.signed.labels("get").inc)
        self.workers = Workers(self.store, self.feeds, self.call, self._background, metrics, settings, clock=clock)
        homes = Homes(self.store, self.call)
        self.fleet = Fleet(self.feeds, self.workers, self.sizes, homes, self.runs, self._background, clock=clock)
        self.leases: Quota[tuple[str, str]] = Quota(
            "leases", settings.max_token_names, settings.max_token_bytes, clock=clock
        )
        self._spoolers = ThreadPoolExecutor(THREADS, "spool")
        self.spool = Spool(self._spoolers, objects=settings.max_uploads, nbytes=settings.max_spooled_bytes)
        self.stopping = False
        self._runs: asyncio.Task[list[str]] | None = None
        self._runs_until = 0.0
        self._collecting = Collecting(
            self.store, self._new_reader, policy_of(settings), metrics, self.each, signer=self._signer
        )
        self._collects: asyncio.Task[None] | None = None
        self._sharing: asyncio.Task[None] | None = None
        metrics.feeds.set_function(lambda: len(self.feeds) + len(self.outer_feeds))
        metrics.waiters.set_function(lambda: sum(feed.waiting for feed in (*self.feeds, *self.outer_feeds)))
        metrics.watch_runs(self.workers.figures)

    async def start(self) -> None:
        """Begin the work that no request asks for."""
        share = self._background.repeat(SHARE, self.settings.report_seconds, self.workers.share_and_gather)
        self._sharing = self._background.begin(SHARE, share)
        if self.settings.gc_seconds:
            pause = self.settings.gc_seconds
            first_s = pause * secrets.randbelow(1000) / 1000  # replicas that start together don't collect together
            collect = self._background.repeat(_COLLECT, pause, self._collect_garbage, first_s=first_s)
            self._collects = self._background.begin(_COLLECT, collect)

    def stop_waiting(self) -> None:
        """Send away all who wait for news, now and from here on; call it in the event loop. The rest goes on."""
        self.stopping = True
        self.feeds.release()
        self.outer_feeds.release()
        self.fleet.release()

    async def stop(self) -> None:
        """End: what was accepted is finished, and no thread is left at work."""
        self.stop_waiting()
        tasks = [task for task in (self._sharing, self._collects) if task is not None]
        for task in tasks:
            task.cancel()
        tasks += self.workers.gathers()
        if tasks:
            await asyncio.wait(tasks)
        await self.fleet.stop()
        await self.feeds.stop()
        await self.outer_feeds.stop()
        await self.workers.share()
        await asyncio.to_thread(self._end_threads)

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
        return RunStore(self.store, run)

    def home_of(self, run: str) -> Store:
        """Return the root that a run is written at: the one that is served, or, of several, the run's home by itself.

        Raises:
            As `Roots.home`.
        """
        roots = self.store.roots()
        return self.store if roots is None else roots.home(run)

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

    async def urls_of(self, run: str, wanted: Sequence[str]) -> Urls:
        """Return URLs of keys of a run, signed anew only where they are not fresh.

        Raises:
            InvalidArgument: a key is not valid.
            AccessDenied: the service has no credentials to sign with.
        """
        known = self.urls.known(run, wanted)
        return known if known is not None else await self.call(self.urls.sign, run, wanted)

    async def _named(self, run: str, key: str, function: Callable[[str], T]) -> T:
        try:
            return await self.call(function, below_root(run, key))
        except NotFound as error:
            raise NotFound(f"run {run!r} has no {key}") from error

    def _new_feed(self, run: str) -> RunFeed:
        store = self.store_of(run)
        reader = self._new_reader(run)
        snapshotter = Snapshotter(store, reader, signer=self._signer)
        append_guard = AppendGuard(store, run, reader, snapshotter, each=self.each)
        pace = Pace(self.settings.poll_seconds, self.settings.idle_seconds)
        return RunFeed(
            reader,
            append_guard,
            self._askers,
            pace,
            looks=self._looks,
            turns=self._turns,
            defect=partial(self._background.tell, _FOLLOW),
            clock=self._clock,
        )

    def _new_outer_feed(self, run: str) -> OuterFeed:
        return OuterFeed(
            OuterAppendGuard(self.store_of(run), run, self._pin_guard(run, outer=True), self._signer, each=self.each),
            self._askers,
            Pace(self.settings.poll_seconds, self.settings.idle_seconds),
            looks=self._looks,
            turns=self._turns,
            defect=partial(self._background.tell, _FOLLOW),
            clock=self._clock,
        )

    def _new_reader(self, run: str) -> LogReader:
        return LogReader(self.store_of(run), run, self._pin_guard(run))

    def _pin_guard(self, run: str, *, outer: bool = False) -> PinGuard | None:
        if self._trust is None:
            return None
        return PinGuard(self._trust, self.store.url, run, self.settings.state_dir, outer=outer)

    async def _collect_garbage(self) -> None:
        for run in await self._all_runs():
            with self._background.surviving(_COLLECT):  # what is wrong with one run is no matter of the next
                await self.call(self._collecting.collect, run)
        with self._background.surviving(_COLLECT):
            await self.call(self._collecting.collect_bases)

    async def _all_runs(self) -> list[str]:
        try:
            return await self.runs()
        except PulseError as error:
            logger.warning("the runs can't be listed, so that no garbage is collected: %s", error)
            return []

    def _end_threads(self) -> None:
        for ending in (self._looks, self.sizes, self.workers, self.call, self.render):
            ending.close()
        for pool in (self._askers, self.checkers, self._spoolers):
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
