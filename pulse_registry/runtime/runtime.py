"""Runtime of a run: store stack, log, threads, publisher, puller, lease; made when first needed, ended by ``close``."""

from __future__ import annotations

import dataclasses
import os
import socket
import sys
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path

from pulse_kernels import warm_up_ahead
from pulse_registry.client.reports import Reporter, TakesReports, rank_name
from pulse_registry.client.routes import checked_worker
from pulse_registry.compaction import Background, CompactOptions, Compactor
from pulse_registry.context import Context
from pulse_registry.errors import InvalidArgument
from pulse_registry.events import Event, EventKind, Events
from pulse_registry.log import LogReader, LogWriter
from pulse_registry.log.names import run_name
from pulse_registry.options import Options
from pulse_registry.outer.log import OuterLog
from pulse_registry.peers.peers import COORDINATOR, Peers
from pulse_registry.process.closing import Closing
from pulse_registry.process.cores import checked_threads
from pulse_registry.process.fork import OwnerProcess, only_in_this_process
from pulse_registry.process.parallel import ParallelMap
from pulse_registry.pull.apply import PullSettings
from pulse_registry.pull.base_check import pulls_a_check
from pulse_registry.pull.download import MEMORY
from pulse_registry.pull.fetch import FETCH_THREADS
from pulse_registry.pull.lease import LeaseKeeper, ReaderLease
from pulse_registry.pull.puller import Puller
from pulse_registry.push.publisher import Publisher
from pulse_registry.push.sharded import ShardedPublisher
from pulse_registry.results import PullResult, PushResult
from pulse_registry.retention import Collector
from pulse_registry.runtime.base import RunAsBase
from pulse_registry.runtime.dependencies import Dependencies
from pulse_registry.runtime.listening import Listening
from pulse_registry.runtime.placement import PlacedDestinations, placement
from pulse_registry.runtime.stores import StoreStack
from pulse_registry.signing import PinGuard, state_folder
from pulse_registry.signing.countersigning import Countersigning
from pulse_registry.store import Store
from pulse_registry.versions import Versions
from pulse_registry.weights.backend import backend_of, what_compiles
from pulse_registry.weights.model import Model, is_sharded_model, read_model
from pulse_schemas import Signer


