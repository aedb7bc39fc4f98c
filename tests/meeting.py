"""The plain way to meet a delta with the weights that it starts from, to hold the library's own to."""

from __future__ import annotations

from pulse_kernels import Backend
from pulse_registry.change import Change, Delta
from pulse_registry.geometry import Group
from pulse_registry.weights import Weights


def resolve(backend: Backend, group: Group, delta: Delta, weights: Weights) -> Change:
    """Return the change that a delta makes of these weights."""
    old = weights.gather(backend, group, delta.index)
    return Change(group, delta.index, old, backend.move(old, delta.distance, group.cell_type))
