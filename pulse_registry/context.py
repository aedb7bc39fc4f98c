"""Context: what pushes and pulls of a run both work with; made once, shared by all of them.

It knows nothing of shadows (push), of destinations (pull) and of devices.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from pulse_kernels import Backend
from pulse_registry.events import Events
from pulse_registry.log import RunState
from pulse_registry.log.layouts import fetch_layout
from pulse_registry.process.parallel import Map, ParallelMap
from pulse_registry.store import Store
from pulse_registry.store.prices import USUAL, Prices
from pulse_registry.weights.cell_space import Geometry


class Copies(Protocol):
    """A cache of copies of stored objects."""

    def discard(self, key: str) -> bool:
        """Drop the copy of an object, by its key below the run; tell whether there was one."""
        ...


@dataclass(frozen=True, slots=True)
class Context:
    """Store, kernels, threads and folders of a run.

    Attributes:
        store: scoped to the run.
        backend: of the kernels, in host memory.
        pool: with a thread for each core.
        fetchers: threads for what waits for the store.
        spool: folder for keyframes on their way; None for the system's temporary folder.
        in_memory: whether keyframes on their way to weights are in memory, whatever these are.
        events: hear of objects that were avoided.
        refresh: reads what is new in the run's log; None: the state at hand is all there is.
        copies: a cache of the store; None: there is none.
        prices: returns those by which a route is chosen.
    """

    store: Store
    backend: Backend
    pool: Executor
    fetchers: Executor
    spool: Path | None
    events: Events = field(default_factory=Events)
    refresh: Callable[[], RunState] | None = None
    copies: Copies | None = None
    prices: Callable[[], Prices] = lambda: USUAL
    in_memory: bool = False
    _geometries: dict[str, Geometry] = field(default_factory=dict)

    @property
    def map_(self) -> Map:
        """The pool's map."""
        return ParallelMap(self.pool)

    @property
    def fetch_map(self) -> Map:
        """The fetchers' map."""
        return ParallelMap(self.fetchers)

    def geometry(self, layout_id: str) -> Geometry:
        """Return a stored layout's geometry; fetched once."""
        if layout_id not in self._geometries:
            self._geometries[layout_id] = Geometry(fetch_layout(self.store, layout_id))
        return self._geometries[layout_id]
