"""Chained cells: where a long chain has led so far, group by group, as few of its patches as fit a bound at a time.

What is kept of a group is the list of its cells that differ from the base's, or, where that may take more than half of
the memory, all of them: together no more than the cells take themselves, however long the chain is.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from pulse_kernels import Backend, Cells
from pulse_registry.format.delta_step import Decode, DeltaStep, WrongBase, join_steps, taken_back, walk_steps
from pulse_registry.format.sparse_update import Delta, HostUpdate, SparseUpdate
from pulse_registry.log.leg import Leg
from pulse_registry.process.parallel import Map
from pulse_registry.weights.arrays import Weights
from pulse_registry.weights.cell_space import Geometry, Group
from pulse_registry.weights.digest import Digest

DENSE_SHARE: Final = 0.25
"""A change of more cells than this share is applied as a copy of all: its list would take too much memory."""
_WINDOW_SHARE: Final = 8
"""The patches that are followed at a time have no more bytes than one in so many of the cells'."""
_LEAST_WINDOW: Final = 1 << 20
_INDEX_BYTES: Final = 4
_COMPARED: Final = 1 << 16
"""Cells that are compared at a time, to be counted: what differs is listed for no more than these."""


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
        self._whole: Weights | None = None  # made when the first group is walked there
        self._walked: set[int] = set()
        self._lock = threading.Lock()

    def follow(self, group: Group, steps: Sequence[DeltaStep]) -> None:
        """Follow the next steps of a group; groups may be followed side by side.

        Raises:
            WrongBase: a step does not fit the cells that it finds.
        """
        if not self._base.plain:
            steps = [replace(step, decode=self._exact(group, step.decode), move=None) for step in steps]
        held = self._lists.get(group.number)
        changed = sum(step.changed for step in steps) + (0 if held is None else len(held.index))
        width = group.cell_type.width
        if group.number in self._walked or 2 * changed * (_INDEX_BYTES + 2 * width) > group.cells * width:
            walk_steps(self._backend, group, [self._placed(group)], steps)
        else:
            before = [] if held is None else [self._again(held)]
            self._lists[group.number] = join_steps(self._backend, group, self._base, [*before, *steps])

    def update(self, map_: Map) -> HostUpdate | None:
        """Return what differs from the base, group by group, and keep none of it; None: too much of it does."""
        groups, whole = self._base.geometry.groups, self._whole
        changed = sum(len(held.index) for held in self._lists.values())
        if whole is not None:
            changed += sum(map_(lambda number: self._differing(whole, groups[number]), sorted(self._walked)))
        if changed > DENSE_SHARE * self._base.geometry.cells:
            return None
        found = dict(self._lists)
        if whole is not None:
            for number in self._walked:
                spans = whole.spans(groups[number])
                found[number] = taken_back(self._backend, groups[number], self._base.spans(groups[number]), spans)
        self._lists, self._whole = {}, None
        return HostUpdate(tuple(found[number] for number in sorted(found) if len(found[number].index)))

    def whole(self, map_: Map) -> Weights:
        """Return all cells, in memory of their own, and keep none of them."""
        groups = self._base.geometry.groups
        list(map_(self._placed, groups))
        found, self._whole, self._lists = self._memory(), None, {}
        return found

    def _placed(self, group: Group) -> Cells:
        """Return a group's cells in memory of their own, as one array, where they are walked."""
        cells = self._memory().in_piece(group)
        if cells is None:
            raise TypeError("cells are walked in one piece of memory")
        if group.number not in self._walked:
            np.concatenate(self._base.spans(group), out=cells)
            held = self._lists.pop(group.number, None)
            if held is not None:
                held.apply_to(self._backend, cells)
            self._walked.add(group.number)
        return cells

    def _memory(self) -> Weights:
        with self._lock:
            if self._whole is None:
                self._whole = Weights.in_one_piece(self._base.geometry)  # pages that nobody writes take no memory
            return self._whole

    def _again(self, held: SparseUpdate) -> DeltaStep:
        """Return what is known of a group as its first step."""
        backend = self._backend
        return DeltaStep(lambda _: held.delta(backend), False, len(held.index), *held.sums(backend))

    def _differing(self, whole: Weights, group: Group) -> int:
        """Count the cells of a group that differ from the base's."""
        spans = zip(whole.spans(group), self._base.spans(group), strict=True)
        return sum(
            int(np.count_nonzero(one[at : at + _COMPARED] != other[at : at + _COMPARED]))
            for one, other in spans
            for at in range(0, len(one), _COMPARED)
        )

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
