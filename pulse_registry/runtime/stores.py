"""Store stack of a run: measured, retried, below the run's prefix, and cached on this host."""

from __future__ import annotations

import functools
from collections.abc import Callable
from concurrent.futures import Executor

from pulse_registry.cache import CachedStore, CacheFolder
from pulse_registry.client.connect import HasConnections
from pulse_registry.events import Events
from pulse_registry.log.mirror_mark import read_mark
from pulse_registry.options import NetworkOptions
from pulse_registry.pull.fetch import FETCH_THREADS
from pulse_registry.runtime.dependencies import Dependencies
from pulse_registry.store import RetryPolicy, RunStore, Store
from pulse_registry.store.prices import Prices
from pulse_registry.store.wrappers.measured import MeasuredStore, ReadTimes


class StoreStack:
    """The stores of a run, one over the other.

    Attributes:
        root: the one of all runs.
        store: the topmost one: all reads and writes of the run go through it.
        below_cache: the one that gives the stored bytes, and no copies of them.
        cache: of this host; None: there is none.
        gateway: the service behind the store; None: it is a bucket.
        patience: repeats what is no single call of a store, for as long as that would be.
        prices: returns those of routes, as they were set or measured.
    """

    def __init__(
        self,
        store: Store,
        run: str,
        dependencies: Dependencies,
        events: Events,
        *,
        network: NetworkOptions,
        cache: CacheFolder | None,
    ) -> None:
        """Put them together; no I/O yet."""
        times = ReadTimes(network.object_cost, network.cell_cost)
        timed = MeasuredStore(store, times, dependencies.monotonic)
        self.prices: Callable[[], Prices] = times.prices
        self.gateway = store.gateway()
        self.root = dependencies.retrying(timed)
        self.below_cache: Store = RunStore(self.root, run)
        self.cache: CachedStore | None = None
        if cache is not None:
            threads: Callable[[], Executor] = functools.partial(dependencies.threads, FETCH_THREADS, "pulse-cache")
            self.cache = CachedStore(self.below_cache, cache, run, events, threads)
        self.store: Store = self.below_cache if self.cache is None else self.cache
        self._connections = store if isinstance(store, HasConnections) else None
        self.patience, self._run = RetryPolicy(clock=dependencies.monotonic, sleep=dependencies.sleep), run

    def write_at_home(self) -> None:
        """Where there are several roots, read and write the run at its home alone from now on.

        Raises:
            As ``Roots.write_at_home``.
        """
        if (roots := self.root.roots()) is not None:
            self.patience(lambda: roots.write_at_home(self._run))

    def home_of(self, run: str) -> Store:
        """Return the root that a run of it is written at: this one, or, of several, the run's home by itself.

        Raises:
            As ``Roots.home``.
        """
        roots = self.root.roots()
        return self.root if roots is None else self.patience(lambda: roots.home(run))

    def source(self) -> str | None:
        """Return of what root the run is a copy here; None where it is none, or where other roots were asked as well.

        Raises:
            CorruptObject, UnsupportedFormat, AccessDenied, StoreUnavailable: it can't be told.
        """
        if self.gateway is not None or self.root.roots() is not None:
            return None
        mark = read_mark(self.below_cache)
        return None if mark is None else mark.source

    def close_cache(self) -> None:
        """End the cache's threads."""
        if self.cache is not None:
            self.cache.close()

    def close_connections(self) -> None:
        """Close the connections of the store at the bottom."""
        if self._connections is not None:
            self._connections.close()
