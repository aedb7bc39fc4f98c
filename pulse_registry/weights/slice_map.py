"""Slice map: where the cells of a rank's slices lie in a layout, and in a *local layout* of the slices alone.

The local layout has one tensor for each slice, so that whatever works on the weights of a layout works on slices too.
Groups, and what patches and keyframes say, are those of the whole layout; the map translates between both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from pydantic import ValidationError

from pulse_kernels import Cells, Index
from pulse_registry.errors import InvalidModel, LayoutMismatch
from pulse_registry.weights.box import Box, Positions
from pulse_registry.weights.cell_space import Geometry, Group
from pulse_registry.weights.model import View
from pulse_registry.weights.shared_memory import first_overlap
from pulse_schemas import DTYPE_ORDER, Layout, Tensor, faults

_LONGEST_NAME = 512
Chosen = slice | npt.NDArray[np.int64]
"""Which entries of a list of cells."""


@dataclass(frozen=True, slots=True)
class HeldSlice:
    """A slice that a rank holds.

    Attributes:
        number: of its tensor in the local layout.
        tensor: number of the tensor in the whole layout that it is a part of.
        start: flat index, in the whole layout, of that tensor's first cell.
        box: the cells.
    """

    number: int
    tensor: int
    start: int
    box: Box


Piece = tuple[HeldSlice, Chosen, Positions]
"""What a slice holds of a list of a group's cells: which entries, and their local indices."""


@dataclass(frozen=True, slots=True)
class Held:
    """The cells of one group that one slice holds: local indices ``first`` to ``stop`` of the slice."""

    slice: HeldSlice
    first: int
    stop: int


