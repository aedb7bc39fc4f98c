"""What a registry works with: log, threads, publisher, lease. Made when first needed, ended by ``close``."""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
import socket
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path
from types import TracebackType
from typing import Self
from weakref import WeakSet

from pulse_kernels import BackendName, warm_up_ahead
from pulse_registry.cache import CachedStore, CacheFolder
from pulse_registry.client.connect import HasConnections
from pulse_registry.client.reports import Reporter, TakesReports
from pulse_registry.client.routes import checked_worker
from pulse_registry.compaction import Background, CompactOptions, Compactor
from pulse_registry.context import Context
from pulse_registry.errors import InvalidArgument
from pulse_registry.events import Event, EventKind, Events, Listener
from pulse_registry.log import LogReader, LogWriter
from pulse_registry.log.names import run_name
from pulse_registry.process.closing import Closing
from pulse_registry.process.cores import checked_threads
from pulse_registry.process.fork import Home, at_home
from pulse_registry.pull.base_check import BaseCheck, pulls_a_check
from pulse_registry.pull.fetch import FETCH_THREADS
from pulse_registry.pull.lease import LeaseKeeper, ReaderLease
from pulse_registry.pull.prefetch import Prefetch
from pulse_registry.pull.replica import Replicas
from pulse_registry.push.options import PushOptions
from pulse_registry.push.publisher import Publisher
from pulse_registry.results import PushResult
from pulse_registry.runtime.dependencies import Surroundings
from pulse_registry.runtime.placement import placement
from pulse_registry.signing import PinGuard, Trust, state_folder
from pulse_registry.store import PrefixStore, Store
from pulse_registry.store.wrappers.measured import Link, TimedStore
from pulse_registry.weights.backend import backend_of, check_backend, what_compiles
from pulse_registry.weights.device import DeviceName, Placement
from pulse_registry.weights.nonfinite import NonFinite, check_policy
from pulse_schemas import Signer

_logger = logging.getLogger(__name__)


