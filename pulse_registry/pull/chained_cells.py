"""Chained cells: where a long chain has led so far, group by group, as few of its patches as fit a bound at a time.

What is kept of a group is the list of its cells that differ from the base's, where that takes a small part of their
memory, or all of them: together no more than the cells take themselves, however long the chain is.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt

from pulse_kernels import Backend, Cells
from pulse_registry.format.delta_step import Decode, DeltaStep, WrongBase, join_steps, walk_steps
from pulse_registry.format.sparse_update import Delta, HostUpdate, SparseUpdate
from pulse_registry.log.leg import Leg
from pulse_registry.process.parallel import Map
from pulse_registry.weights.arrays import Weights, allocated
from pulse_registry.weights.cell_space import Geometry, Group
from pulse_registry.weights.digest import Digest

DENSE_SHARE: Final = 0.25
"""A change of more cells than this share is applied as a copy of all: its list would take too much memory."""
_WINDOW_SHARE: Final = 16
"""The patches that are followed at a time have no more bytes than one in so many of the cells'."""
_LEAST_WINDOW: Final = 1 << 20
_LIST_SHARE: Final = 8
"""A list takes no more than one in so many of the bytes of its group's cells; to join two takes as much again."""
_INDEX_BYTES: Final = 4
_STRETCH: Final = 1 << 18
"""Cells that are compared with the base's at a time."""


