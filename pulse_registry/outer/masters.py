"""Masters: the float32 weights that a member trains, as outer rounds read and write them.

They come by groups of the versions, to the rank at which a group is at home; what it gives back goes to all who hold
cells of the group.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, Protocol, Self

import numpy as np

from pulse_kernels.protocol import Floats
from pulse_registry.errors import InvalidModel
from pulse_registry.weights.arrays import Weights
from pulse_registry.weights.cell_space import Geometry, Group
from pulse_registry.weights.model import View, layout_of
from pulse_schemas import Layout

ADVICE: Final = (
    "outer rounds are of float32 masters alone: train in float32, or pass a mapping of names to the tensors that are "
    "trained"
)


Take = Callable[[Mapping[str, View]], "Masters"]
"""Takes a model's tensors as they are now; a collective."""


class Masters(Protocol):
    """The float32 weights of a model; each method is a collective of the member's ranks."""

    @property
    def numbers(self) -> Sequence[int]:
        """Numbers of the groups of the versions that are at home here, in order."""

    def cells(self) -> Iterator[tuple[Group, list[Floats]]]:
        """Yield the groups that are at home here, in order, and their cells as they are now; all are to be taken.

        A group's cells come in spans that lie end to end, maybe lent.

        Raises:
            PulseError: on all ranks, at the end, what went wrong on one: then some groups have not come.
        """

    def store(self, read: Callable[[Group], Floats]) -> None:
        """Write all cells, as ``read`` returns them of the groups that are at home here.

        Raises:
            PulseError: on all ranks, what went wrong on one: then some cells are written, and others are not.
        """


class WholeMasters:
    """The weights of a model that one process holds; see ``Masters``."""

    def __init__(self, geometry: Geometry, live: Weights, views: Mapping[str, View] | None = None) -> None:
        """Take the weights.

        Args:
            geometry: of the versions.
            live: the versions' tensors in float32, or copies of those that are on another device.
            views: of the tensors by name, to which copies are written back.
        """
        self._geometry, self._live, self._views = geometry, live, views or {}
        self.numbers = range(len(geometry.groups))

    @classmethod
    def of(cls, geometry: Geometry, views: Mapping[str, View]) -> Self:
        """Take a model's tensors.

        Raises:
            InvalidModel: one is of another dtype, name or shape than the versions' layout has, or can't be written.
        """
        layout = layout_of(views, "keep")
        check_masters(geometry, layout)
        if all(view.on_host for view in views.values()):
            return cls(geometry, Weights.into(Geometry(layout), views))
        return cls(geometry, Weights.of(Geometry(layout), views), views)

    def cells(self) -> Iterator[tuple[Group, list[Floats]]]:
        """Yield all groups; see ``Masters.cells``."""
        for group in self._geometry.groups:
            cells = [self._live.cells(one.tensor, slice(one.start, one.stop)) for one in group.spans]
            yield group, [some.view(np.float32) for some in cells]

    def store(self, read: Callable[[Group], Floats]) -> None:
        """Write all cells; see ``Masters.store``."""
        for group in self._geometry.groups:
            cells, done = read(group).view(np.uint32), 0
            for span in group.spans:
                size = span.stop - span.start
                self._live.store(span.tensor, span.start, cells[done : done + size])
                done += size
        for tensor in self._live.geometry.layout.tensors if self._views else ():
            view = self._views[tensor.name]
            if not view.on_host:
                view.tensor.copy_(sys.modules["torch"].from_numpy(view.cells.view(np.float32)))


def check_masters(geometry: Geometry, layout: Layout) -> None:
    """Check that a model's tensors are float32, and those of the versions by name and shape.

    Raises:
        InvalidModel: one is not.
    """
    for tensor in layout.tensors:
        if tensor.dtype != "F32":
            raise InvalidModel(f"tensor {tensor.name!r} is {tensor.dtype}: {ADVICE}")
    here, there = ({one.name: one.shape for one in some.tensors} for some in (layout, geometry.layout))
    if here != there:
        name = min(name for name in here.keys() | there.keys() if here.get(name) != there.get(name))
        has, had = (f"of shape {some[name]}" if name in some else "not there" for some in (here, there))
        raise InvalidModel(
            f"the model's tensors are not those that the rounds began with, by name and shape: {name!r} is {has}, and "
            f"was {had}"
        )
