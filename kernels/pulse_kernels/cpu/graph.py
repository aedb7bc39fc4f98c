"""Cheapest paths in a graph of many edges: arrays in, arrays out.

An edge leads from one number to another, or from nothing (a start below 0); it has a size, a number of objects, and
of cells that are decoded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from pulse_kernels.errors import BackendUnavailable

Numbers = npt.NDArray[np.int64]
_COST_LIMIT = 2**62


@dataclass(frozen=True, slots=True)
class Graph:
    """Edges, row by row, and those of them that can be used, by where they end.

    Attributes:
        numbers: what the nodes stand for, rising: the starts and ends of usable rows, whatever numbers they are.
        start, end: of each usable row, as nodes; -1: from nothing.
        nbytes, objects, decoded: of each row.
        offsets, order: rows by end.
    """

    numbers: Numbers
    start: Numbers
    end: Numbers
    nbytes: Numbers
    objects: Numbers
    decoded: Numbers
    offsets: npt.NDArray[np.int32]
    order: npt.NDArray[np.int32]

    @classmethod
    def of(
        cls,
        start: Numbers,
        end: Numbers,
        nbytes: Numbers,
        objects: Numbers,
        decoded: Numbers,
        usable: npt.NDArray[np.bool_],
    ) -> Self:
        """Put edges in order, in time and memory by how many they are, and not by the numbers that they join.

        Raises:
            BackendUnavailable: numba can't be imported here.
        """
        numbers = _numbers(start, end, usable)
        start, end = _nodes(numbers, start), _nodes(numbers, end)
        # A node for each number, one for nothing, and the end of the last node's rows.
        offsets, order = np.zeros(len(numbers) + 2, np.int32), np.empty(np.count_nonzero(usable), np.int32)
        _loop("link_edges")(start, end, usable, 0, offsets, order)
        return cls(numbers, start, end, nbytes, objects, decoded, offsets, order)

    def cheapest(
        self,
        target: int,
        starts: Mapping[int, int],
        object_cost: int,
        cell_cost: int = 0,
        avoid: Sequence[int] = (),
        *,
        from_nothing: bool = True,
    ) -> Path | None:
        """Find the cheapest path to ``target`` from nothing or from one of ``starts``, by Dijkstra's algorithm.

        Of equally cheap ones it takes the one with the fewest legs, those before its start included; then the one with
        the lower start, and nothing last; of equal edges, the last one.

        Args:
            target: to reach.
            starts: the legs that lead to each start, by number.
            object_cost: what an object costs beside its bytes.
            cell_cost: what a cell costs that is decoded.
            avoid: rows that are not to be used.
            from_nothing: whether edges from nothing are.

        Returns:
            None where costs are so large that their sums would not be exact.
        """
        nodes = len(self.offsets) - 1
        nbytes, objects, decoded = (int(column.max(initial=0)) for column in (self.nbytes, self.objects, self.decoded))
        if nbytes + object_cost * objects + cell_cost * decoded > _COST_LIMIT // nodes:
            return None
        price = self.nbytes + object_cost * self.objects + cell_cost * self.decoded
        price[list(avoid)] = -1
        if not from_nothing:
            price[self.start < 0] = -1
        start_legs = np.full(nodes, -1, np.int64)
        start_legs[-1] = 0
        for number, before in starts.items():
            node = self._node(number)
            if node >= 0:
                start_legs[node] = before
        last = self._node(target)
        if last < 0:  # no edge leads there: it is one of the starts, or can't be reached
            there = target in starts
            return Path(there, target if there else -1, np.empty(0, np.int64), np.empty(0, np.int64))
        cost, legs, via = np.empty(nodes, np.int64), np.full(nodes, -1, np.int64), np.empty(nodes, np.int64)
        heap = np.empty((2, len(self.order) + 1), np.int64)
        graph = (self.offsets, self.order, self.start, self.end, price, 0)
        found = int(_loop("cheapest_path")(*graph, last, start_legs, cost, legs, via, *heap))
        rows = np.empty(nodes, np.int64)
        count = _loop("trace_path")(via, self.end, 0, found, rows) if found >= 0 else 0
        start = -1 if found in (-1, nodes - 1) else int(self.numbers[found])
        return Path(found >= 0, start, rows[:count], self.numbers[np.flatnonzero(legs[:-1] >= 0)])

    def _node(self, number: int) -> int:
        """Return the node of a number, -1 for one that no edge has."""
        at = int(np.searchsorted(self.numbers, number))
        return at if at < len(self.numbers) and self.numbers[at] == number else -1


@dataclass(frozen=True, slots=True)
class Path:
    """The path that a search found.

    Attributes:
        found: whether there is a path.
        start: where it begins; -1: from nothing.
        rows: its edges, in order.
        reached: the numbers from which a way to the target was looked at.
    """

    found: bool
    start: int
    rows: Numbers
    reached: Numbers


def _numbers(start: Numbers, end: Numbers, usable: npt.NDArray[np.bool_]) -> Numbers:
    """Return the numbers that usable edges join, rising, each once; where they lie close, those between them too."""
    met = np.concatenate((end[usable], start[usable & (start >= 0)]))
    if not len(met):
        return met
    low, high = int(met.min()), int(met.max())
    return np.arange(low, high + 1) if high - low < 4 * len(met) else np.unique(met)


def _nodes(numbers: Numbers, joined: Numbers) -> Numbers:
    """Return the nodes of numbers, of which only those of usable edges are theirs; -1: nothing."""
    if len(numbers) and numbers[-1] - numbers[0] == len(numbers) - 1:
        return np.where(joined < 0, -1, joined - numbers[0])
    return np.where(joined < 0, -1, np.searchsorted(numbers, joined))


def _loop(name: str) -> Any:
    try:
        from pulse_kernels.cpu.compile import compiled
    except ImportError as error:
        raise BackendUnavailable(f"numba can't be imported: {error}") from error
    return compiled(name, 8)
