"""A versioned registry of model weights on object storage.

A trainer pushes the few cells that a step changed; a worker at any version, or at none, pulls any other version, bit
for bit, and changes its live weights in place.

Examples:
    >>> import numpy as np
    >>> import pulse_registry
    >>> registry = pulse_registry.open("memory://docs", run="demo", push=pulse_registry.PushOptions(dtype="keep"))
    >>> weights = {"layer.weight": np.zeros((4, 4), np.float32)}
    >>> registry.push(1, weights).kind
    'keyframe'
    >>> weights["layer.weight"][1, 2] = 0.5
    >>> registry.push(2, weights).changed
    1
    >>> worker = {"layer.weight": np.empty((4, 4), np.float32)}
    >>> registry.pull("latest", into=worker).version
    1
    >>> np.array_equal(worker["layer.weight"], weights["layer.weight"])
    True
"""

from pulse_registry.compaction import CompactOptions, Compactor
from pulse_registry.errors import (
    AccessDenied,
    AlreadyExists,
    BaseMismatch,
    Behind,
    Conflict,
    CorruptObject,
    Diverged,
    Fenced,
    Forked,
    Gone,
    InvalidArgument,
    InvalidModel,
    LayoutMismatch,
    Mirrored,
    NotFound,
    PeerLost,
    PulseError,
    QuorumLost,
    StoreUnavailable,
    UnsupportedFormat,
    Untrusted,
)
from pulse_registry.events import Event, EventKind
from pulse_registry.opening import open
from pulse_registry.options import CacheOptions, ComputeOptions, NetworkOptions, PullOptions, PushOptions
from pulse_registry.outer.result import RoundResult
from pulse_registry.outer.session import OuterSession
from pulse_registry.pull.apply import Staged
from pulse_registry.pull.prefetch import Prefetch
from pulse_registry.pull.route import Leg, Route
from pulse_registry.pull.tensor_change import TensorChange
from pulse_registry.push.files import Files
from pulse_registry.registry import Registry
from pulse_registry.results import PullResult, PushResult, Version
from pulse_registry.retention import GcResult, RetentionPolicy
from pulse_registry.signing import SigningKey, Trust
from pulse_registry.signing.countersigning import RefusedRecord
from pulse_registry.stats import RunStats
from pulse_registry.timeline import Timeline
from pulse_registry.weights.slice import Slice
from pulse_schemas import Layout, Signer

__all__ = [
    "AccessDenied",
    "AlreadyExists",
    "BaseMismatch",
    "Behind",
    "CacheOptions",
    "CompactOptions",
    "Compactor",
    "ComputeOptions",
    "Conflict",
    "CorruptObject",
    "Diverged",
    "Event",
    "EventKind",
    "Fenced",
    "Files",
    "Forked",
    "GcResult",
    "Gone",
    "InvalidArgument",
    "InvalidModel",
    "Layout",
    "LayoutMismatch",
    "Leg",
    "Mirrored",
    "NetworkOptions",
    "NotFound",
    "OuterSession",
    "PeerLost",
    "Prefetch",
    "PullOptions",
    "PullResult",
    "PulseError",
    "PushOptions",
    "PushResult",
    "QuorumLost",
    "RefusedRecord",
    "Registry",
    "RetentionPolicy",
    "RoundResult",
    "Route",
    "RunStats",
    "Signer",
    "SigningKey",
    "Slice",
    "Staged",
    "StoreUnavailable",
    "TensorChange",
    "Timeline",
    "Trust",
    "UnsupportedFormat",
    "Untrusted",
    "Version",
    "open",
]
__version__ = "0.1.0"
