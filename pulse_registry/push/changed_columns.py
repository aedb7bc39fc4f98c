"""Changed columns: what a rank found changed, by groups of the whole layout, in columns of numbers.

A rank of many may hold a few rows of each of 70,000 tensors, and so a little of as many groups: there is no object for
each, neither where changes are found nor where they are sent.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from pulse_kernels import Backend, Cells, Index
from pulse_registry.errors import CorruptObject
from pulse_registry.format.sparse_update import SparseUpdate
from pulse_registry.weights.cell_space import Geometry, Numbers
from pulse_registry.weights.digest import Digest
from pulse_registry.weights.slice_map import SliceMap

_HEAD: Final = np.dtype([("fragments", "<u4"), ("cells", "<u4")])
_FRAGMENT: Final = np.dtype([("group", "<u4"), ("count", "<u4")])
_INDEX: Final = np.dtype(np.uint32)
_SPAN: Final = 1 << 32
"""Cells that an index reaches over."""


@dataclass(frozen=True, slots=True)
class ChangedColumns:
    """Changed cells of groups of one dtype, end to end.

    Attributes:
        numbers: of the groups, strictly increasing.
        counts: how many cells of each.
        index: group-local indices; of each group strictly increasing.
        old, new: the cells.
    """

    numbers: Numbers
    counts: Numbers
    index: Index
    old: Cells
    new: Cells

    @classmethod
    def of(cls, slices: SliceMap, change: SparseUpdate, backend: Backend) -> tuple[Self, Digest]:
        """Return a change of a local group, and what it adds to the state digest; the same memory where it can be."""
        index, old, new, groups = change.index, change.old, change.new, slices.geometry.groups
        first = slices.start_of(change.group)
        if first is not None:  # as they lie here, they lie there
            numbers = np.array(groups.meeting(first + int(index[0]), first + int(index[-1]) + 1), np.int64)
            counts = np.diff(np.searchsorted(index, (groups.ends(numbers) - first).astype(_INDEX)), prepend=0)
            numbers, counts = numbers[counts > 0], counts[counts > 0]
            begins = (groups.starts(numbers) - first).astype(_INDEX)  # below 0, modulo 2**32: so is the difference
            before, after = backend.digest_changes(index, old, new, first)
            columns = cls(numbers, counts, index - np.repeat(begins, counts), old, new)
            return columns, Digest(*after) - Digest(*before)
        flat = slices.flat_indices(change.group, index)
        if (flat[1:] <= flat[:-1]).any():  # slices of one tensor, side by side
            order = np.argsort(flat, kind="stable")
            flat, old, new = flat[order], old[order], new[order]
        numbers = np.array(groups.meeting(int(flat[0]), int(flat[-1]) + 1), np.int64)
        counts = np.diff(np.searchsorted(flat, groups.ends(numbers)), prepend=0)
        numbers, counts = numbers[counts > 0], counts[counts > 0]
        local = (flat - np.repeat(groups.starts(numbers), counts)).astype(_INDEX)
        return cls(numbers, counts, local, old, new), _delta(backend, flat, old, new)

    @property
    def nbytes(self) -> int:
        """Bytes that it takes when it is sent in one piece."""
        columns = sum(column.nbytes for column in (self.index, self.old, self.new))
        return _HEAD.itemsize + len(self.numbers) * _FRAGMENT.itemsize + columns

    def fragments(self) -> Iterator[tuple[int, slice]]:
        """Yield each group's number, and which of the cells are its."""
        ends = np.cumsum(self.counts).tolist()
        for number, (first, stop) in zip(self.numbers.tolist(), pairwise([0, *ends]), strict=True):
            yield number, slice(first, stop)

    def by_home(self, homes: Numbers, low: int, high: int) -> Iterator[tuple[int, Self]]:
        """Yield what ranks are sent of the groups ``low`` to ``high``: runs of groups that are at home at one rank."""
        first, stop = np.searchsorted(self.numbers, [low, high]).tolist()
        if first == stop:
            return
        ends, of = np.cumsum(self.counts), homes[self.numbers[first:stop]]
        cuts = (np.flatnonzero(np.diff(of)) + 1 + first).tolist()
        for begin, end in pairwise([first, *cuts, stop]):
            cells = slice(int(ends[begin] - self.counts[begin]), int(ends[end - 1]))
            some = slice(begin, end)
            columns = self.index[cells], self.old[cells], self.new[cells]
            yield int(of[begin - first]), type(self)(self.numbers[some], self.counts[some], *columns)

    def _bytes(self) -> Iterator[memoryview]:
        head = np.array([(len(self.numbers), len(self.index))], _HEAD)
        fragments = np.empty(len(self.numbers), _FRAGMENT)
        fragments["group"], fragments["count"] = self.numbers, self.counts
        for column in (head, fragments, self.index, self.old, self.new):
            yield np.ascontiguousarray(column).view(np.uint8).data

    @staticmethod
    def packed(every: list[ChangedColumns]) -> bytes:
        """Return columns as bytes."""
        return b"".join(part for one in every for part in one._bytes())

    @classmethod
    def unpacked(cls, geometry: Geometry, data: memoryview, rank: int) -> Iterator[Self]:
        """Yield the columns that a rank has sent, over the same memory.

        Raises:
            CorruptObject: they are cut short, or name groups or cells that there are not.
        """
        groups, at = geometry.groups, 0

        def take(dtype: np.dtype[Any], count: int) -> npt.NDArray[Any]:
            nonlocal at
            begin, at = at, at + count * dtype.itemsize
            if at > len(data):
                raise CorruptObject(f"rank {rank} sent changes that are cut short")
            return np.frombuffer(data[begin:at], dtype)

        while at < len(data):
            [(fragments, cells)] = take(_HEAD, 1).tolist()
            rows = take(_FRAGMENT, fragments)
            numbers, counts = rows["group"].astype(np.int64), rows["count"].astype(np.int64)
            known = numbers < len(groups)
            wrong = np.flatnonzero(~known | (counts < 1) | (counts > groups.cells[np.where(known, numbers, 0)]))
            if len(wrong):
                raise CorruptObject(f"rank {rank} sent {counts[wrong[0]]} changes of group {numbers[wrong[0]]}")
            if not fragments or (np.diff(numbers) <= 0).any() or int(counts.sum()) != cells:
                raise CorruptObject(f"rank {rank} sent {cells} changes that are not those of its groups")
            dtype = groups.cell_type(int(numbers[0])).dtype
            if groups.cell_type(int(numbers[-1])).dtype != dtype:
                raise CorruptObject(f"rank {rank} sent changes of two dtypes in one column")
            yield cls(numbers, counts, take(_INDEX, cells), take(dtype, cells), take(dtype, cells))


def _delta(backend: Backend, flat: Numbers, old: Cells, new: Cells) -> Digest:
    """Return what changes add to the state digest, by flat indices that increase."""
    total, starts = Digest(), np.arange(int(flat[0]), int(flat[-1]) + 1, _SPAN)
    for start, (first, stop) in zip(
        starts.tolist(), pairwise([*np.searchsorted(flat, starts), len(flat)]), strict=True
    ):
        index = (flat[first:stop] - start).astype(_INDEX)
        before, after = backend.digest_changes(index, old[first:stop], new[first:stop], start)
        total += Digest(*after) - Digest(*before)
    return total