def windows(legs: Sequence[Leg], geometry: Geometry) -> Iterator[Sequence[Leg]]:
    """Cut a chain into the legs that are followed at a time: one, or as many as have few bytes together."""
    most, first, nbytes = max(_LEAST_WINDOW, geometry.nbytes // _WINDOW_SHARE), 0, 0
    for number, leg in enumerate(legs):
        if number > first and nbytes + leg.nbytes > most:
            yield legs[first:number]
            first, nbytes = number, 0
        nbytes += leg.nbytes
    yield legs[first:]


class ChainedCells:
    """Where a chain has led from weights, which are only read."""

    def __init__(self, base: Weights, backend: Backend) -> None:
        """Begin at the base."""
        self._base, self._backend = base, backend
        self._lists: dict[int, SparseUpdate] = {}
        self._piece: npt.NDArray[np.uint8] | None = None  # made when the first group is walked there
        nbytes = [group.cells * group.cell_type.width for group in base.geometry.groups]
        self._starts = [0, *itertools.accumulate(nbytes)]
        self._walked: set[int] = set()
        self._lock = threading.Lock()

    def follow(self, group: Group, steps: Sequence[DeltaStep]) -> None:
        """Follow the next steps of a group; groups may be followed side by side.

        Raises:
            WrongBase: a step does not fit the cells that it finds.
        """
        if not self._base.plain:
            steps = [replace(step, decode=self._exact(group, step.decode), move=None, look=None) for step in steps]
        held = self._lists.get(group.number)
        changed = sum(step.changed for step in steps) + (0 if held is None else len(held.index))
        width = group.cell_type.width
        if group.number in self._walked or _LIST_SHARE * changed * (_INDEX_BYTES + 2 * width) > group.cells * width:
            walk_steps(self._backend, group, [self._placed(group)], steps)
        else:
            before = [] if held is None else [self._again(held)]
            self._lists[group.number] = join_steps(self._backend, group, self._base, [*before, *steps])

    def update(self, map_: Map) -> HostUpdate | None:
        """Return what differs from the base, group by group, and keep none of it; None: too much of it does.

        Raises:
            WrongBase: the base is changed meanwhile.
        """
        groups = self._base.geometry.groups
        numbers = sorted(self._walked, reverse=True)
        counts = list(map_(lambda number: self._differing(groups[number]), numbers))
        changed = sum(counts) + sum(len(held.index) for held in self._lists.values())
        if changed > DENSE_SHARE * self._base.geometry.cells:
            return None
        found, self._lists, self._walked = self._lists, {}, set()
        for number, count in zip(numbers, counts, strict=True):
            found[number] = self._listed(groups[number], count)
            # From the end on, and nobody has a view of it: lists take the place of the cells.
            self._memory().resize(self._starts[number], refcheck=False)
        self._piece = None
        return HostUpdate(tuple(found[number] for number in sorted(found) if len(found[number].index)))

    def whole(self, map_: Map) -> Weights:
        """Return all cells, in memory of their own, and keep none of them."""
        list(map_(self._placed, self._base.geometry.groups))
        piece, self._piece, self._lists, self._walked = self._memory(), None, {}, set()
        return Weights.over(self._base.geometry, piece)

    def _placed(self, group: Group) -> Cells:
        """Return a group's cells in memory of their own, as one array, where they are walked."""
        cells = self._cells(group)
        if group.number not in self._walked:
            np.concatenate(self._base.spans(group), out=cells)
            held = self._lists.pop(group.number, None)
            if held is not None:
                held.apply_to(self._backend, cells)
            self._walked.add(group.number)
        return cells

    def _cells(self, group: Group) -> Cells:
        start, dtype = self._starts[group.number], group.cell_type.dtype
        return self._memory()[start : start + group.cells * dtype.itemsize].view(dtype)

    def _memory(self) -> npt.NDArray[np.uint8]:
        with self._lock:
            if self._piece is None:
                self._piece = allocated(self._base.geometry)  # pages that nobody writes take no memory
            return self._piece

    def _listed(self, group: Group, changed: int) -> SparseUpdate:
        """Return what differs in a group from the base, which is so many cells; in no more memory than that takes.

        Raises:
            WrongBase: it is more cells, or fewer.
        """
        dtype, done = group.cell_type.dtype, 0
        index, old, new = np.empty(changed, np.uint32), np.empty(changed, dtype), np.empty(changed, dtype)
        for first, base, cells in self._stretches(group):
            places, *columns = self._backend.diff(cells, base)
            part = slice(done, done + len(places))
            if part.stop > changed:
                raise WrongBase
            index[part], old[part], new[part] = places + np.uint32(first), *columns
            done = part.stop
        if done < changed:
            raise WrongBase
        return SparseUpdate(group, index, old, new)

    def _differing(self, group: Group) -> int:
        """Count the cells of a group that differ from the base's."""
        return sum(int(np.count_nonzero(cells != base)) for _, base, cells in self._stretches(group))

    def _stretches(self, group: Group) -> Iterator[tuple[int, Cells, Cells]]:
        """Yield where a stretch of a group begins, its cells at the base, and where the chain has led."""
        spans, cells, ends = self._base.spans(group), self._cells(group), group.ends
        for first in range(0, group.cells, _STRETCH):
            stop = min(first + _STRETCH, group.cells)
            met = slice(int(np.searchsorted(ends, first, "right")) - 1, int(np.searchsorted(ends, stop)))
            begun = zip(spans[met], ends[met].tolist(), strict=True)
            parts = [span[max(first - at, 0) : stop - at] for span, at in begun]
            yield first, parts[0] if len(parts) == 1 else np.concatenate(parts), cells[first:stop]

    def _again(self, held: SparseUpdate) -> DeltaStep:
        """Return what is known of a group as its first step."""
        backend = self._backend
        return DeltaStep(lambda _: held.delta(backend), False, len(held.index), *held.sums(backend))

    def _exact(self, group: Group, decode: Decode) -> Decode:
        """Let the decoding of a step refuse cells of the base of which memory holds more than is read."""

        def checked(cells: list[Cells] | None) -> Delta:
            delta = decode(cells)
            if not self._base.exact_at(group, delta.index):
                raise WrongBase
            return delta

        return checked


class WholeChain:
    """The cells that a chain leads to, all in memory; see ``FetchedKeyframe``.

    Attributes:
        weights: the cells.
        in_memory: whether they may become a caller's.
        start: the state digest that the chain started from.
    """

    def __init__(self, weights: Weights, start: Digest, *, in_memory: bool) -> None:
        self.weights, self.start, self.in_memory = weights, start, in_memory

    def release(self, group: Group) -> None:
        """Do nothing: the cells are needed until all are written."""

    def close(self) -> None:
        """Do nothing: the memory goes with the last array of it."""
