"""What slices are given of a version that another rank of the node has staged whole: its changes, or its cells."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pulse_registry.format.sparse_update import HostUpdate, SparseUpdate
from pulse_registry.process.node_memory import Memory
from pulse_registry.pull.route import Route
from pulse_registry.weights.arrays import Weights
from pulse_registry.weights.cell_space import Geometry
from pulse_registry.weights.slice_map import SliceMap

_ALIGN = 8


@dataclass(frozen=True, slots=True)
class Given:
    """What leads the slices of a rank to a version; verified by the rank that has staged it.

    Attributes:
        route: that it has taken; without a leg on the other ranks, which fetch nothing.
        base: the version that ``changes`` start from.
        changes: of the whole layout; None: ``cells`` replace all.
        cells: of the slices, at the version.
    """

    route: Route
    base: int | None = None
    changes: HostUpdate | None = None
    cells: Weights | None = None


def packed_bytes(changes: HostUpdate) -> int:
    """Return how much memory ``pack`` needs."""
    parts = (part for change in changes.groups for part in (change.index, change.old, change.new))
    return _head(changes).nbytes + sum(_padded(part.nbytes) for part in parts)


def pack(changes: HostUpdate, memory: Memory) -> None:
    """Write changes into memory, as arrays that other processes read where they are."""
    at = 0
    for part in [_head(changes)] + [
        part for change in changes.groups for part in (change.index, change.old, change.new)
    ]:
        memory[at : at + part.nbytes] = np.ascontiguousarray(part).view(np.uint8)
        at += _padded(part.nbytes)


def unpack(geometry: Geometry, memory: Memory) -> HostUpdate:
    """Return what ``pack`` has written of a layout; its arrays are the memory's."""
    [count] = memory[:8].view(np.int64).tolist()
    head = memory[8 : 8 + 16 * count].view(np.int64).reshape(count, 2).tolist()
    at, found = 8 + 16 * count, list[SparseUpdate]()
    for number, cells in head:
        group = geometry.groups[number]
        arrays = []
        for dtype in (np.dtype(np.uint32), group.cell_type.dtype, group.cell_type.dtype):
            nbytes = cells * dtype.itemsize
            arrays.append(memory[at : at + nbytes].view(dtype))
            at += _padded(nbytes)
        index, old, new = arrays
        found.append(SparseUpdate(group, index, old, new))
    return HostUpdate(tuple(found))


def cells_of(slices: SliceMap, whole: Weights) -> Weights:
    """Return a copy of the cells of slices, of their local layout, from those of the whole layout.

    Raises:
        InvalidArgument: there is not enough memory for them.
    """
    found = Weights.empty(slices.local)
    for one in slices.slices:
        tensor = whole.cells(one.tensor, slice(0, slices.geometry.sizes[one.tensor]))
        found.store(one.number, 0, one.box.cut(0, tensor))
    return found


def _head(changes: HostUpdate) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the count of groups, and of each group its number and how many cells of it change."""
    rows = [(change.group.number, len(change.index)) for change in changes.groups]
    return np.array([len(rows), *(number for row in rows for number in row)], np.int64)


def _padded(nbytes: int) -> int:
    return -(-nbytes // _ALIGN) * _ALIGN
