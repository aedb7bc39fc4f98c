"""The plain way to meet a delta with the weights that it starts from, to hold the library's own to."""

from __future__ import annotations

from pulse_kernels import Backend
from pulse_registry.format.sparse_update import Delta, SparseUpdate
from pulse_registry.weights.arrays import Weights
from pulse_registry.weights.cell_space import Group


def resolve(backend: Backend, group: Group, delta: Delta, weights: Weights) -> SparseUpdate:
    """Return the change that a delta makes of these weights."""
    old = weights.gather(backend, group, delta.index)
    return SparseUpdate(group, delta.index, old, backend.move(old, delta.distance, group.cell_type))
