"""Slice map: where the cells of a rank's slices lie in a layout, and in a *local layout* of the slices alone.

The local layout has one tensor for each slice, so that whatever works on the weights of a layout works on slices too.
Groups, and what patches and keyframes say, are those of the whole layout; the map translates between both.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from pydantic import ValidationError

from pulse_kernels import Cells, Index
from pulse_registry.errors import InvalidModel, LayoutMismatch
from pulse_registry.weights.box import Box, Positions
from pulse_registry.weights.cell_space import Geometry, Group, Groups
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
        self, geometry: Geometry, local: Layout, boxes: Sequence[tuple[int, Box]], names: Mapping[str, str]
    ) -> None:
        """Lay out slices.

        Args:
            geometry: of the whole layout.
            local: of the slices.
            boxes: of each tensor of the local layout, the number of the tensor that it is a part of, and the cells.
            names: by the label of a view, its name in the local layout.
        """
        self._names = names
        self.geometry, self.local = geometry, Geometry(local)
        self.slices = [
            HeldSlice(number, tensor, geometry.tensor_start(tensor), box)
            for number, (tensor, box) in enumerate(boxes)
            if box.cells
        ]
        self._places = array("q", [0]) * len(boxes)  # of each tensor of the local layout, which of the slices it is
        for place, one in enumerate(self.slices):
            self._places[one.number] = place
        tensors = np.array([one.tensor for one in self.slices], np.int64)
        self._order = np.argsort(tensors, kind="stable")  # of the slices by tensors
        self._tensors = array("q", tensors[self._order].tobytes())
        self._held = _held(geometry, [self.slices[place] for place in self._order.tolist()])
        numbers, firsts = np.unique(self._held.groups, return_index=True)
        self.groups: list[int] = numbers.tolist()
        self._firsts = array("q", [*firsts.tolist(), len(self._held.groups)])  # of each group's rows
        self.counts = np.add.reduceat(self._held.stops - self._held.starts, firsts) if len(firsts) else firsts
        self.whole = bool((self.counts == geometry.groups.cells[numbers]).all())

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
        return cls(geometry, local, [places[tensor.name] for tensor in local.tensors], renamed)

    def local_views(self, views: Mapping[str, View]) -> dict[str, View]:
        """Return views by their names in the local layout."""
        return {self._names[name]: view for name, view in views.items()}

    def held(self, group: Group) -> tuple[Held, ...]:
        """Return the cells of a group that the slices hold, by slice, in the order of tensors."""
        rows, held = self._rows(group.number), self._held
        columns = (held.slices[rows].tolist(), held.starts[rows].tolist(), held.stops[rows].tolist())
        order = self._order
        return tuple(Held(self.slices[order[which]], first, stop) for which, first, stop in zip(*columns, strict=True))

    def holds(self, group: Group) -> bool:
        """Whether the slices hold all cells of a group."""
        rows = self._rows(group.number)
        return int((self._held.stops[rows] - self._held.starts[rows]).sum()) == group.cells

    def wanted(self, tensor: int, start: int, stop: int) -> bool:
        """Whether the slices hold any of a tensor's cells ``start`` to ``stop``."""
        return any(one.box.below(stop) > one.box.below(start) for one in self.of_tensor(tensor))

    def flat_of(self, local: int) -> int:
        """Return the flat index, in the whole layout, of a cell by that in the local one."""
        starts, _ = self._shifts
        place = int(np.searchsorted(starts, local, side="right")) - 1
        return self.slices[place].start + self.slices[place].box.flat_of(local - int(starts[place]))

    def start_of(self, group: Group) -> int | None:
        """Return where the cells of a local group begin in the whole layout, if they lie end to end there, too."""
        starts, shifts = self._shifts
        place = int(np.searchsorted(starts, group.start, side="right")) - 1
        one = self.slices[place]
        if one.box.start is None or int(starts[place]) + one.box.cells < group.start + group.cells:
            return None
        return group.start + int(shifts[place])

    def flat_indices(self, group: Group, index: Index) -> Positions:
        """Return the flat indices, in the whole layout, of cells of a local group, which increase there."""
        starts, shifts = self._shifts
        low = int(np.searchsorted(starts, group.start, side="right")) - 1
        high = int(np.searchsorted(starts, group.start + group.cells))
        cuts = np.searchsorted(index, (starts[low + 1 : high] - group.start).astype(np.uint32)).tolist()
        bounds = [0, *cuts, len(index)]
        flat: Positions = index.astype(np.int64) + np.repeat(shifts[low:high] + group.start, np.diff(bounds))
        for place in self._apart[bisect_left(self._apart, low) : bisect_left(self._apart, high)]:
            one, some = self.slices[place], slice(bounds[place - low], bounds[place - low + 1])
            local = index[some].astype(np.int64) + (group.start - int(starts[place]))
            flat[some] = one.box.to_flat(local) + one.start
        return flat

    def of_tensor(self, tensor: int) -> Sequence[HeldSlice]:
        """Return the slices of a tensor."""
        low, high = bisect_left(self._tensors, tensor), bisect_right(self._tensors, tensor)
        return [self.slices[place] for place in self._order[low:high].tolist()]

    def of_number(self, number: int) -> HeldSlice:
        """Return the slice that is a tensor of the local layout; it holds cells."""
        return self.slices[self._places[number]]

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
            chosen, local = box.to_local(index[low:high].astype(np.int64) + offset)
            if len(local):
                yield one, chosen + low if low else chosen, local

    def index_of(self, group: Group, held: Held, local: Positions) -> Index:
        """Return the group-local indices of cells of a slice, by their local ones."""
        flat = held.slice.box.to_flat(local) + (held.slice.start - group.start)
        return flat.astype(np.uint32)

    @cached_property
    def _shifts(self) -> tuple[Positions, Positions]:
        """Return the flat index of each slice's first cell in the local layout, and how far it is in the whole one.

        Of a slice whose cells lie apart there is no such distance.
        """
        starts = np.array([self.local.tensor_start(one.number) for one in self.slices], np.int64)
        places = np.array([one.start + (one.box.start or 0) for one in self.slices], np.int64)
        return starts, places - starts

    @cached_property
    def _apart(self) -> list[int]:
        """Return which of the slices have cells that lie apart."""
        return [place for place, one in enumerate(self.slices) if one.box.start is None]

    def _rows(self, group: int) -> slice:
        """Return which rows of what is held are a group's."""
        place = bisect_left(self.groups, group)
        if place == len(self.groups) or self.groups[place] != group:
            return slice(0, 0)
        return slice(self._firsts[place], self._firsts[place + 1])


