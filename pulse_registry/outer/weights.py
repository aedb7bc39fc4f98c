"""A trainer's outer state: the weights of the round's start, the momentum, and the residual of what it has not sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pulse_kernels import Backend, Cells
from pulse_kernels.protocol import Floats, OuterLoops, OuterRates
from pulse_registry.errors import InvalidModel
from pulse_registry.outer.mean import GroupLevels, step_group
from pulse_registry.weights.arrays import Weights
from pulse_registry.weights.cell_space import Geometry, Group
from pulse_registry.weights.digest import Digest
from pulse_registry.weights.model import View, layout_of


@dataclass(frozen=True, slots=True)
class Gate:
    """What the gate passes: how many cells, and the sum of their squares."""

    count: int
    square: float


class OuterWeights:
    """Float32 arrays of all cells of a BF16 layout, in its flat order: 12 bytes a cell in host memory.

    Attributes:
        geometry: of the versions.
        theta: weights that all members hold; a version is these, rounded to BF16.
        momentum: of the outer optimizer; all members hold the same.
        residual: of this member alone.
    """

    def __init__(self, geometry: Geometry, backend: Backend, loops: OuterLoops) -> None:
        """Allocate; all cells are 0.

        Raises:
            InvalidModel: a tensor is not BF16.
        """
        for tensor in geometry.layout.tensors:
            if tensor.dtype != "BF16":
                raise InvalidModel(
                    f"tensor {tensor.name!r} is {tensor.dtype}: outer rounds are of float32 masters alone"
                )
        self.geometry, self._backend, self._loops = geometry, backend, loops
        self.theta, self.momentum, self.residual = (np.zeros(geometry.cells, np.float32) for _ in range(3))

    def begin(self, version: Weights) -> None:
        """Take the weights of a version; there is no momentum, and nothing is left to send."""
        for group in self.geometry.groups:
            cells = version.copy_of(group).astype(np.uint32) << 16
            self._of(self.theta, group)[:] = cells.view(np.float32)
        self.momentum[:] = 0
        self.residual[:] = 0

    def live(self, views: Mapping[str, View]) -> Weights:
        """Return a model's float32 tensors as cells to read and write.

        Raises:
            InvalidModel: a tensor is of another dtype, name or shape.
        """
        layout = layout_of(views, "keep")
        mine = [(one.name, one.shape) for one in self.geometry.layout.tensors]
        for tensor in layout.tensors:
            if tensor.dtype != "F32":
                raise InvalidModel(
                    f"tensor {tensor.name!r} is {tensor.dtype}: outer rounds are of float32 masters alone"
                )
        if [(one.name, one.shape) for one in layout.tensors] != mine:
            raise InvalidModel("the model's tensors are not those that the rounds began with, by name and shape")
        return Weights.into(Geometry(layout), views)

    def collect(self, live: Weights) -> None:
        """Add to the residual what the weights have moved since the round's start.

        Raises:
            InvalidModel: a sum is NaN or infinite; nothing was changed.
        """
        kept = self.residual.copy()
        for group in self.geometry.groups:
            local = np.concatenate([live.cells(one.tensor, slice(one.start, one.stop)) for one in group.spans])
            residual = self._of(self.residual, group)
            if not self._loops.collect(self._of(self.theta, group), local.view(np.float32), residual):
                place = group.start + int(np.argmin(np.isfinite(residual)))
                self.residual = kept
                raise InvalidModel(f"the pseudo-gradient is not finite: {self._name(place)}; nothing was sent")

    def measured(self, gain: float) -> Gate:
        """Return what the gate passes."""
        found = [
            self._loops.square(self._of(self.theta, group), self._of(self.residual, group), gain)
            for group in self.geometry.groups
        ]
        return Gate(sum(count for count, _ in found), sum(square for _, square in found))

    def gated(self, gain: float, exponent: int, weight: int) -> list[tuple[Group, GroupLevels]]:
        """Return what is sent, by group; the residual stays as it is until ``settle``.

        Raises:
            InvalidModel: a value is too large for its exponent to be taken exactly.
        """
        limit, found = np.ldexp(np.float32(1), 24 + exponent), []
        for group in self.geometry.groups:
            residual = self._of(self.residual, group)
            if len(residual) and np.abs(residual).max() >= limit:
                place = group.start + int(np.abs(residual).argmax())
                raise InvalidModel(
                    f"the pseudo-gradient is over 2^24 times what levels are steps of: {self._name(place)}; training "
                    "has left the others: lower its learning rate, and begin again from the newest version"
                )
            index, levels = self._loops.gate(self._of(self.theta, group), residual, gain, exponent)
            if len(index):
                found.append((group, GroupLevels(index, levels, exponent, weight)))
        return found

    def settle(self, sent: Sequence[tuple[Group, GroupLevels]]) -> None:
        """Take from the residual what was sent, exactly: once its record is in the log, and never before."""
        for group, part in sent:
            self._loops.settle(self._of(self.residual, group), part.index, part.levels, part.exponent)

    def step(self, parts: Mapping[int, Sequence[GroupLevels]], exponent: int, weight: int, rates: OuterRates) -> None:
        """Make a round's outer step.

        Args:
            parts: of all contributions, by number of the group.
            exponent: the least of them.
            weight: of all members of the round.
            rates: of the round.
        """
        for group in self.geometry.groups:
            theta, momentum = self._of(self.theta, group), self._of(self.momentum, group)
            step_group(self._loops, theta, momentum, parts.get(group.number, ()), exponent, weight, rates)

    def store(self, live: Weights) -> None:
        """Write the weights into a model."""
        for group in self.geometry.groups:
            done = group.start
            for span in group.spans:
                size = span.stop - span.start
                live.store(span.tensor, span.start, self.theta[done : done + size].view(np.uint32))
                done += size

    def version_cells(self, group: Group) -> Cells:
        """Return the group's weights, rounded to BF16."""
        cells = np.empty(group.cells, np.uint16)
        self._backend.cast_f32(self._of(self.theta, group).view(np.uint32), cells)
        return cells

    def digest(self) -> Digest:
        """Return the state digest of the version that these weights are."""
        lanes = (self._backend.digest(self.version_cells(group), group.start) for group in self.geometry.groups)
        return sum((Digest(*pair) for pair in lanes), Digest())

    def _of(self, cells: Floats, group: Group) -> Floats:
        return cells[group.start : group.start + group.cells]

    def _name(self, place: int) -> str:
        number = next(k for k, size in enumerate(self.geometry.sizes) if place < self.geometry.tensor_start(k) + size)
        within = place - self.geometry.tensor_start(number)
        return f"tensor {self.geometry.layout.tensors[number].name!r} at flat index {within}"
