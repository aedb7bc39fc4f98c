"""The registry: what trainers and workers call."""

from __future__ import annotations

import dataclasses
import functools
import os
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, Future
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, overload
from weakref import WeakSet

from pulse_kernels import BackendName, get_backend
from pulse_registry.cache import CachedStore, CacheFolder
from pulse_registry.compact import Background, CompactOptions, Compactor
from pulse_registry.compact.requests import ask, check_request
from pulse_registry.digest import Digest
from pulse_registry.errors import BaseMismatch, CorruptObject, Gone, InvalidArgument, NotFound
from pulse_registry.events import Events, Listener
from pulse_registry.fetch import FETCH_THREADS
from pulse_registry.finite import NonFinite, check_policy
from pulse_registry.gc import Collected, Collector, Policy
from pulse_registry.held import HeldVersions
from pulse_registry.lease import LeaseKeeper, ReaderLease
from pulse_registry.link import Link, TimedStore
from pulse_registry.log import LogReader, LogWriter, RunState
from pulse_registry.model import Model, read_model
from pulse_registry.news import await_news
from pulse_registry.parallel import ParallelMap
from pulse_registry.placement import DeviceName, Placement, placement
from pulse_registry.prefetch import WAIT_SECONDS, Prefetch
from pulse_registry.publish import Publisher, PublishOptions, check_options
from pulse_registry.pulling import Staged, Staging, stage_into
from pulse_registry.route import Route, plan
from pulse_registry.service.connect import HasConnections
from pulse_registry.service.places import RUN_NAME, checked_worker
from pulse_registry.service.reports import Reporter, TakesReports, report_of
from pulse_registry.store import PrefixStore, Store, gateway_of
from pulse_registry.surroundings import Surroundings
from pulse_registry.target import Target
from pulse_registry.tensors import new_tensors
from pulse_registry.timeline import Timeline
from pulse_registry.trust import PinGuard, Trust, state_folder
from pulse_registry.versions import PullResult, PushResult, Version, describe
from pulse_registry.weights import Weights, check_layout
from pulse_schemas import Layout, Signer, VersionEntry

VersionName = int | str
"""A number, ``latest``, or a tag."""
_LONG_SECONDS = 3600.0