@dataclass(frozen=True, slots=True)
class _Rows:
    """What slices hold of groups, in columns, a row for each slice and group, by groups and then by slices.

    Attributes:
        groups: number of the group.
        slices: which of the slices.
        starts, stops: its local indices.
    """

    groups: Positions
    slices: Positions
    starts: Positions
    stops: Positions


def _held(geometry: Geometry, slices: Sequence[HeldSlice]) -> _Rows:
    """Return what slices, which come in the order of tensors, hold of each group; no group is made for that."""
    groups = geometry.groups
    runs = [which for which, one in enumerate(slices) if one.box.start is not None]
    begins = np.array([slices[which].start + (slices[which].box.start or 0) for which in runs], np.int64)
    ends = begins + np.array([slices[which].box.cells for which in runs], np.int64)
    first = groups.holding(begins)
    counts = groups.holding(ends - 1) - first + 1
    of = np.repeat(np.arange(len(runs)), counts)
    within = np.arange(len(of)) - np.repeat(np.cumsum(counts) - counts, counts)  # the first group of a run, its second
    numbers = first[of] + within
    stops = np.minimum(groups.ends(numbers), ends[of]) - begins[of]
    starts = np.where(within > 0, np.roll(stops, 1), 0)
    strided = [which for which, one in enumerate(slices) if one.box.start is None]
    others = [(*row, which) for which in strided for row in _rows_apart(groups, slices[which])]
    apart = np.array(others, np.int64).reshape(-1, 4).T
    which = np.concatenate([np.array(runs, np.int64)[of], apart[3]])
    numbers, starts, stops = (np.concatenate(pair) for pair in zip((numbers, starts, stops), apart[:3], strict=True))
    order = np.lexsort((which, numbers))
    return _Rows(numbers[order], which[order], starts[order], stops[order])


def _rows_apart(groups: Groups, one: HeldSlice) -> Iterator[tuple[int, int, int]]:
    """Yield what a slice whose cells lie apart holds of groups: number, first and last local index, and one more."""
    box, first = one.box, 0
    numbers = groups.meeting(one.start + box.flat_of(0), one.start + box.flat_of(box.cells - 1) + 1)
    for number in numbers:
        stop = box.cells if number == numbers[-1] else box.below(groups.end(number) - one.start)
        if first < stop:
            yield number, first, stop
        first = stop


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
