"""Flat cell space of a layout: the offset of each tensor, and how the space is cut into groups.

Groups are fixed by the layout alone: the cells of one dtype, in layout order, are cut every 16 MiB. So the groups of
all patches of a layout line up, and merging, inverting and partial reading go group by group.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import overload

import numpy as np
import numpy.typing as npt

from pulse_kernels import CELL_TYPES, GROUP_BYTES, CellType
from pulse_schemas import Layout

Numbers = npt.NDArray[np.int64]
"""Numbers of groups, or flat indices, in a column."""


@dataclass(frozen=True, slots=True)
class Span:
    """Cells ``start`` to ``stop`` of the layout's tensor number ``tensor``."""

    tensor: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Group:
    """``cells`` consecutive cells of one dtype from flat index ``start`` on, as the spans of tensors that they are.

    Attributes:
        ends: uint32: 0, then the cells up to the end of each span.
    """

    number: int
    start: int
    cells: int
    cell_type: CellType
    spans: tuple[Span, ...]
    ends: npt.NDArray[np.uint32] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Add up the spans."""
        ends = accumulate((span.stop - span.start for span in self.spans), initial=0)
        object.__setattr__(self, "ends", np.fromiter(ends, np.uint32, len(self.spans) + 1))


class Geometry:
    """Offsets and groups of a layout.

    To make one takes time and memory by the number of tensors, whatever their sizes.

    Attributes:
        layout: what it was made from.
        sizes: cells of each tensor.
        cells, nbytes: totals.
        groups: all groups, in flat order; each holds at least one cell.
    """

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.sizes = [math.prod(tensor.shape) for tensor in layout.tensors]
        offsets = array("q", accumulate(self.sizes, initial=0))
        stretches = _stretches(layout, offsets)
        self.cells = offsets[-1]
        self.nbytes = sum(stretch.cells * stretch.cell_type.width for stretch in stretches)
        self.groups = Groups(offsets, stretches)
        self._offsets = offsets

    @cached_property
    def id(self) -> str:
        """The layout's id."""
        return self.layout.id

    def tensor_start(self, number: int) -> int:
        """Return the flat index of a tensor's first cell."""
        return self._offsets[number]

    def tensor_bytes(self, number: int) -> int:
        """Return the size of one tensor."""
        return self.sizes[number] * CELL_TYPES[self.layout.tensors[number].dtype].width


@dataclass(frozen=True, slots=True)
class _Stretch:
    """The ``cells`` of one dtype, from flat index ``start`` and group ``first`` on; ``capacity`` of them in a group."""

    first: int
    start: int
    cells: int
    cell_type: CellType
    capacity: int

    @property
    def groups(self) -> int:
        return -(-self.cells // self.capacity)


class Groups(Sequence[Group]):
    """The groups of a layout, each made when it is first asked for: a layout may claim millions of them."""

    def __init__(self, offsets: Sequence[int], stretches: Sequence[_Stretch]) -> None:
        self._offsets = offsets  # of each tensor's first cell, and the end
        self._stretches = stretches
        self._firsts = [stretch.first for stretch in stretches]
        self._starts = [stretch.start for stretch in stretches]
        self._count = stretches[-1].first + stretches[-1].groups if stretches else 0
        self._made: dict[int, Group] = {}

    @cached_property
    def cells(self) -> Numbers:
        """Cells of each group, without making any."""
        cells = np.empty(self._count, np.int64)
        for stretch in self._stretches:
            cells[stretch.first : stretch.first + stretch.groups] = stretch.capacity
            cells[stretch.first + stretch.groups - 1] = stretch.cells - (stretch.groups - 1) * stretch.capacity
        return cells

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Group]:
        return map(self.__getitem__, range(self._count))

    @overload
    def __getitem__(self, number: int) -> Group: ...
    @overload
    def __getitem__(self, number: slice) -> Sequence[Group]: ...
    def __getitem__(self, number: int | slice) -> Group | Sequence[Group]:
        """Return a group, or those of a slice."""
        if isinstance(number, slice):
            return tuple(map(self.__getitem__, range(*number.indices(self._count))))
        made = self._made.get(number)
        if made is None:
            made = self._make(range(self._count)[number])
            self._made[made.number] = made
        return made

    def meeting(self, start: int, stop: int) -> range:
        """Return the numbers of the groups that hold cells ``start`` to ``stop``, all of one dtype."""
        if start >= stop:
            return range(0)
        stretch = self._stretches[bisect_right(self._starts, start) - 1]
        first, last = ((flat - stretch.start) // stretch.capacity for flat in (start, stop - 1))
        return range(stretch.first + first, stretch.first + last + 1)

    def holding(self, flat: Numbers) -> Numbers:
        """Return the number of the group that holds each of some cells."""
        starts, firsts, capacities = self._columns
        of = np.searchsorted(starts, flat, side="right") - 1
        found: Numbers = firsts[of] + (flat - starts[of]) // capacities[of]
        return found

    def starts(self, numbers: Numbers) -> Numbers:
        """Return the flat index of the first cell of each of some groups."""
        starts, firsts, capacities = self._columns
        of = np.searchsorted(firsts, numbers, side="right") - 1
        found: Numbers = starts[of] + (numbers - firsts[of]) * capacities[of]
        return found

    def ends(self, numbers: Numbers) -> Numbers:
        """Return the flat index past the last cell of each of some groups."""
        return self.starts(numbers) + self.cells[numbers]

    @cached_property
    def _columns(self) -> Numbers:
        """Of each stretch of groups its first cell, its first group, and the cells of a full group."""
        rows = [(one.start, one.first, one.capacity) for one in self._stretches]
        return np.array(rows, np.int64).reshape(-1, 3).T

    def cell_type(self, number: int) -> CellType:
        """Return what the cells of a group are, without making it."""
        return self._stretches[bisect_right(self._firsts, number) - 1].cell_type

    def end(self, number: int) -> int:
        """Return the flat index past the last cell of a group, without making it."""
        stretch = self._stretches[bisect_right(self._firsts, number) - 1]
        done = (number - stretch.first + 1) * stretch.capacity
        return stretch.start + min(done, stretch.cells)

    def _make(self, number: int) -> Group:
        stretch = self._stretches[bisect_right(self._firsts, number) - 1]
        done = (number - stretch.first) * stretch.capacity
        start, cells = stretch.start + done, min(stretch.capacity, stretch.cells - done)
        return Group(number, start, cells, stretch.cell_type, tuple(self._spans(start, start + cells)))

    def _spans(self, start: int, stop: int) -> Iterator[Span]:
        tensor = bisect_right(self._offsets, start) - 1  # of several at one place, the last: the others are empty
        while start < stop:
            begin, end = self._offsets[tensor], min(stop, self._offsets[tensor + 1])
            if start < end:
                yield Span(tensor, start - begin, end - begin)
                start = end
            tensor += 1


def _stretches(layout: Layout, offsets: Sequence[int]) -> list[_Stretch]:
    found: list[_Stretch] = []
    first, number, tensors = 0, 0, layout.tensors
    while number < len(tensors):
        begin, dtype = number, tensors[number].dtype
        while number < len(tensors) and tensors[number].dtype == dtype:
            number += 1
        cells, cell_type = offsets[number] - offsets[begin], CELL_TYPES[dtype]
        if cells:
            found.append(_Stretch(first, offsets[begin], cells, cell_type, GROUP_BYTES // cell_type.width))
            first += found[-1].groups
    return found