class SliceMap:
    """Slices of a layout's tensors, no cell of which is in two of them.

    Attributes:
        geometry: of the whole layout.
        local: of the slices: a layout of one tensor a slice, named by its label.
        slices: all that hold cells, in the order of the local layout.
        groups: numbers of the groups of the whole layout that hold a cell of theirs, in order.
        counts: how many cells they hold of each of these groups.
        whole: whether all cells of each of these groups are held.
    """

    def __init__(
        self, geometry: Geometry, local: Layout, boxes: Mapping[str, tuple[int, Box]], names: Mapping[str, str]
    ) -> None:
        """Lay out slices.

        Args:
            geometry: of the whole layout.
            local: of the slices.
            boxes: by name in the local layout, the tensor's number and the cells.
            names: by the label of a view, its name in the local layout.
        """
        self._names = names
        self.geometry, self.local = geometry, Geometry(local)
        found = [(number, *boxes[tensor.name]) for number, tensor in enumerate(local.tensors)]
        self.slices = [
            HeldSlice(number, tensor, geometry.tensor_start(tensor), box) for number, tensor, box in found if box.cells
        ]
        self._of_number = {one.number: one for one in self.slices}
        self._of_tensor: dict[int, list[HeldSlice]] = {}
        for one in self.slices:
            self._of_tensor.setdefault(one.tensor, []).append(one)
        self._held = self._found()
        self.groups = sorted(self._held)
        counts = [sum(part.stop - part.first for part in self._held[number]) for number in self.groups]
        self.counts = np.array(counts, np.int64)
        self.whole = bool((self.counts == geometry.groups.cells[self.groups]).all())

    @classmethod
    def of(
        cls, geometry: Geometry, views: Mapping[str, View], *, partial: bool = False, alone: bool = True
    ) -> SliceMap:
        """Find where a rank's tensors and slices lie in a layout.

        Args:
            geometry: of the layout.
            views: what the rank holds.
            partial: whether tensors of the layout may be missing.
            alone: whether slices without any cell are a mistake: of many ranks, one may have none.

        Raises:
            LayoutMismatch: a name or shape is not the layout's, one is missing, slices overlap, in the layout or in
                memory, or they hold nothing.
            InvalidModel: a slice of a dtype is of no shape that it can have.
        """
        numbers = {tensor.name: number for number, tensor in enumerate(geometry.layout.tensors)}
        named = {alias: numbers[name] for alias, name in geometry.layout.tied.items()} | numbers
        boxes: dict[str, tuple[int, Box]] = {}
        aliases: dict[str, str] = {}
        labels: dict[tuple[int, Box], str] = {}
        for view in views.values():
            number, box = _place(geometry, named, view)
            first = labels.setdefault((number, box), view.name) if box.cells else view.name
            if first == view.name:
                boxes[view.name] = number, box
            else:
                aliases[view.name] = first
        if not partial:
            _check_complete(geometry, {number for number, _ in boxes.values()})
        if alone and not any(box.cells for _, box in boxes.values()):
            raise LayoutMismatch("the slices hold no cell of the version: nothing would be pulled")
        _check_apart(boxes)
        _check_memory(views)
        renamed = {name: _short(name, k) for k, name in enumerate((*boxes, *aliases))}
        places = {renamed[name]: place for name, place in boxes.items()}
        try:
            tensors = [
                Tensor(name=renamed[name], dtype=geometry.layout.tensors[number].dtype, shape=views[name].shape)
                for name, (number, _) in boxes.items()
            ]
            tensors.sort(key=lambda tensor: (DTYPE_ORDER.index(tensor.dtype), tensor.name))
            tied = {renamed[alias]: renamed[name] for alias, name in aliases.items()}
            local = Layout(tensors=tuple(tensors), tied=tied)
        except ValidationError as error:
            raise InvalidModel(f"these slices can't be laid out: {faults(error, 'slices')}") from error
        return cls(geometry, local, places, renamed)

    def local_views(self, views: Mapping[str, View]) -> dict[str, View]:
        """Return views by their names in the local layout."""
        return {self._names[name]: view for name, view in views.items()}

    def held(self, group: Group) -> tuple[Held, ...]:
        """Return the cells of a group that the slices hold, by slice."""
        return self._held.get(group.number, ())

    def holds(self, group: Group) -> bool:
        """Whether the slices hold all cells of a group."""
        return sum(held.stop - held.first for held in self.held(group)) == group.cells

    def wanted(self, tensor: int, start: int, stop: int) -> bool:
        """Whether the slices hold any of a tensor's cells ``start`` to ``stop``."""
        return any(one.box.below(stop) > one.box.below(start) for one in self._of_tensor.get(tensor, ()))

    def flat_of(self, local: int) -> int:
        """Return the flat index, in the whole layout, of a cell by that in the local one."""
        one = next(one for one in self.slices if 0 <= local - self.local.tensor_start(one.number) < one.box.cells)
        within = np.array([local - self.local.tensor_start(one.number)])
        return int(one.box.to_flat(within)[0]) + one.start

    def of_tensor(self, tensor: int) -> Sequence[HeldSlice]:
        """Return the slices of a tensor."""
        return self._of_tensor.get(tensor, ())

    def of_number(self, number: int) -> HeldSlice:
        """Return the slice that is a tensor of the local layout."""
        return self._of_number[number]

    def split(self, group: Group, index: Index) -> Iterator[Piece]:
        """Yield, slice by slice, which entries of a group-local index are held, and their local indices, in order.

        Args:
            group: of the whole layout.
            index: strictly increasing.
        """
        for held in self.held(group):
            one, box = held.slice, held.slice.box
            offset = group.start - one.start  # a group-local index and this are a flat index of the tensor
            if box.start is not None:
                begin = box.start + held.first - offset
                low, high = _between(index, begin, begin + held.stop - held.first)
                if low < high:
                    yield one, slice(low, high), index[low:high].astype(np.int64) + (offset - box.start)
                continue
            low, high = _between(index, box.flat_of(held.first) - offset, box.flat_of(held.stop - 1) - offset + 1)
            inside, local = box.to_local(index[low:high].astype(np.int64) + offset)
            if len(local):
                yield one, np.flatnonzero(inside) + low, local

    def index_of(self, group: Group, held: Held, local: Positions) -> Index:
        """Return the group-local indices of cells of a slice, by their local ones."""
        flat = held.slice.box.to_flat(local) + (held.slice.start - group.start)
        return flat.astype(np.uint32)

    def _found(self) -> dict[int, tuple[Held, ...]]:
        """Return, by group, the cells that slices hold of it, in the order of tensors; no group is made for that."""
        found: dict[int, list[Held]] = {}
        groups = self.geometry.groups
        for tensor in sorted(self._of_tensor):
            for one in self._of_tensor[tensor]:
                box, cells, start = one.box, one.box.cells, one.box.start
                begin = one.start + (box.flat_of(0) if start is None else start)
                end = begin + cells if start is not None else one.start + box.flat_of(cells - 1) + 1
                numbers, first = groups.meeting(begin, end), 0
                for number in numbers[:-1]:
                    at = groups.end(number) - one.start
                    stop = box.below(at) if start is None else at - start
                    if first < stop:
                        found.setdefault(number, []).append(Held(one, first, stop))
                    first = stop
                found.setdefault(numbers[-1], []).append(Held(one, first, cells))
        return {number: tuple(held) for number, held in found.items()}


