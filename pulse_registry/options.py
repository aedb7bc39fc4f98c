"""Options of a registry: how it pushes, pulls and computes, what it sends where, and what it keeps on this host.

Each checks its ranges when it is made, and raises InvalidArgument.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import get_args

from pulse_kernels import BackendName
from pulse_registry.cache import CacheFolder
from pulse_registry.errors import InvalidArgument
from pulse_registry.events import Listener
from pulse_registry.peers.peers import TIMEOUT_S, Peers
from pulse_registry.process.cores import checked_threads
from pulse_registry.pull.base_check import BaseCheck, pulls_a_check
from pulse_registry.push.options import PushOptions
from pulse_registry.results import ResultListener
from pulse_registry.signing import Trust
from pulse_registry.weights.backend import check_backend
from pulse_registry.weights.device import DeviceName, Placement
from pulse_registry.weights.nonfinite import NonFinite, check_policy
from pulse_schemas import Signer

__all__ = ["CacheOptions", "ComputeOptions", "NetworkOptions", "Options", "PullOptions", "PushOptions"]


@dataclass(frozen=True, slots=True)
class PullOptions:
    """How a worker pulls.

    Attributes:
        check: which cells of a worker's weights are compared with the version that they are taken for, before a pull
            changes some: ``touched``, those that change; ``all``, all of them, by a pass over the weights; n, all of
            them at every n-th pull.
        nonfinite: what becomes of weights that are NaN or infinite, of those that a pull changes: ``allow`` does not
            look, ``warn`` tells of them as an event, ``refuse`` raises InvalidModel, and nothing is changed.
        lease_seconds: how long the lease of a registry with a name is good after it was written, which is done when a
            third of that is over; None takes no lease. Without one, a worker that was away for longer than versions are
            kept takes a keyframe.
        undo_share: what is kept to go back in memory, at most, as a share of the weights' bytes. A step has 8 bytes for
            each BF16 cell that it changes; one that changes all of them is kept from a share of 4 on.
        spool: a folder for keyframes on their way, where a pull after one that died finds what it had fetched, and for
            a compactor's copy of the weights; None takes it from PULSE_SPOOL. ``":memory:"`` is no folder: keyframes on
            their way to weights are in memory alone, as large as the weights, until these are changed. Without either,
            keyframes are fetched into memory where that is as good, and the rest goes where TMPDIR says, or onto the
            system's disk.
        host_copy: with a process group, ranks that hold parts of tensors may keep one whole copy of the model in the
            memory of each host, from the first version on whose patches are of coder ``class``, which are decoded from
            whole groups of cells. Without it, such ranks need coder ``gap``. ``Registry.verify`` of a model is then a
            collective, as pulls are.
    """

    check: BaseCheck = "touched"
    nonfinite: NonFinite = "allow"
    lease_seconds: float | None = 3600.0
    undo_share: float = 0.05
    spool: str | os.PathLike[str] | None = None
    host_copy: bool = False

    def __post_init__(self) -> None:
        """Check the ranges."""
        pulls_a_check(self.check)
        check_policy(self.nonfinite)
        if self.lease_seconds is not None and not 0 < self.lease_seconds < float("inf"):
            raise InvalidArgument(f"lease_seconds is {self.lease_seconds}; it is a number over 0, or None for no lease")
        if not 0 <= self.undo_share < float("inf"):
            raise InvalidArgument(f"undo_share is {self.undo_share}; it is a share of the weights' bytes, from 0 on")


@dataclass(frozen=True, slots=True)
class ComputeOptions:
    """Where weights are worked on, and by how many threads.

    Attributes:
        backend: of the kernels in host memory: ``auto``, ``numba`` or ``reference``.
        threads: that compute, at most; None: one for each core that this process may use, by its affinity and its
            control groups. What waits for the store has threads of its own, which compute nothing.
        device: ``auto`` works on a GPU where the model's tensors are on one and the kernels run there (they are tried
            first; an event ``gpu_not_used`` tells why not), else in host memory; ``gpu`` raises InvalidArgument
            instead; ``cpu`` always works in host memory. Or a rule of yours.
    """

    backend: BackendName = "auto"
    threads: int | None = None
    device: DeviceName | Placement = "auto"

    def __post_init__(self) -> None:
        """Check the ranges."""
        check_backend(self.backend)
        checked_threads(self.threads)
        if not (callable(self.device) or self.device in get_args(DeviceName)):
            raise InvalidArgument(f"device is {self.device!r}; it is one of {', '.join(get_args(DeviceName))}")


@dataclass(frozen=True, slots=True)
class NetworkOptions:
    """What is sent where, and what a request costs.

    Attributes:
        allow_http: whether a token may go over ``http://`` to another machine, where others may read it; None takes it
            from PULSE_ALLOW_HTTP, or refuses.
        object_cost: bytes that a pull fetches rather than one more object; None: what the link to the store carries
            during one request, as the pulls of this process find it.
        cell_cost: bytes that a pull fetches rather than decode one more changed cell, 0: it fetches the fewest bytes;
            None: what the link carries while a thread decodes one, as they find it.
        peer_timeout_s: how long the ranks of a sharded model wait for one that is silent, in seconds: as long as torch
            does, if the same steps take some ranks much longer than others.
    """

    allow_http: bool | None = None
    object_cost: int | None = None
    cell_cost: int | None = None
    peer_timeout_s: float = TIMEOUT_S

    def __post_init__(self) -> None:
        """Check the ranges."""
        if not self.peer_timeout_s > 0:
            raise InvalidArgument(f"peer_timeout_s is {self.peer_timeout_s}; it is a time in seconds, over 0")
        for name, price in (("object_cost", self.object_cost), ("cell_cost", self.cell_cost)):
            if price is not None and price < 0:
                raise InvalidArgument(f"{name} is {price}; it is a number of bytes, from 0 on")


@dataclass(frozen=True, slots=True)
class CacheOptions:
    """The cache of a host, in which processes of one user share what they fetch: each object is downloaded once.

    Attributes:
        folder: of the cache, made if need be; None takes it from PULSE_CACHE, or there is none; "" is none.
        max_bytes: what it takes at most; None takes it from PULSE_CACHE_BYTES, or is half of its disk.
    """

    folder: str | os.PathLike[str] | None = None
    max_bytes: int | None = None

    def __post_init__(self) -> None:
        """Check the ranges."""
        if self.max_bytes is not None and self.max_bytes < 1:
            raise InvalidArgument(f"max_bytes is {self.max_bytes}; it is a number of bytes, from 1 on")


@dataclass(frozen=True, slots=True)
class Options:
    """How one run of a store is worked with: what ``open`` makes of its arguments and of the environment.

    Attributes:
        push: how to publish.
        pull: how to pull.
        compute: where weights are worked on.
        network: what is sent where.
        name: of the worker or trainer: in reports to a service of its pulls or pushes, and in its lease.
        owns_store: close the store's connections with the registry.
        compile_ahead: compile the kernels in the background, from the first call on that needs one; and tell at once,
            not then, where they are not on disk.
        on_event: is told of events, from any thread.
        on_result: is told of pushes and pulls, from a thread of its own.
        signer: signs what is written.
        trust: the keys whose records are believed; None believes the store.
        cache: of this host, through which objects are read; None: all come from the store.
        peers: the ranks that pull together; None: each by itself.
        push_peers: makes the same ranks for pushes, which talk in a thread of their own; None: ``peers``, of which then
            one thread at a time may make use.
    """

    push: PushOptions = field(default_factory=PushOptions)
    pull: PullOptions = field(default_factory=PullOptions)
    compute: ComputeOptions = field(default_factory=ComputeOptions)
    network: NetworkOptions = field(default_factory=NetworkOptions)
    name: str | None = None
    owns_store: bool = False
    compile_ahead: bool = False
    on_event: Listener | None = None
    on_result: ResultListener | None = None
    signer: Signer | None = None
    trust: Trust | None = None
    cache: CacheFolder | None = None
    peers: Peers | None = None
    push_peers: Callable[[], Peers] | None = None
