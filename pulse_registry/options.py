"""Options of a registry: how it pushes, pulls and computes, whom it believes, and who hears of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from pulse_kernels import BackendName
from pulse_registry.cache import CacheFolder
from pulse_registry.events import Listener
from pulse_registry.pull.base_check import BaseCheck
from pulse_registry.push.options import PushOptions
from pulse_registry.signing import Trust
from pulse_registry.weights.device import DeviceName, Placement
from pulse_registry.weights.nonfinite import NonFinite
from pulse_schemas import Signer


@dataclass(frozen=True, slots=True)
class ComputeOptions:
    """Where weights are worked on, and by how many threads.

    Attributes:
        backend: of the kernels in host memory.
        threads: that compute, at most; None: one for each core that this process may use.
        device: where models are worked on, by name or by a rule.
        ahead: compile the kernels in the background, from the first call on that needs one; and tell now, not then,
            where they are not on disk.
    """

    backend: BackendName = "auto"
    threads: int | None = None
    device: DeviceName | Placement = "auto"
    ahead: bool = False


@dataclass(frozen=True, slots=True)
class PullOptions:
    """How a worker pulls.

    Attributes:
        check: which cells a pull checks before it changes some, unless it says so itself.
        undo_share: what a worker keeps to go back in memory, at most, as a share of the weights' bytes.
        object_cost: bytes that a pull fetches rather than one more object; None: as the link is found to be.
        downloads: folder for keyframes on their way, where a pull after one that died finds what it had fetched; None
            for memory, or a temporary folder.
    """

    check: BaseCheck = "touched"
    undo_share: float = 0.05
    object_cost: int | None = None
    downloads: Path | None = None


@dataclass(frozen=True, slots=True)
class Options:
    """How one run of a registry is worked with.

    Attributes:
        push: how to publish.
        pull: how to pull.
        compute: where weights are worked on.
        name: of the worker or trainer: in reports to a service of its pulls or pushes, and in its lease.
        lease_seconds: how long a worker's lease is good after it was written; None: it takes none.
        owns_store: close the store's connections with the registry.
        on_event: is told of events, from any thread.
        signer: signs what is written.
        trust: the keys whose records are believed; None believes the store.
        nonfinite: what becomes of weights that are NaN or infinite, pushed or pulled.
        cache: of this host, through which objects are read; None: all come from the store.
    """

    push: PushOptions = field(default_factory=PushOptions)
    pull: PullOptions = field(default_factory=PullOptions)
    compute: ComputeOptions = field(default_factory=ComputeOptions)
    name: str | None = None
    lease_seconds: float | None = 3600.0
    owns_store: bool = False
    on_event: Listener | None = None
    signer: Signer | None = None
    trust: Trust | None = None
    nonfinite: NonFinite = "allow"
    cache: CacheFolder | None = None
