"""Changes of a staged version by tensor, for whoever keeps a copy of the weights in a form of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pulse_kernels import Cells
from pulse_registry.format.sparse_update import HostUpdate
from pulse_registry.weights.arrays import parts
from pulse_registry.weights.box import Positions
from pulse_registry.weights.cell_space import Geometry
from pulse_registry.weights.slice_map import SliceMap


@dataclass(frozen=True, slots=True, eq=False)
class TensorChange:
    """Cells of one tensor that a staged version changes; a tensor may come in several, which have no cell in common.

    Attributes:
        name: of the tensor.
        at: int64 [n]: flat indices in the whole tensor, row-major, strictly increasing.
        old, new: [n]: the cells as raw bits, in unsigned integers of the cells' width; ``new`` differs everywhere.
    """

    name: str
    at: Positions
    old: Cells
    new: Cells


def by_tensor(geometry: Geometry, update: HostUpdate, slices: SliceMap | None = None) -> Iterator[TensorChange]:
    """Yield what an update changes of each tensor, group by group.

    Args:
        geometry: that the update counts in; of slices, their local one.
        update: of a model, or of slices.
        slices: where these lie in the whole layout, whose names and indices are yielded.
    """
    layout = geometry.layout if slices is None else slices.geometry.layout
    for change in update.groups:
        for number, at, chosen in parts(change.group, change.index):
            tensor, where = number, at
            if slices is not None:
                one = slices.of_number(number)
                tensor, where = one.tensor, one.box.to_flat(at)
            yield TensorChange(layout.tensors[tensor].name, where, change.old[chosen], change.new[chosen])