def _between(index: Index, start: int, stop: int) -> tuple[int, int]:
    """Return which entries of an index are from ``start`` on and below ``stop``."""
    low, high = index.searchsorted(np.array([max(start, 0), stop], np.uint32)).tolist()  # other types are converted
    return low, high


def _place(geometry: Geometry, named: Mapping[str, int], view: View) -> tuple[int, Box]:
    """Return the number of the tensor that a view is of, and which of its cells it holds."""
    name = view.name if view.part is None else view.part.name
    number = named.get(name)
    if number is None:
        raise LayoutMismatch(f"tensor {name!r} of the model is not in the version")
    shape = view.shape if view.part is None else view.part.shape
    stored = geometry.layout.tensors[number].shape
    if shape != stored:
        raise LayoutMismatch(f"tensor {name!r} is {list(shape)} in the model and {list(stored)} in the version")
    return number, Box.of(shape, (0,) * len(shape), shape) if view.part is None else view.part.box


def _check_complete(geometry: Geometry, there: set[int]) -> None:
    for number, tensor in enumerate(geometry.layout.tensors):
        if number not in there:
            raise LayoutMismatch(
                f"tensor {tensor.name!r} of the version is not in the model: pass partial=True if this rank holds none "
                "of it"
            )


def _check_apart(boxes: Mapping[str, tuple[int, Box]]) -> None:
    by_tensor: dict[int, list[tuple[str, Box]]] = {}
    for name, (number, box) in boxes.items():
        for other, held in by_tensor.setdefault(number, []):
            if box.meets(held):
                raise LayoutMismatch(f"slices {other!r} and {name!r} overlap: give each cell once")
        by_tensor[number].append((name, box))


def _check_memory(views: Mapping[str, View]) -> None:
    shared = first_overlap(views.values())
    if shared is not None:
        one, other = (view.name for view in shared)
        raise LayoutMismatch(
            f"{one!r} and {other!r} have some of their memory in common: what one is given, the other would lose. Give "
            "each memory of its own"
        )


def _short(name: str, number: int) -> str:
    """Return a label as a layout's name: a tensor's own may be as long as a name can be."""
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 12]}#{number:011d}"


def fill_slices(slices: Sequence[HeldSlice], start: int, cells: Cells) -> Iterator[tuple[HeldSlice, int, Cells]]:
    """Yield what slices of a tensor hold of a run of its cells from ``start`` on: slice, local index, cells."""
    for one in slices:
        found = one.box.cut(start, cells)
        if len(found):
            yield one, one.box.below(start), found