class Registry:
    """One run of a registry. Safe to share between threads; a context manager that waits for pushes at its end."""

    def __init__(
        self,
        store: Store,
        run: str,
        *,
        options: PublishOptions | None = None,
        backend: BackendName = "auto",
        spool: Path | None = None,
        undo_share: float = 0.05,
        worker: str | None = None,
        lease_seconds: float | None = 3600.0,
        owns_store: bool = False,
        device: DeviceName | Placement = "auto",
        on_event: Listener | None = None,
        object_cost: int | None = None,
        surroundings: Surroundings | None = None,
        signer: Signer | None = None,
        trust: Trust | None = None,
        nonfinite: NonFinite = "allow",
        cache: CacheFolder | None = None,
    ) -> None:
        """Open a run in a store; ``open`` does it by URL.

        Args:
            store: holds all runs.
            run: the run's name.
            options: how to publish.
            backend: of the kernels.
            spool: folder for keyframes on their way, where a pull after one that died finds what it had fetched; None
                for the system's temporary folder.
            undo_share: what a worker keeps to go back in memory, at most, as a share of the weights' bytes.
            worker: its name, in reports to a service: of a worker's pulls, or of a trainer's pushes; and in its lease.
            lease_seconds: how long a worker's lease is good after it was written; None: it takes none.
            owns_store: close the store's connections with the registry.
            device: where models are worked on, by name or by a rule.
            on_event: is told of events, from any thread.
            object_cost: bytes that a pull fetches rather than one more object; None: as the link is found to be.
            surroundings: time, ids and threads; None for the real ones.
            signer: signs what is written.
            trust: the keys whose records are believed; None believes the store.
            nonfinite: what becomes of weights that are NaN or infinite, pushed or pulled.
            cache: of this host, through which objects are read; None: all come from the store.
        """
        if not RUN_NAME.fullmatch(run):
            raise InvalidArgument(
                f"{run!r} is no run name: 1 to 128 of a-z, 0-9, '.', '_' and '-', the first a letter or digit"
            )
        check_options(options or PublishOptions())
        check_policy(nonfinite)
        self._nonfinite: NonFinite = nonfinite
        self.run = run
        self.url = store.url
        self._around = surroundings or Surroundings()
        link = Link(object_cost)
        self._object_cost = link.object_cost
        timed = TimedStore(store, link, self._around.monotonic)
        self._store: Store = PrefixStore(self._around.retrying(timed), run)
        self._gateway = gateway_of(store)
        self._reporter: Reporter | None = None
        if worker is not None and isinstance(self._gateway, TakesReports):
            self._reporter = Reporter(self._gateway, run, checked_worker(worker))
        self._lease: LeaseKeeper | None = None
        self._owned = store if owns_store and isinstance(store, HasConnections) else None
        self._backend_name = backend
        self._placement = device if callable(device) else placement(device)
        self._options = options or PublishOptions()
        self._spool, self._undo_share = spool, undo_share
        self._events = Events() if on_event is None else Events(on_event)
        self._cache: CachedStore | None = None
        if cache is not None:
            threads = functools.partial(self._around.threads, FETCH_THREADS, "pulse-cache")
            self._store = self._cache = CachedStore(self._store, cache, run, self._events, threads)
        self.signer = signer
        guard: PinGuard | None = None
        if trust is not None:
            seen = state_folder(trust.state_dir, store.url)
            guard = PinGuard(trust, store.url, run, seen, events=self._events, clock=self._around.clock)
        ahead = None if self._gateway is not None else self._around.threads  # a service gives records by the page
        self._reader = LogReader(self._store, run, guard, ahead)
        self._held = HeldVersions()
        self._lock = threading.Lock()
        self._pool: Executor | None = None
        self._fetchers: Executor | None = None
        self._staging: Staging | None = None
        self._publisher: Publisher | None = None
        self._background: Background | None = None
        self._reader_id = self._around.new_id()
        if worker is not None and lease_seconds is not None:
            reader = f"{checked_worker(worker)}-{self._reader_id[:8]}"
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
            weakref.finalize(self, self._lease.stop)
        self._prefetches: WeakSet[Prefetch] = WeakSet()
        self._closed = False

    # -- what is there ---------------------------------------------------------------------------------------------

    def state(self) -> RunState:
        """Read what is new in the log and return the run's state; of a run that does not exist, the empty one."""
        return self._reader.refresh()

    def versions(self) -> list[Version]:
        """Return all versions, oldest first; retired ones are left out."""
        state = self.state()
        return [describe(state, entry) for entry in state.versions if not state.is_retired(entry.version)]

    def version(self, version: VersionName | None = None, *, step: int | None = None) -> Version:
        """Return one version, by number, as ``"latest"`` (the default), or the newest one of a trainer's step.

        Raises:
            NotFound: there is none.
        """
        state = self.state()
        if step is None:
            return describe(state, self._entry(state, "latest" if version is None else version))
        if version is not None:
            raise InvalidArgument("give a version or a step, not both")
        entry = state.by_step(step)
        if entry is None:
            raise NotFound(f"run {self.run!r} has no version of step {step}")
        return describe(state, entry)

    def layout(self, version: VersionName = "latest") -> Layout:
        """Return the names, dtypes and shapes of a version's tensors.

        Raises:
            NotFound: there is no such version.
            CorruptObject, UnsupportedFormat, StoreUnavailable: the layout can't be read.
        """
        return self._working().geometry(self._entry(self.state(), version).layout).layout

    def route(self, from_version: int | None = None, to: VersionName = "latest") -> Route:
        """Return the cheapest way from a version, or from nothing, to another.

        Raises:
            NotFound: a version does not exist, or nothing leads there.
        """
        state = self.state()
        return plan(state, self._entry(state, to).version, have=from_version, object_cost=self._object_cost())

    def watch(
        self, after: int | None = None, *, poll_seconds: float = 0.5, timeout: float | None = None
    ) -> Iterator[Version]:
        """Yield versions newer than ``after``, as they are committed; without it, those newer than now.

        Over a bucket it tails the log: a look costs one GET. A service answers as soon as there is something new, so
        that a version costs one request. Ends after ``timeout`` seconds without a new version; None: never.
        """
        state = self.state()
        seen = after if after is not None else len(state.versions) - 1
        last = time.monotonic()
        while True:
            for entry in state.versions[seen + 1 :]:
                seen, last = entry.version, time.monotonic()
                if not state.is_retired(entry.version):
                    yield describe(state, entry)
            left = _LONG_SECONDS if timeout is None else last + timeout - time.monotonic()
            if left <= 0:
                return
            state = await_news(self._reader, self._gateway, state, poll_seconds=poll_seconds, timeout_s=left)

    # -- trainer ---------------------------------------------------------------------------------------------------

    @overload
    def push(
        self, step: int, model: Model, *, metadata: Mapping[str, Any] | None = None, wait: Literal[True] = True
    ) -> PushResult: ...
    @overload
    def push(
        self, step: int, model: Model, *, metadata: Mapping[str, Any] | None = None, wait: Literal[False]
    ) -> Future[PushResult]: ...
    def push(
        self, step: int, model: Model, *, metadata: Mapping[str, Any] | None = None, wait: bool = True
    ) -> PushResult | Future[PushResult]:
        """Publish the model's weights as the next version.

        Finds the cells that changed since the last push, stores them as a patch, and commits a record. The first
        version, and one with another layout, is stored whole. The first push of a process takes over the run: a
        writer that pushed to it before is fenced.

        Args:
            step: the trainer's own label, any integer.
            model: an ``nn.Module``, or a mapping of names to torch tensors or NumPy arrays.
            metadata: JSON values to keep with the version.
            wait: False returns after the diff; the rest happens in the background, in order, and the returned
                future holds the result or raises what went wrong. The model may be changed at once.

        Raises:
            InvalidModel: a tensor can't be published; nothing was written.
            InvalidArgument: the registry is to work on a GPU, and the model is not on one.
            Fenced: another writer took over; this registry can't push any more.
            Conflict: another writer committed first; the next push carries these changes.
            StoreUnavailable: the store failed. Nothing is lost: the next push carries these changes.
        """
        if not isinstance(step, int) or isinstance(step, bool):
            raise InvalidArgument(f"step is {step!r}; it is an integer")
        future = self._publishing().push(step, model, metadata)
        if self._reporter is not None:
            future.add_done_callback(self._report_push)
        if self._background is not None:
            future.add_done_callback(self._background.committed)
        return future.result() if wait else future

    # -- worker ----------------------------------------------------------------------------------------------------

    def stage(self, version: VersionName = "latest", into: Model | None = None, *, fresh: bool = False) -> Staged:
        """Fetch, check and decode all that leads to a version; ``apply`` on the result then changes the weights.

        Args:
            version: a number or ``"latest"``.
            into: the worker's weights, a module or a mapping of writable tensors, in host memory or on a GPU; they are
                only read here, and may be serving. None: new weights are made, in host memory.
            fresh: take ``into`` as holding nothing known.

        Raises:
            NotFound: there is no such version.
            LayoutMismatch, InvalidModel: ``into`` can't take this version.
            BaseMismatch: ``into`` was changed since it was pulled.
            CorruptObject, UnsupportedFormat, StoreUnavailable: the version can't be read.
        """
        return self._stage(version, into, fresh)[0]

    @overload
    def pull(self, version: VersionName = "latest", into: None = None) -> dict[str, Any]: ...
    @overload
    def pull(self, version: VersionName = "latest", into: Model = ..., *, fresh: bool = False) -> PullResult: ...
    def pull(
        self, version: VersionName = "latest", into: Model | None = None, *, fresh: bool = False
    ) -> PullResult | dict[str, Any]:
        """Bring weights to a version, bit for bit: ``stage`` and ``apply`` in one.

        Without ``into``, returns new tensors by name: torch ones where torch is installed, else NumPy arrays.

        Raises:
            As ``stage``; the weights are then as they were.
        """
        staged, made = self._stage(version, into, fresh)
        with staged:
            result = staged.apply()
            if made is None:
                return result
            tensors = new_tensors(made, "auto")
            self._held.of(read_model(tensors)).now_at(result.version)
            return tensors

    def request_direct(self, base: int, target: int) -> bool:
        """Ask the run's compactor for the direct patch of two versions: what a worker far behind would fetch least of.

        It is made once enough readers ask, each of which counts once. Costs one small object.

        Returns:
            False if the patch is there already.

        Raises:
            InvalidArgument: no patch can lead from one to the other.
            Gone, NotFound: a version was retired, or does not exist.
            AccessDenied, StoreUnavailable: the request could not be stored.
        """
        if not check_request(self.state(), base, target):
            return False
        ask(self._store, self.run, base, target, self._reader_id)
        return True

    def compactor(self, options: CompactOptions | None = None) -> Compactor:
        """Return what makes the run's merged patches and keyframes, a piece of work at each call of ``step``.

        It works with this registry's threads and is for one thread at a time; close it before the registry.

        Raises:
            InvalidArgument: an option is out of range.
        """
        return self._compactor(self._working(), options or CompactOptions())

    def _compactor(self, staging: Staging, options: CompactOptions) -> Compactor:
        around = self._around
        staging = self._past_cache(staging)  # it reads much, and nothing twice
        return Compactor(staging, self._reader, self._writer(), around.new_id, options, around.monotonic)

    def prefetch(self, into: Model, *, poll_seconds: float = 0.5) -> Prefetch:
        """Keep the newest version staged in the background, for these weights: ``take`` it, then ``apply`` it.

        Args:
            into: as for ``stage``; they are only read, and may be serving.
            poll_seconds: between two looks at a bucket's log; a service tells of a new version at once.

        Raises:
            InvalidModel: ``into`` is no model.
        """
        held = self._held.of(read_model(into))

        def news(state: RunState | None, sleep: Callable[[float], object]) -> RunState:
            if state is None:
                return self.state()
            follow = functools.partial(await_news, self._reader, self._gateway, state, sleep=sleep)
            return follow(poll_seconds=poll_seconds, timeout_s=WAIT_SECONDS)

        made = Prefetch(lambda: self._stage("latest", into, False)[0], news, held, self._events, self.run)
        self._prefetches.add(made)
        return made

    def report(self, worker: str, result: PullResult) -> None:
        """Tell the service which version a worker serves, and how its last pull went; ``open(worker=...)`` does it
        after each.

        Raises:
            InvalidArgument: the worker's name is not valid; or there is no service: a bucket takes no reports.
            AccessDenied, NotFound, StoreUnavailable: the service did not take it.
        """
        if not isinstance(self._gateway, TakesReports):
            raise InvalidArgument(f"{self.url} is no service, and a bucket takes no reports; open https://...")
        self._gateway.report(self.run, worker, report_of(result))

    def verify(self, version: VersionName = "latest", model: Model | None = None) -> Version:
        """Check a model, or the stored objects of a version, against its state digest by a full pass.

        Args:
            version: a number or ``"latest"``.
            model: weights that should hold the version; if they do, that is remembered, so that the next pull into
                them needs patches only. None: the objects on the version's route are fetched and checked.

        Raises:
            LayoutMismatch: the model has other tensors.
            BaseMismatch: the model's cells are not those of the version.
            CorruptObject: an object is damaged.
        """
        state = self.state()
        entry = self._entry(state, version)
        staging = self._working()
        geometry = staging.geometry(entry.layout)
        if model is None:
            staging = self._past_cache(staging)  # it is the stored objects that are to be checked, not copies of them
            weights, held = Weights.empty(geometry), None
            target = staging.target(weights)
            with stage_into(
                staging, state, entry, target, None, fresh=True, undo_limit=0, timeline=Timeline()
            ) as staged:
                staged.apply()
            digest = weights.digest(staging.backend, staging.map_)
        else:
            views = read_model(model)
            check_layout(geometry.layout, views)
            held, digest = self._held.of(views), staging.digest(geometry, views)
        if digest != Digest.parse(entry.digest):
            raise (CorruptObject if model is None else BaseMismatch)(
                f"the cells are not those of version {entry.version}: their state digest is {digest.hex()}, "
                f"{entry.digest} was committed"
            )
        if held is not None:
            held.now_at(entry.version)
        return describe(state, entry)

    def warm_up(self) -> None:
        """Compile the kernels, or load them from their cache on disk, so that no push or pull waits for it.

        ``open`` does this in the background.
        """
        get_backend(self._backend_name).warm_up(2)

    # -- retention -------------------------------------------------------------------------------------------------

    def tags(self) -> dict[str, int]:
        """Return the names that stand for versions."""
        return dict(sorted(self.state().tags.items()))

    def tag(self, name: str, version: VersionName | None = "latest") -> None:
        """Give a version a name, which ``pull`` takes for it, and which keeps it for as long; None takes the name away.

        Raises:
            InvalidArgument: it is no name (a to z first, then those, 0 to 9, '.', '_' and '-', at most 64; not
                ``latest``), or the version was retired.
            NotFound: there is no such version.
            AccessDenied, StoreUnavailable: the store did not take it.
        """
        number = None if version is None else self._entry(self.state(), version).version
        self._writer().tag(name, number)

    def gc(self, policy: Policy | None = None, *, dry_run: bool = True) -> Collected:
        """Retire the versions that a policy does not keep, and delete what was retired longer ago than its grace time.

        Args:
            policy: what is kept, beside tagged versions, and what workers with a lease need; None: `Policy()`.
            dry_run: only look, and tell what would be done.

        Raises:
            NotFound: there is no such run.
            InvalidArgument: this is a service, which does it itself.
            CorruptObject, UnsupportedFormat, Untrusted: the log, or a lease, can't be read.
            AccessDenied, StoreUnavailable: the store did not do it; run it again.
        """
        if self._gateway is not None:
            raise InvalidArgument(f"{self.url} is a service, which collects by itself: go to the bucket")
        with self._around.threads(FETCH_THREADS, "pulse-gc") as pool:
            collector = Collector(
                self._store, self.run, self._reader, self._writer(), self._around.new_id, each=ParallelMap(pool)
            )
            return collector.collect(policy or Policy(), dry_run=dry_run)

    # -- life ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Wait for pushes and reports under way, stop the threads, close connections. Idempotent."""
        for prefetch in list(self._prefetches):
            prefetch.close()
        with self._lock:
            self._closed = True
            publisher, pools = self._publisher, (self._pool, self._fetchers)
        if publisher is not None:
            publisher.close()
        if self._background is not None:
            self._background.close()
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

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _stage(self, version: VersionName, into: Model | None, fresh: bool) -> tuple[Staged, Weights | None]:
        """Stage a version; also return the weights that were made for it, None where they were given."""
        timeline = Timeline()
        while True:
            state = self.state()
            entry = self._entry(state, version)
            try:
                return self._stage_entry(state, entry, into, fresh, timeline)
            except Gone:
                # Retired while it was fetched; a name may stand for another version by now.
                if isinstance(version, int) or self._entry(self.state(), version).version == entry.version:
                    raise

    def _stage_entry(
        self, state: RunState, entry: VersionEntry, into: Model | None, fresh: bool, timeline: Timeline
    ) -> tuple[Staged, Weights | None]:
        staging = self._working()
        geometry = staging.geometry(entry.layout)
        views = None if into is None else read_model(into)
        made: Weights | None = None
        if views is None:
            made = Weights.empty(geometry)
            target: Target = staging.target(made)
        else:
            target = staging.into(geometry, views)
        staged = stage_into(
            staging,
            state,
            entry,
            target,
            None if views is None else self._held.of(views),
            fresh=fresh,
            undo_limit=int(self._undo_share * geometry.nbytes),
            timeline=timeline,
            applied=self._applied,
            nonfinite=self._nonfinite,
        )
        return staged, made

    def _entry(self, state: RunState, version: VersionName) -> VersionEntry:
        if version == "latest":
            if state.latest is None:
                raise NotFound(f"run {self.run!r} in {self.url} has no versions yet")
            return state.latest
        if isinstance(version, str):
            if version not in state.tags:
                raise NotFound(f"run {self.run!r} has no version that is called {version!r}")
            version = state.tags[version]
        if not isinstance(version, int) or isinstance(version, bool):
            raise InvalidArgument(f"version is {version!r}; it is a number, 'latest' or a tag")
        return state.version(version)

    def _applied(self, result: PullResult) -> None:
        if self._lease is not None:
            self._lease.hold(result.version)
        if self._reporter is not None:
            self._reporter.tell(result)
        for prefetch in list(self._prefetches):
            prefetch.wake()

    def _report_push(self, future: Future[PushResult]) -> None:
        if self._reporter is not None and not future.cancelled() and future.exception() is None:
            self._reporter.tell(future.result())

    def _past_cache(self, staging: Staging) -> Staging:
        return staging if self._cache is None else dataclasses.replace(staging, store=self._cache.below, copies=None)

    def _working(self) -> Staging:
        with self._lock:
            if self._closed:
                raise InvalidArgument("the registry was closed; open it again")
            if self._staging is None:
                self._pool = self._around.threads(os.cpu_count() or 1, "pulse")
                backend = get_backend(self._backend_name)
                self._fetchers = self._around.threads(FETCH_THREADS, "pulse-fetch")
                places = (self._pool, self._fetchers, self._spool, self._placement)
                log = (self._events, self._reader.refresh)
                self._staging = Staging(self._store, backend, *places, *log, self._cache, self._object_cost)
            return self._staging

    def _publishing(self) -> Publisher:
        staging = self._working()
        with self._lock:
            if self._publisher is None:
                new_id, queue = self._around.new_id, self._around.threads(1, "pulse-push")
                self._publisher = Publisher(
                    staging, self._reader, self._writer(), new_id, self._options, queue, self._nonfinite
                )
                if self._options.compact == "inline":
                    self._background = self._compacting(staging)
            return self._publisher

    def _writer(self) -> LogWriter:
        name = f"{socket.gethostname()}:{os.getpid()}"[:256]
        keeps = {} if self._gateway is None else {"snapshot_every": None}  # a service keeps them itself
        around = self._around
        return LogWriter(
            self._store, self.run, self._reader, around.clock, around.new_id, name, signer=self.signer, **keeps
        )

    def _compacting(self, staging: Staging) -> Background:
        """Return a compactor with threads of its own, so that the pushes keep theirs."""
        thread, pool, fetchers = (self._around.threads(count, "pulse-compact") for count in (1, 1, 2))
        own = dataclasses.replace(staging, pool=pool, fetchers=fetchers)
        return Background(self._compactor(own, CompactOptions()), thread, (pool, fetchers))
