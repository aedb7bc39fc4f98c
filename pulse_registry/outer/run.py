"""The run that outer rounds are of: what a session asks of it, and of the process that it is in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from pulse_kernels import Backend, Cells
from pulse_registry.events import Events
from pulse_registry.log.clock import Clock, NewId, random_id, utc_now
from pulse_registry.log.guard import Guard
from pulse_registry.outer.masters import Take, WholeMasters
from pulse_registry.outer.versions import RunVersions
from pulse_registry.peers.lone import LonePeers
from pulse_registry.peers.peers import Peers
from pulse_registry.process.parallel import Map
from pulse_registry.store import Store
from pulse_registry.weights.cell_space import Geometry, Group
from pulse_registry.weights.model import Model
from pulse_schemas import Signer

Wait = Callable[[float, float, Callable[[float], object]], object]


@dataclass(frozen=True, slots=True)
class Run:
    """What a session needs of the run.

    Attributes:
        name: of the run.
        store: scoped to it.
        backend: computes.
        versions: its versions.
        newest: returns the number of the newest version, and its layout's id; makes the first one of a model if there
            is none.
        geometry: returns that of a layout that the run has.
        load: returns what reads the groups of a version, by their numbers.
        masters: returns what takes a model that is to have versions of some geometry.
        peers: the ranks that hold the model together; each of them has a session, and makes the same calls.
        wait: waits for what others commit, at most so long: pause between looks, seconds, and what pauses.
        signer: signs what this trainer says.
        guard: judges what the others say; None believes the store.
        threads: makes an executor, of so many threads and their name's beginning.
        each: calls a function on many groups, maybe in threads.
        events: hear of rounds that wait for long.
        clock: the time of day, which records carry; nothing is decided by it.
        new_id: gives write ids.
        spool: folder for checkpoints on their way; None for the usual one.
    """

    name: str
    store: Store
    backend: Backend
    versions: RunVersions
    newest: Callable[[Model], tuple[int, str]]
    geometry: Callable[[str], Geometry]
    load: Callable[[int, Geometry, Sequence[int]], Callable[[Group], Cells]]
    masters: Callable[[Geometry], Take] = lambda geometry: partial(WholeMasters.of, geometry)
    peers: Peers = field(default_factory=LonePeers)
    wait: Wait = lambda poll_s, timeout_s, sleep: sleep(min(poll_s, timeout_s))
    signer: Signer | None = None
    guard: Guard | None = None
    threads: Callable[[int, str], Executor] = ThreadPoolExecutor
    each: Map = map
    events: Events = field(default_factory=Events)
    clock: Clock = utc_now
    new_id: NewId = random_id
    spool: Path | None = None
