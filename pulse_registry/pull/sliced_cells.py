"""Sliced cells: the cells of a version's groups, read from the slices of a rank that hold them."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from typing import Any

import numpy as np

from pulse_kernels import Backend, Cells, Index
from pulse_registry.errors import InvalidArgument
from pulse_registry.format.sparse_update import Delta
from pulse_registry.weights.cell_space import Group
from pulse_registry.weights.digest import Digest
from pulse_registry.weights.slice_map import Chosen, Piece, SliceMap

_CHUNK = 1 << 20
"""Cells whose indices are made at a time."""


class SlicedCells:
    """Cells of the groups of a whole layout, as far as slices hold them; only read. See ``delta_step.GroupCells``."""

    def __init__(self, slices: SliceMap, cells: Callable[[int, Any], Cells]) -> None:
        """Take slices, and what reads some cells of a tensor of their local layout, by a `Where`."""
        self._slices, self._cells = slices, cells
        self._restricted: dict[int, tuple[Index, list[Piece]]] = {}

    def restrict(self, group: Group, delta: Delta) -> Delta:
        """Return what a delta changes of the cells that are held, and keep the pieces that it is of."""
        pieces = list(self._slices.split(group, delta.index))
        if len(pieces) == 1:
            [(one, chosen, local)] = pieces
            found = Delta(delta.index[chosen], delta.distance[chosen])
            self._restricted[group.number] = found.index, [(one, slice(0, len(local)), local)]
            return found
        every = np.arange(len(delta.index))
        entries = [every[part] for _, part, _ in pieces]
        places = np.concatenate(entries) if entries else every[:0]
        if (places[1:] < places[:-1]).any():  # slices of one tensor, side by side
            places = np.sort(places)
            parts: list[Chosen] = [places.searchsorted(part) for part in entries]
        else:
            stops = np.cumsum([len(part) for part in entries]).tolist()
            parts = [slice(stop - len(part), stop) for part, stop in zip(entries, stops, strict=True)]
        found = Delta(delta.index[places], delta.distance[places])
        kept = [(one, part, local) for (one, _, local), part in zip(pieces, parts, strict=True)]
        self._restricted[group.number] = found.index, kept
        return found

    def holds(self, group: Group) -> bool:
        """Tell whether slices hold all cells of a group."""
        return self._slices.holds(group)

    def pieces(self, group: Group, index: Index) -> Iterable[Piece]:
        """Return what slices hold of a group-local index; see ``SliceMap.split``."""
        known = self._restricted.get(group.number)
        return known[1] if known is not None and known[0] is index else self._slices.split(group, index)

    def forget(self, group: Group) -> None:
        """Give back what was kept of a group."""
        self._restricted.pop(group.number, None)

    def gather(self, backend: Backend, group: Group, index: Index) -> Cells:
        """Return the cells at group-local ``index`` (strictly increasing), all of which are held."""
        found = np.empty(len(index), group.cell_type.dtype)
        held = 0
        for one, chosen, local in self.pieces(group, index):
            found[chosen] = self._cells(one.number, local)
            held += len(local)
        if held != len(index):
            raise IndexError(f"{len(index) - held} cells of group {group.number} are in no slice")
        return found

    def step(
        self, backend: Backend, group: Group, index: Index, distance: Cells
    ) -> tuple[Cells, Cells, Digest, Digest]:
        """Return the cells at group-local ``index``, the same moved by ``distance``, and both sums of h."""
        old = self.gather(backend, group, index)
        new = backend.move(old, distance, group.cell_type)
        before, after = backend.digest_changes(index, old, new, group.start)
        return old, new, Digest(*before), Digest(*after)

    def spans(self, group: Group) -> list[Cells]:
        """Return the cells of a group that is held whole, as 1-D arrays, end to end."""
        held = self._slices.held(group)
        if any(part.slice.box.start is None for part in held):
            return [self.copy_of(group)]
        # Slices of one tensor come in any order.
        in_order = sorted(held, key=lambda part: part.slice.start + (part.slice.box.start or 0) + part.first)
        return [self._cells(part.slice.number, slice(part.first, part.stop)) for part in in_order]

    def where(self, group: Group) -> None:
        """Return nothing: slices lie as they may."""

    def copy_of(self, group: Group) -> Cells:
        """Return the cells of a group that is held whole, as one new array."""
        if not self._slices.holds(group):
            raise InvalidArgument(f"group {group.number} is held in part, and all of its cells are asked for")
        found = np.empty(group.cells, group.cell_type.dtype)
        for part in self._slices.held(group):
            for first in range(part.first, part.stop, _CHUNK):
                stop = min(first + _CHUNK, part.stop)
                index = self._slices.index_of(group, part, np.arange(first, stop, dtype=np.int64))
                found[index] = self._cells(part.slice.number, slice(first, stop))
        return found

    def share(self, backend: Backend, group: Group, speaks: Container[int] | None = None) -> Digest:
        """Return what the cells that are held of a group add to the state digest; of ``speaks``, slices by number."""
        total = Digest()
        for part in self._slices.held(group):
            one = part.slice
            if speaks is not None and one.number not in speaks:
                continue
            if one.box.start is not None:
                cells = np.ascontiguousarray(self._cells(one.number, slice(part.first, part.stop)))
                total += Digest(*backend.digest(cells, one.start + one.box.start + part.first))
                continue
            for first in range(part.first, part.stop, _CHUNK):
                stop = min(first + _CHUNK, part.stop)
                index = self._slices.index_of(group, part, np.arange(first, stop, dtype=np.int64))
                cells = np.ascontiguousarray(self._cells(one.number, slice(first, stop)))
                total += Digest(*backend.digest_sparse(index, cells, group.start))
        return total
