"""One patch as a link of a chain, to be followed forwards or backwards."""

from __future__ import annotations

from pulse_kernels import Backend, Cells
from pulse_registry.format.delta_step import DeltaStep
from pulse_registry.format.patch import Patch
from pulse_registry.format.sparse_update import Delta
from pulse_registry.weights.cell_space import Group


def link_of(backend: Backend, group: Group, patch: Patch, *, backwards: bool) -> DeltaStep:
    """Return what a patch changes of a group that it names; ``backwards`` needs coder ``gap``."""
    entry = patch.entries[group.number]

    def decode(base: list[Cells] | None) -> Delta:
        delta = patch.decode(backend, group, base)
        return -delta if backwards else delta

    sums = (entry.new_sum, entry.old_sum) if backwards else (entry.old_sum, entry.new_sum)
    return DeltaStep(decode, entry.coder == "class", *sums)
