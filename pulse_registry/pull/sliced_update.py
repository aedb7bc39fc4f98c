"""Sparse updates of slices: changes of groups of a whole layout as those of the local layout, and back."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence

import numpy as np

from pulse_kernels import Index
from pulse_registry.format.sparse_update import SparseUpdate
from pulse_registry.weights.arrays import parts
from pulse_registry.weights.box import Positions
from pulse_registry.weights.cell_space import Geometry, Group
from pulse_registry.weights.slice_map import Piece, SliceMap


def to_local(slices: SliceMap, change: SparseUpdate, pieces: Iterable[Piece] | None = None) -> list[SparseUpdate]:
    """Return a change of a group of the whole layout, of cells that are held, as changes of local groups.

    ``pieces`` are what the slices hold of it, where that is known.
    """
    found: list[SparseUpdate] = []
    for one, chosen, local in slices.split(change.group, change.index) if pieces is None else pieces:
        flat = local + slices.local.tensor_start(one.number)
        found += [
            SparseUpdate(group, index, change.old[chosen][part], change.new[chosen][part])
            for group, index, part in _cut(slices.local, flat)
        ]
    return found


def to_whole(slices: SliceMap, change: SparseUpdate, numbers: Container[int] | None = None) -> Iterator[SparseUpdate]:
    """Yield a change of a local group as changes of groups of the whole layout, slice by slice.

    Args:
        slices: where the cells lie.
        change: of a group of the local layout.
        numbers: of the slices whose cells are asked for; None: all.
    """
    for number, local, chosen in parts(change.group, change.index):
        if numbers is not None and number not in numbers:
            continue
        one, old, new = slices.of_number(number), change.old[chosen], change.new[chosen]
        for group, index, part in _cut(slices.geometry, one.box.to_flat(local) + one.start):
            yield SparseUpdate(group, index, old[part], new[part])


def of_tensors(change: SparseUpdate, numbers: Container[int]) -> Iterator[SparseUpdate]:
    """Yield what a change is of some tensors of its layout, each by itself."""
    for number, _, chosen in parts(change.group, change.index):
        if number in numbers:
            yield SparseUpdate(change.group, change.index[chosen], change.old[chosen], change.new[chosen])


def by_group(changes: Iterable[SparseUpdate]) -> tuple[SparseUpdate, ...]:
    """Return changes of cells that lie apart, one a group, in group order."""
    found: dict[int, list[SparseUpdate]] = {}
    for change in changes:
        found.setdefault(change.group.number, []).append(change)
    return tuple(united(parts) for _, parts in sorted(found.items()))


def united(parts: Sequence[SparseUpdate]) -> SparseUpdate:
    """Return changes of one group, of cells that lie apart, as one, in order of the cells."""
    if len(parts) == 1:
        return parts[0]
    index = np.concatenate([part.index for part in parts])
    old, new = (np.concatenate([getattr(part, side) for part in parts]) for side in ("old", "new"))
    if (index[1:] <= index[:-1]).any():
        order = np.argsort(index, kind="stable")
        index, old, new = index[order], old[order], new[order]
    return SparseUpdate(parts[0].group, index, old, new)


def _cut(geometry: Geometry, flat: Positions) -> Iterator[tuple[Group, Index, slice]]:
    """Yield the groups that hold cells by their flat indices, which rise and are of one tensor: group, index, which."""
    for number in geometry.groups.meeting(int(flat[0]), int(flat[-1]) + 1):
        group = geometry.groups[number]
        low, high = np.searchsorted(flat, [group.start, group.start + group.cells]).tolist()
        if low < high:
            yield group, (flat[low:high] - group.start).astype(np.uint32), slice(low, high)