class Workings:
    """The parts of a registry, put together; a context manager that waits for pushes at its end."""

    def __init__(
        self,
        store: Store,
        run: str,
        *,
        options: PushOptions | None = None,
        backend: BackendName = "auto",
        threads: int | None = None,
        ahead: bool = False,
        spool: Path | None = None,
        undo_share: float = 0.05,
        name: str | None = None,
        lease_seconds: float | None = 3600.0,
        owns_store: bool = False,
        device: DeviceName | Placement = "auto",
        on_event: Listener | None = None,
        object_cost: int | None = None,
        surroundings: Surroundings | None = None,
        signer: Signer | None = None,
        trust: Trust | None = None,
        nonfinite: NonFinite = "allow",
        check: BaseCheck = "touched",
        cache: CacheFolder | None = None,
    ) -> None:
        """Open a run in a store; ``open`` does it by URL.

        Args:
            store: holds all runs.
            run: the run's name.
            options: how to publish.
            backend: of the kernels.
            threads: that compute, at most; None: one for each core that this process may use.
            ahead: compile the kernels in the background, from the first call on that needs one; and tell now, not then,
                where they are not on disk.
            spool: folder for keyframes on their way, where a pull after one that died finds what it had fetched; None
                for memory, or a temporary folder.
            undo_share: what a worker keeps to go back in memory, at most, as a share of the weights' bytes.
            name: of the worker or trainer: in reports to a service of its pulls or pushes, and in its lease.
            lease_seconds: how long a worker's lease is good after it was written; None: it takes none.
            owns_store: close the store's connections with the registry.
            device: where models are worked on, by name or by a rule.
            on_event: is told of events, from any thread.
            object_cost: bytes that a pull fetches rather than one more object; None: as the link is found to be.
            surroundings: time, ids and threads; None for the real ones.
            signer: signs what is written.
            trust: the keys whose records are believed; None believes the store.
            nonfinite: what becomes of weights that are NaN or infinite, pushed or pulled.
            check: which cells a pull checks before it changes some, unless it says so itself.
            cache: of this host, through which objects are read; None: all come from the store.
        """
        run = run_name(run)
        (options or PushOptions()).check()
        check_policy(nonfinite)
        check_backend(backend)
        self._nonfinite: NonFinite = nonfinite
        self._check_every = pulls_a_check(check)
        self.run = run
        self._name = name
        self.url = store.url
        self._around = surroundings or Surroundings()
        link = Link(object_cost)
        self._object_cost = link.object_cost
        timed = TimedStore(store, link, self._around.monotonic)
        self._store: Store = PrefixStore(self._around.retrying(timed), run)
        self._gateway = store.gateway()
        self._reporter: Reporter | None = None
        if name is not None and isinstance(self._gateway, TakesReports):
            self._reporter = Reporter(self._gateway, run, checked_worker(name))
            weakref.finalize(self, at_home(self._reporter.stop))
        self._lease: LeaseKeeper | None = None
        self._owned = store if owns_store and isinstance(store, HasConnections) else None
        self._backend_name = backend
        self._threads, self._ahead = checked_threads(threads), ahead
        self._options = options or PushOptions()
        self._spool, self._undo_share = spool, undo_share
        self._events = Events() if on_event is None else Events(on_event)
        self._placement = device if callable(device) else placement(device, self._tell_placement)
        self._cache: CachedStore | None = None
        if cache is not None:
            fetchers = functools.partial(self._around.threads, FETCH_THREADS, "pulse-cache")
            self._store = self._cache = CachedStore(self._store, cache, run, self._events, fetchers)
        self.signer = signer
        guard: PinGuard | None = None
        if trust is not None:
            seen = state_folder(trust.state_dir, store.url)
            guard = PinGuard(trust, store.url, run, seen, events=self._events, clock=self._around.clock)
        parallel = None if self._gateway is not None else self._around.threads  # a service gives records by the page
        self._reader = LogReader(self._store, run, guard, parallel, events=self._events)
        self._replicas = Replicas()
        self._lock = threading.Lock()
        self._pool: Executor | None = None
        self._fetchers: Executor | None = None
        self._context: Context | None = None
        self._publisher: Publisher | None = None
        self._background: Background | None = None
        self._reader_id = self._around.new_id()
        if name is not None and lease_seconds is not None:
            reader = f"{checked_worker(name)}-{self._reader_id[:8]}"
            self._lease = LeaseKeeper(
                ReaderLease(
                    self._store,
                    run,
                    reader,
                    lease_seconds,
                    events=self._events,
                    signer=signer,
                    monotonic=self._around.monotonic,
                )
            )
            weakref.finalize(self, at_home(self._lease.stop))
        self._prefetches: WeakSet[Prefetch] = WeakSet()
        self._closed = False
        self._home = Home()
        self._reopening: Callable[[], object] | None = None
        self._lacks_key = False
        if ahead:
            self._tell_what_compiles()

    def close(self, timeout: float | None = None) -> None:
        """Wait for pushes and reports under way, stop the threads, close connections. Idempotent.

        What it waits for is logged: at once, and as a warning every few seconds. In a process that was forked from the
        one that opened it, it does nothing: all of that is the parent's.

        Args:
            timeout: seconds for the pushes that are on their way, and for what prefetches and a compactor have begun;
                None: as long as it takes. A report and a lease take a few more, where the store is away.

        Raises:
            StoreUnavailable: something was not done in time, and goes on; the message names it, and the steps of
                pushes. Close again to go on waiting.
            PulseError: a push with ``wait=False`` failed, and nobody has looked at its future. All is closed.
        """
        unseen = self._end(timeout)
        if unseen is not None:
            raise unseen

    def _end(self, timeout: float | None = None) -> BaseException | None:
        """Close; return the failure of a push that nobody has seen."""
        if not self._home.here:
            return None
        closing, prefetches = Closing(self.run, timeout), list(self._prefetches)
        for prefetch in prefetches:
            prefetch.stop()
        with self._lock:
            self._closed = True
            publisher, pools = self._publisher, (self._pool, self._fetchers)
        if publisher is not None:
            publisher.close(closing)
        for prefetch in prefetches:
            closing.wait(prefetch.under_way)
            prefetch.close()
        if self._background is not None:
            self._background.close(closing)
        for pool in pools:
            if pool is not None:
                pool.shutdown(wait=True)
        if self._cache is not None:
            self._cache.close()
        if self._reporter is not None:
            self._reporter.close()
        if self._lease is not None:
            self._lease.close()
        if self._owned is not None:
            self._owned.close()
        return publisher.unseen() if publisher is not None else None

    def __repr__(self) -> str:
        seen = self._reader.seen
        version = None if seen is None or seen.latest is None else seen.latest.version
        said = [f"url={self.url.partition('?')[0]!r}", f"run={self.run!r}"]
        said += [] if self._name is None else [f"name={self._name!r}"]
        said += [f"newest={version}", "closed" if self._closed else "open"]
        return f"<{type(self).__name__} {' '.join(said)}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        unseen = self._end()
        if unseen is not None and error is None:
            raise unseen
        if unseen is not None:
            _logger.error("run %s: a push failed, which nobody has seen: %r", self.run, unseen)

    def __reduce__(self) -> tuple[Callable[[], object], tuple[()]]:
        """Travel as what ``open`` was called with, but for the token and the signing key, and open the run anew there.

        Raises:
            InvalidArgument: another process can't open it.
        """
        if self._reopening is None:
            raise InvalidArgument(
                f"this registry of run {self.run!r} was made of a store, not of a URL, and can't be pickled: "
                "call pulse_registry.open where it is needed"
            )
        if self.url.startswith("memory://"):
            raise InvalidArgument(f"{self.url} is in this process's memory, and no other can open it: use a folder")
        return self._reopening, ()

    def travels_as(self, reopening: Callable[[], object], *, lacks_key: bool = False) -> None:
        """Take what opens the run again where this registry is unpickled; ``open`` and unpickling do it.

        With ``lacks_key`` it came here without the key that it signs with, and nothing is written.
        """
        self._reopening, self._lacks_key = reopening, lacks_key

    def _check_process(self) -> None:
        self._home.check(f"this registry of run {self.run!r}")

    def _tell_what_compiles(self) -> None:
        waits = what_compiles(self._backend_name)
        if waits is not None:
            self._events.tell(Event(EventKind.KERNELS_NOT_CACHED, self.run, waits))

    def _tell_placement(self, why: str) -> None:
        self._events.tell(Event(EventKind.GPU_NOT_USED, self.run, why))

    def _working(self) -> Context:
        self._check_process()
        with self._lock:
            if self._closed:
                raise InvalidArgument("the registry was closed; open it again")
            if self._context is None:
                backend = backend_of(self._backend_name)
                if not self._ahead:
                    self._tell_what_compiles()
                elif backend.name != "reference":
                    warm_up_ahead()
                self._pool = self._around.threads(self._threads, "pulse")
                self._fetchers = self._around.threads(FETCH_THREADS, "pulse-fetch")
                places = (self._pool, self._fetchers, self._spool)
                log = (self._events, self._reader.refresh)
                self._context = Context(self._store, backend, *places, *log, self._cache, self._object_cost)
            return self._context

    def _past_cache(self, context: Context) -> Context:
        return context if self._cache is None else dataclasses.replace(context, store=self._cache.below, copies=None)

    def _writer(self) -> LogWriter:
        self._check_process()
        if self._lacks_key:
            raise InvalidArgument(
                f"this registry of run {self.run!r} signs what it writes, and came here without its key: "
                "set PULSE_SIGNING_KEY in this process"
            )
        name = f"{socket.gethostname()}:{os.getpid()}"[:256]
        keeps = {} if self._gateway is None else {"snapshot_every": None}  # a service keeps them itself
        around = self._around
        return LogWriter(
            self._store, self.run, self._reader, around.clock, around.new_id, name, signer=self.signer, **keeps
        )

    def _publishing(self) -> Publisher:
        context = self._working()
        with self._lock:
            if self._closed:
                raise InvalidArgument("the registry was closed; open it again")
            if self._publisher is None:
                new_id, thread = self._around.new_id, self._around.threads(1, "pulse-push")
                self._publisher = Publisher(
                    context,
                    self._reader,
                    self._writer(),
                    new_id,
                    self._options,
                    thread,
                    self._placement,
                    self._nonfinite,
                    self._committed,
                )
                if self._options.compact == "inline":
                    self._background = self._compacting(context)
            return self._publisher

    def _committed(self, result: PushResult) -> None:
        if self._reporter is not None:
            self._reporter.tell(result)
        if self._background is not None:
            self._background.committed()

    def _compactor(self, context: Context, options: CompactOptions) -> Compactor:
        context = self._past_cache(context)  # it reads much, and nothing twice
        return Compactor(context, self._reader, self._writer(), self._around.new_id, options)

    def _compacting(self, context: Context) -> Background:
        """Return a compactor with threads of its own, so that the pushes keep theirs."""
        thread, pool, fetchers = (self._around.threads(count, "pulse-compact") for count in (1, 1, 2))
        own = dataclasses.replace(context, pool=pool, fetchers=fetchers)
        return Background(self._compactor(own, CompactOptions()), thread, (pool, fetchers), self._events, self.run)