class Runtime:
    """What one run is worked with, put together from options.

    Attributes:
        run: the run's name.
        url: of the store.
        options: that it was made with.
        events: are told of what happened although nothing failed.
        stores: of the run.
        reader: of its log.
        versions: that the log tells of.
        puller: the worker's side.
        publisher: the trainer's side; None until the first push.
        background: the compactor between pushes; None: there is none.
        placement: the rule by which models are worked on a device, or in host memory.
        reader_id: this process's, in leases.
        lacks_key: it came from another process without the key that it signs with, and nothing is written.
    """

    def __init__(self, store: Store, run: str, options: Options, dependencies: Dependencies) -> None:
        """Put the parts together; no I/O yet, but for a lease's and a reporter's threads.

        Raises:
            InvalidArgument: the run's name or an option is not valid.
        """
        run = run_name(run)
        check_every = pulls_a_check(options.pull.check)
        self.run, self.url, self.options, self._root = run, store.url, options, store
        self.events = Events() if options.on_event is None else Events(options.on_event)
        self.stores = StoreStack(store, run, dependencies, self.events, network=options.network, cache=options.cache)
        device = options.compute.device
        self.placement = device if callable(device) else placement(device, self._tell_placement)
        self._threads = checked_threads(options.compute.threads)
        self._around, self._owner = dependencies, OwnerProcess()
        self.reader = self._log_reader()
        self.versions = Versions(
            self.reader, self.stores.gateway, self.url, self._owner, self.stores.source, self.stores.patience
        )
        pull = options.pull
        settings = PullSettings(pull.undo_share, check_every, pull.nonfinite, self._applied, pull.host_copy)
        self.puller = Puller(
            self.versions, lambda: self.context(), PlacedDestinations(self.placement), settings, options.peers
        )
        self.reader_id = dependencies.new_id()
        self._name = self._name_of_worker()
        self._reporter, self._lease = self._reporting(), self._leasing()
        self._listening = self._listened()
        self._push_peers: Peers | None = None
        self._outer_peers: list[Peers] = []
        self.publisher: Publisher | ShardedPublisher | None = None
        self.background: Background | None = None
        self.lacks_key = False
        self._lock = threading.Lock()
        self._context: Context | None = None
        self._pools: tuple[Executor, ...] = ()
        self._closed = False
        if options.compile_ahead:
            self._tell_what_compiles()

    @property
    def dependencies(self) -> Dependencies:
        """Time, random ids and threads."""
        return self._around

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._closed

    def check_process(self) -> None:
        """Refuse to work in a process that was forked from the one that it was made in.

        Raises:
            InvalidArgument: this is another process.
        """
        self._owner.check(f"this registry of run {self.run!r}")

    def context(self) -> Context:
        """Return what pushes and pulls work with; makes the threads at the first call.

        Raises:
            InvalidArgument: it was closed, or is another process's.
        """
        self.check_process()
        with self._lock:
            self._check_open()
            if self._context is None:
                compute, spool, stores = self.options.compute, self.options.pull.spool, self.stores
                backend = backend_of(compute.backend)
                if not self.options.compile_ahead:
                    self._tell_what_compiles()
                elif backend.name != "reference":
                    warm_up_ahead()
                pool, fetchers = self._around.threads(self._threads, "pulse"), self._fetchers("pulse-fetch")
                self._pools = (pool, fetchers)
                self._context = Context(
                    stores.store,
                    backend,
                    pool,
                    fetchers,
                    None if spool is None or spool == MEMORY else Path(spool),
                    self.events,
                    self.reader.refresh,
                    stores.cache,
                    stores.prices,
                    in_memory=spool == MEMORY,
                )
            return self._context

    def uncached(self) -> Context:
        """Return the same, but that it reads the stored objects, and no copies of them."""
        context, stores = self.context(), self.stores
        return context if stores.cache is None else dataclasses.replace(context, store=stores.below_cache, copies=None)

    def writer(self) -> LogWriter:
        """Return a writer of the run's log.

        Raises:
            InvalidArgument: it came here without its key, or is another process's.
        """
        self.check_process()
        self.stores.write_at_home()
        signer = self.signer()
        name = f"{socket.gethostname()}:{os.getpid()}"[:256]
        keeps = {} if self.stores.gateway is None else {"snapshot_every": None}  # a service keeps them itself
        around = self._around
        return LogWriter(
            self.stores.store, self.run, self.reader, around.clock, around.new_id, name, signer=signer, **keeps
        )

    def publishing(self, model: Model) -> Publisher | ShardedPublisher:
        """Return the trainer's side; makes it at the first call.

        A model that is sharded over the processes of torch.distributed is published by all of them.
        """
        context = self.context()
        with self._lock:
            self._check_open()
            if self.publisher is None:
                around, options = self._around, self.options
                committed: list[Callable[[PushResult], None]] = []
                if self._reporter is not None:
                    committed.append(self._reporter.tell)
                if self._listening is not None:
                    committed.append(self._listening.tell)
                if options.push.compact == "inline":
                    self.background = self._compacting(context)
                    committed.append(self.background.committed)
                thread = around.threads(1, "pulse-push")
                self._push_peers = self._peers_of(model)
                if self._push_peers is None:
                    self.publisher = Publisher(
                        context,
                        self.writer(),
                        around.new_id,
                        options.push,
                        thread,
                        self.placement,
                        committed,
                        self._base(),
                    )
                else:
                    if self._reporter is not None and self._push_peers.rank != COORDINATOR:
                        self._reporter.leave()
                    self.publisher = ShardedPublisher(
                        context,
                        self.writer(),
                        around.new_id,
                        options.push,
                        thread,
                        self._push_peers,
                        self.placement,
                        committed,
                        self._base(),
                    )
            return self.publisher

    def outer_log(self) -> OuterLog:
        """Return the log of the run's outer rounds, to write to it."""
        self.stores.write_at_home()
        return OuterLog(self.stores.store, self.run, self.signer(), self.outer_guard(), self._around.threads)

    def outer_guard(self) -> PinGuard | None:
        """Return what judges the records of outer rounds; None where no keys are pinned."""
        return self._pin_guard(outer=True)

    def signer(self) -> Signer | None:
        """Return what signs what is written here; None: nothing is signed.

        Raises:
            InvalidArgument: it came here without its key.
        """
        if self.lacks_key:
            raise InvalidArgument(
                f"this registry of run {self.run!r} signs what it writes, and came here without its key: "
                "set PULSE_SIGNING_KEY in this process"
            )
        return self.options.signer

    def outer_publisher(self) -> Publisher:
        """Return a publisher of the versions of outer rounds, whose first push begins a term."""
        context, around = self.context(), self._around
        return Publisher(
            context, self.writer(), around.new_id, self.options.push, around.threads(1, "pulse-outer"), self.placement
        )

    def sharded_outer_publisher(self, peers: Peers) -> ShardedPublisher:
        """Return this rank's part of one; see ``outer_publisher``."""
        context, around, options = self.context(), self._around, self.options.push
        thread = around.threads(1, "pulse-outer")
        return ShardedPublisher(context, self.writer(), around.new_id, options, thread, peers, self.placement)

    def outer_peers(self, model: Model) -> tuple[Peers, Peers] | None:
        """Return the ranks that hold a model together: once for those that call, and once for their pushes.

        None: it is one process'.
        """
        calling = self.options.peers or self._peers_of(model)
        if calling is None:
            return None
        pushing = self._peers_of(model) or calling
        self._outer_peers += calling, pushing
        return calling, pushing

    def _peers_of(self, model: Model) -> Peers | None:
        """Return the ranks that push together: those of the options, or of torch.distributed for a sharded model."""
        if self.options.push_peers is not None:
            return self.options.push_peers()
        if self.options.peers is not None:
            return self.options.peers
        distributed = sys.modules.get("torch.distributed")
        if distributed is None or not (distributed.is_available() and distributed.is_initialized()):
            return None
        if distributed.get_world_size() == 1 or not is_sharded_model(model):
            return None
        from pulse_registry.peers.torch_peers import TorchPeers

        return TorchPeers(timeout_s=self.options.network.peer_timeout_s)

    def compactor(self, context: Context, options: CompactOptions, *, rounds: bool = False) -> Compactor:
        """Return what makes merged patches and keyframes; it reads much, and nothing twice, so past the cache.

        With ``rounds`` it merges the contributions to outer rounds as well.
        """
        stores = self.stores
        if stores.cache is not None:
            context = dataclasses.replace(context, store=stores.below_cache, copies=None)
        log = self.outer_log() if rounds else None
        return Compactor(context, self.reader, self.writer(), self._around.new_id, options, log)

    def collector(self, pool: Executor) -> Collector:
        """Return what retires and deletes versions.

        Raises:
            InvalidArgument: this is a service.
        """
        if self.stores.gateway is not None:
            raise InvalidArgument(f"{self.url} is a service, which collects by itself: go to the bucket")
        store, new_id = self.stores.store, self._around.new_id
        each = ParallelMap(pool)
        return Collector(store, self.run, self.reader, self.writer(), new_id, self.outer_log(), each=each)

    def countersigning(self, pool: Executor) -> Countersigning:
        """Return what finds and answers for refused records.

        Raises:
            InvalidArgument: this is a service.
        """
        self.check_process()
        if self.stores.gateway is not None:
            raise InvalidArgument(f"{self.url} is a service, which takes no countersignatures: go to the bucket")
        self.stores.write_at_home()
        return Countersigning(self.stores.store, self.reader, self.options.signer, each=ParallelMap(pool))

    def threads(self, name: str) -> Executor:
        """Return threads that wait for the store, for the caller to end."""
        return self._fetchers(name)

    def warm_up(self, model: Model | None) -> None:
        """Compile the kernels for a model, or for host memory; see ``Registry.warm_up``."""
        views = None if model is None else read_model(model)
        device = None if views is None else self.placement(views)
        if views is None or device is None:
            backend_of(self.options.compute.backend).warm_up(2)
            return
        from pulse_registry.gpu.warm_up import warm_up

        warm_up({view.dtype for view in views.values()}, device)

    def end(self, timeout: float | None = None) -> BaseException | None:
        """Wait for what is under way, and close; return the failure of a push that nobody has seen. Idempotent.

        Raises:
            StoreUnavailable: something was not done in time, and goes on.
        """
        if not self._owner.is_current:
            return None
        closing, prefetches = Closing(self.run, timeout), list(self.puller.prefetches)
        for prefetch in prefetches:
            prefetch.stop()
        with self._lock:
            self._closed = True
            publisher, pools = self.publisher, self._pools
        if publisher is not None:
            publisher.close(closing)
        for prefetch in prefetches:
            closing.wait(prefetch.under_way)
            prefetch.close()
        if self.background is not None:
            self.background.close(closing)
        for pool in pools:
            pool.shutdown(wait=True)
        self.puller.close()
        self.stores.close_cache()
        if self._reporter is not None:
            self._reporter.close()
        if self._listening is not None:
            self._listening.close()
        if self._lease is not None:
            self._lease.close()
        for peers in (self._push_peers, self.options.peers, *self._outer_peers):
            if peers is not None:
                peers.close()
        if self.options.owns_store:
            self.stores.close_connections()
        return publisher.unseen() if publisher is not None else None

    def _base(self) -> RunAsBase | None:
        """Return what this run is to begin with, if the options name it."""
        named, options = self.options.push.base, self.options

        def opened(run: str) -> Runtime:
            push = dataclasses.replace(options.push, base=None)
            alone = dataclasses.replace(
                options, push=push, name=None, on_result=None, owns_store=False, peers=None, push_peers=None
            )
            return Runtime(self._root, run, alone, self._around)

        return None if named is None else RunAsBase(named, self.run, opened)

    def _check_open(self) -> None:
        if self._closed:
            raise InvalidArgument("the registry was closed; open it again")

    def _fetchers(self, name: str) -> Executor:
        return self._around.threads(FETCH_THREADS, name)

    def _log_reader(self) -> LogReader:
        guard = self._pin_guard()
        parallel = None if self.stores.gateway is not None else self._around.threads  # a service gives them by the page
        return LogReader(self.stores.store, self.run, guard, parallel, events=self.events)

    def _pin_guard(self, *, outer: bool = False) -> PinGuard | None:
        if (trust := self.options.trust) is None:
            return None
        seen = state_folder(trust.state_dir, self.url)
        return PinGuard(trust, self.url, self.run, seen, events=self.events, clock=self._around.clock, outer=outer)

    def _name_of_worker(self) -> str | None:
        name, peers = self.options.name, self.options.peers
        if name is None:
            return None
        return checked_worker(name if peers is None else rank_name(name, peers.rank, peers.size))

    def _reporting(self) -> Reporter | None:
        name, gateway = self._name, self.stores.gateway
        if name is None or not isinstance(gateway, TakesReports):
            return None
        reporter = Reporter(gateway, self.run, name)
        weakref.finalize(self, only_in_this_process(reporter.stop))
        return reporter

    def _listened(self) -> Listening | None:
        listener = self.options.on_result
        if listener is None:
            return None
        listening = Listening(self.run, listener)
        weakref.finalize(self, only_in_this_process(listening.stop))
        return listening

    def _leasing(self) -> LeaseKeeper | None:
        name, seconds, around = self._name, self.options.pull.lease_seconds, self._around
        if name is None or seconds is None:
            return None
        lease = ReaderLease(
            self.stores.store,
            self.run,
            f"{name}-{self.reader_id[:8]}",
            seconds,
            events=self.events,
            signer=self.options.signer,
            monotonic=around.monotonic,
        )
        keeper = LeaseKeeper(lease)
        weakref.finalize(self, only_in_this_process(keeper.stop))
        return keeper

    def _tell_what_compiles(self) -> None:
        waits = what_compiles(self.options.compute.backend)
        if waits is not None:
            self.events.tell(Event(EventKind.KERNELS_NOT_CACHED, self.run, waits))

    def _tell_placement(self, why: str) -> None:
        self.events.tell(Event(EventKind.GPU_NOT_USED, self.run, why))

    def _applied(self, result: PullResult) -> None:
        if self._lease is not None:
            self._lease.hold(result.version)
        if self._reporter is not None:
            self._reporter.tell(result)
        if self._listening is not None and (result.objects or result.changed):
            self._listening.tell(result)
        for prefetch in list(self.puller.prefetches):
            prefetch.wake()

    def _compacting(self, context: Context) -> Background:
        """Return a compactor with threads of its own, so that the pushes keep theirs."""
        thread, pool, fetchers = (self._around.threads(count, "pulse-compact") for count in (1, 1, 2))
        own = dataclasses.replace(context, pool=pool, fetchers=fetchers)
        return Background(self.compactor(own, CompactOptions()), thread, (pool, fetchers), self.events, self.run)
