"""Sparse updates: the changed cells as a diff finds them and as a patch stores them, each converted to the other.

A *delta* is (index, distance): it needs no base, adds up along a chain, and negates. A *sparse update* is (index, old,
new): a delta met with the cells it starts from; storing ``new`` applies it, storing ``old`` undoes it, both idempotent.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from pulse_kernels import Backend, Cells, Index
from pulse_kernels.nonfinite import first_nonfinite
from pulse_registry.weights.arrays import Weights
from pulse_registry.weights.cell_space import Group
from pulse_registry.weights.digest import Digest


@dataclass(frozen=True, slots=True)
class Delta:
    """Distances at strictly increasing group-local indices, none zero."""

    index: Index
    distance: Cells

    def __neg__(self) -> Delta:
        return Delta(self.index, (~self.distance) + self.distance.dtype.type(1))


@dataclass(frozen=True, slots=True)
class SparseUpdate:
    """Old and new cells of one group at strictly increasing group-local indices; old and new differ everywhere."""

    group: Group
    index: Index
    old: Cells
    new: Cells
    _sums: list[tuple[Digest, Digest]] = field(default_factory=list, repr=False, compare=False)

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return self.index.nbytes + self.old.nbytes + self.new.nbytes

    def delta(self, backend: Backend) -> Delta:
        """Return the change without its base."""
        return Delta(self.index, backend.distance(self.old, self.new, self.group.cell_type))

    def sums(self, backend: Backend) -> tuple[Digest, Digest]:
        """Return the sums of h over the old and over the new cells; computed once."""
        if not self._sums:
            old, new = backend.digest_changes(self.index, self.old, self.new, self.group.start)
            self._sums.append((Digest(*old), Digest(*new)))
        return self._sums[0]

    def apply(self, backend: Backend, weights: Weights) -> None:
        """Store the new cells."""
        weights.scatter(backend, self.group, self.index, self.new)

    def apply_to(self, backend: Backend, cells: Cells) -> None:
        """Store the new cells in a copy of the group's cells."""
        backend.scatter(cells, self.index, self.new)

    def undo_in(self, backend: Backend, cells: Cells) -> None:
        """Store the old cells in a copy of the group's cells."""
        backend.scatter(cells, self.index, self.old)

    def undo(self, backend: Backend, weights: Weights) -> None:
        """Store the old cells."""
        weights.scatter(backend, self.group, self.index, self.old)


class ModelUpdate(Protocol):
    """Sparse update of a model that a pull applies or undoes, on the model's device; the weights are not held."""

    @property
    def changed(self) -> int:
        """Cells that differ."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        ...

    def not_finite(self) -> int | None:
        """Return the flat index of the first new cell that is NaN or infinite, None if there is none."""
        ...


@dataclass(frozen=True, slots=True)
class HostUpdate:
    """A model's update in host memory: one sparse update a changed group, in group order."""

    groups: tuple[SparseUpdate, ...] = ()

    @property
    def changed(self) -> int:
        """Cells that differ."""
        return sum(len(change.index) for change in self.groups)

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return sum(change.nbytes for change in self.groups)

    def not_finite(self) -> int | None:
        """Return the flat index of the first new cell that is NaN or infinite, None if there is none."""
        for change in self.groups:
            place = first_nonfinite(change.new, change.group.cell_type)
            if place is not None:
                return change.group.start + int(change.index[place])
        return None


def join(backend: Backend, deltas: Iterable[Delta], group: Group) -> Delta:
    """Join the deltas of a chain into one, pairwise, so that k of them cost O(total log k)."""
    level = list(deltas)
    if not level:
        return Delta(np.empty(0, np.uint32), np.empty(0, group.cell_type.dtype))
    while len(level) > 1:
        joined = []
        for first, second in zip(level[::2], level[1::2], strict=False):
            joined.append(Delta(*backend.merge((first.index, first.distance), (second.index, second.distance))))
        level = joined + level[len(level) // 2 * 2 :]
    return level[0]
