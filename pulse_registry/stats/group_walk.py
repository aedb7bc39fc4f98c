"""Walk of one group through the steps of a run: what is counted of its cells, and what is kept for the next step.

What is kept takes memory by the cells that change: the places of the last step, and of each length of windows the one
that waits for its other half. Only where the weights are followed the group's cells are kept, too.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pulse_kernels import Backend, Cells, Index
from pulse_registry.format.sparse_update import Delta
from pulse_registry.stats.counts import WINDOWS, Counts, ExponentCounts, sizes_of
from pulse_registry.weights.cell_space import Group
from pulse_registry.weights.digest import Digest


@dataclass(frozen=True, slots=True)
class GroupWindow:
    """What changed of a group over some versions.

    Attributes:
        touched: where some step changed a cell.
        net: the distances from end to end, none zero.
    """

    base: int
    target: int
    touched: Index
    net: Delta


@dataclass(frozen=True, slots=True)
class GroupStep:
    """Counts of one step in a group, by span; see ``StepStats``. ``windows``: (base, target, changed, touched) each."""

    changed: Counts
    again: Counts | None
    flipped: Counts | None
    sizes: Counts
    exponents: ExponentCounts | None
    windows: tuple[tuple[int, int, Counts, Counts], ...]


class GroupWalk:
    """The state of a walk: for one thread at a time.

    Attributes:
        group: that is walked.
        cells: the group's, at the version that was reached; None: the weights are not followed.
        waiting: of each length of windows, the one that waits for its other half.
    """

    def __init__(self, backend: Backend, group: Group) -> None:
        """Begin before the first step of a stretch."""
        self.group = group
        self.cells: Cells | None = None
        self._backend = backend
        self._last: Index | None = None
        self.waiting: dict[int, GroupWindow] = {}
        self._population: Counts | None = None
        self._moved: tuple[Delta, Cells, Cells] | None = None  # the last one, and the cells before and after it

    def move(self, delta: Delta) -> tuple[Digest, Digest]:
        """Bring the cells along a delta; return the sums of h over those that it moves, before and after."""
        if self.cells is None:
            raise TypeError(f"the cells of group {self.group.number} are not followed")
        spans, index = [self.cells], delta.index
        step = self._backend.step_spans
        old, new, before, after = step(spans, index, delta.distance, self.group.cell_type, self.group.start)
        self._backend.scatter_spans(spans, index, new)
        self._moved = delta, old, new
        return Digest(*before), Digest(*after)

    def step(self, base: int, target: int, delta: Delta) -> GroupStep:
        """Count a step, after which ``cells`` are those of ``target``, if they are followed."""
        union = None if self._last is None else self._backend.union(self._last, delta.index)
        changed = self._by_span(delta.index)
        again = None
        if union is not None and self._last is not None:
            again = self._by_span(self._last) + changed - self._by_span(union)
        flipped, exponents = self._values(delta)
        windows = [] if target > base + 1 else self._windows(GroupWindow(base, target, delta.index, delta), union)
        self._last = delta.index
        counted = [(w.base, w.target, self._by_span(w.net.index), self._by_span(w.touched)) for w in windows]
        return GroupStep(changed, again, flipped, sizes_of(delta.distance), exponents, tuple(counted))

    def _by_span(self, index: Index) -> Counts:
        reached = index.searchsorted(self.group.ends)
        return reached[1:] - reached[:-1]

    def _windows(self, window: GroupWindow, union: Index | None) -> list[GroupWindow]:
        """Join the step with what waits for it; return the windows that end with it, shortest first."""
        ended: list[GroupWindow] = []
        for length in WINDOWS:
            half = length // 2
            if window.target % length:
                self.waiting[half] = window
                break
            first = self.waiting.pop(half, None)
            if first is None or first.target != window.base:
                break
            window = self._joined(first, window, union if half == 1 else None)
            ended.append(window)
        return ended

    def _joined(self, first: GroupWindow, second: GroupWindow, union: Index | None) -> GroupWindow:
        backend, (one, other) = self._backend, (first.net, second.net)
        touched = backend.union(first.touched, second.touched) if union is None else union
        net = Delta(*backend.merge((one.index, one.distance), (other.index, other.distance)))
        return GroupWindow(first.base, second.target, touched, net)

    def _values(self, delta: Delta) -> tuple[Counts | None, ExponentCounts | None]:
        """Count what needs the values: the signs that differ, by span, and the exponents."""
        cell_type, backend = self.group.cell_type, self._backend
        if self.cells is None:
            return None, None
        if not cell_type.is_float:
            return np.zeros(len(self.group.spans), np.int64), None
        old, new = self._ends(self.cells, delta)
        flips = ((old ^ new) >> cell_type.dtype.type(cell_type.bits - 1)).astype(bool)
        left, arrived = (backend.count_classes(cells, cell_type).astype(np.int64) for cells in (old, new))
        if self._population is None:
            self._population = backend.count_classes(self.cells, cell_type).astype(np.int64) - arrived + left
        before = self._population
        self._population = before - left + arrived
        return self._by_span(delta.index[flips]), ExponentCounts(before, left)

    def _ends(self, cells: Cells, delta: Delta) -> tuple[Cells, Cells]:
        """Return what a delta, after which these are the cells, moves: before it and after it."""
        moved, self._moved = self._moved, None
        if moved is not None and moved[0] is delta:
            return moved[1:]
        new = self._backend.gather(cells, delta.index)
        return self._backend.move(new, (-delta).distance, self.group.cell_type), new
