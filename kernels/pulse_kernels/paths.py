"""Cheapest paths in a graph of many edges: arrays in, arrays out.

An edge leads from one number to another, or from nothing (a start below 0); it has a size and a number of objects.
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
        start, end, nbytes, objects: of each row.
        low: the least number that is a start or an end.
        offsets, order: rows by end.
    """

    start: Numbers
    end: Numbers
    nbytes: Numbers
    objects: Numbers
    low: int
    offsets: npt.NDArray[np.int32]
    order: npt.NDArray[np.int32]

    @classmethod
    def of(cls, start: Numbers, end: Numbers, nbytes: Numbers, objects: Numbers, usable: npt.NDArray[np.bool_]) -> Self:
        """Put edges in order, in time that is linear in their number.

        Raises:
            BackendUnavailable: numba can't be imported here.
        """
        live = np.flatnonzero(usable)
        starts = start[live]
        low, high = 0, -1
        if len(live):
            low, high = int(end[live].min()), int(max(end[live].max(), starts.max()))
            low = min(low, int(starts.min(where=starts >= 0, initial=low)))
        # A node for each number, one for nothing, and the end of the last node's rows.
        offsets, order = np.zeros(high - low + 3, np.int32), np.empty(len(live), np.int32)
        _loop("link_edges")(start, end, usable, low, offsets, order)
        return cls(start, end, nbytes, objects, low, offsets, order)

    def cheapest(
        self, target: int, starts: Mapping[int, int], object_cost: int, avoid: Sequence[int] = ()
    ) -> Path | None:
        """Find the cheapest path to ``target`` from nothing or from one of ``starts``, by Dijkstra's algorithm.

        Of equally cheap ones it takes the one with the fewest legs, those before its start included; then the one with
        the lower start, and nothing last; of equal edges, the last one.

        Args:
            target: to reach.
            starts: the legs that lead to each start, by number.
            object_cost: what an object costs beside its bytes.
            avoid: rows that are not to be used.

        Returns:
            None where costs are so large that their sums would not be exact.
        """
        nodes = len(self.offsets) - 1
        price = self.nbytes + object_cost * self.objects if object_cost < _COST_LIMIT // nodes else None
        if price is None or int(price.max(initial=0)) > _COST_LIMIT // nodes or int(price.min(initial=0)) < 0:
            return None
        price[list(avoid)] = -1
        start_legs = np.full(nodes, -1, np.int64)
        start_legs[-1] = 0
        for number, before in starts.items():
            if 0 <= number - self.low < nodes - 1:
                start_legs[number - self.low] = before
        if not 0 <= target - self.low < nodes - 1:
            return Path(False, -1, np.empty(0, np.int64), np.empty(0, np.int64))
        cost, legs, via = np.empty(nodes, np.int64), np.full(nodes, -1, np.int64), np.empty(nodes, np.int64)
        heap = np.empty((2, len(self.order) + 1), np.int64)
        graph = (self.offsets, self.order, self.start, self.end, price, self.low)
        found = int(_loop("cheapest_path")(*graph, target - self.low, start_legs, cost, legs, via, *heap))
        rows = np.empty(nodes, np.int64)
        count = _loop("trace_path")(via, self.end, self.low, found, rows) if found >= 0 else 0
        start = -1 if found in (-1, nodes - 1) else found + self.low
        return Path(found >= 0, start, rows[:count], np.flatnonzero(legs[:-1] >= 0) + self.low)


@dataclass(frozen=True, slots=True)
class Path:
    """What a search found.

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


def _loop(name: str) -> Any:
    try:
        from pulse_kernels.numba_compile import compiled
    except ImportError as error:
        raise BackendUnavailable(f"numba can't be imported: {error}") from error
    return compiled(name, 8)
