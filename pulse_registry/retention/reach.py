"""Cheapest routes from nothing to each version of a run, and which versions can be reached from others.

No I/O. A route may not pass a retired version; only who holds one may begin there.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from pulse_registry.log import RunState
from pulse_registry.log.leg import Leg
from pulse_registry.store.prices import USUAL
from pulse_schemas import KeyframeRef


@dataclass(frozen=True, slots=True)
class Tree:
    """The cheapest routes from nothing: of each version that can be reached, the one before it; None: its keyframe."""

    before: Mapping[int, int | None]

    def route_to(self, version: int) -> Iterator[int]:
        """Yield the versions of the cheapest route to one that can be reached: that one first, the keyframe's last."""
        here: int | None = version
        while here is not None:
            yield here
            here = self.before[here]


def cheapest_tree(state: RunState) -> Tree:
    """Return the cheapest route from nothing to every version, by the usual prices."""
    ways = _Ways(state)
    queue = [(_cost(keyframe), version, -1) for version, keyframe in best_keyframes(state).items()]
    heapq.heapify(queue)
    before: dict[int, int | None] = {}
    while queue:
        cost, version, last = heapq.heappop(queue)
        if version in before:
            continue
        before[version] = None if last < 0 else last
        for other, price in ways.of(version):
            if other not in before:
                heapq.heappush(queue, (cost + price, other, version))
    return Tree(before)


def best_keyframes(state: RunState) -> dict[int, KeyframeRef]:
    """Return the cheapest keyframe of each version that has one and is not retired; see ``best_keyframe``."""
    found: dict[int, KeyframeRef] = {}
    for keyframe in state.keyframes:
        best = found.get(keyframe.version)
        if (best is None or _cost(keyframe) <= _cost(best)) and not state.is_retired(keyframe.version):
            found[keyframe.version] = keyframe
    return found


def best_keyframe(state: RunState, version: int) -> KeyframeRef | None:
    """Return the cheapest keyframe of a version, of equals the newest; None if it has none, or was retired."""
    found = () if state.is_retired(version) else state.keyframes_of(version)
    return min(reversed(found), key=_cost, default=None)


def reachable(state: RunState, starts: Iterable[int] | None = None) -> set[int]:
    """Return the versions that can be reached from some versions, or from nothing; the starts are among them."""
    ways = _Ways(state)
    found = set(ways.from_nothing if starts is None else starts)
    todo = list(found)
    while todo:
        for other, _ in ways.of(todo.pop()):
            if other not in found:
                found.add(other)
                todo.append(other)
    return found


class _Ways:
    """The versions that one object leads to, from each version and from nothing, and the object's price."""

    def __init__(self, state: RunState) -> None:
        edges, (object_cost, cell_cost) = state.edges, USUAL
        order = np.argsort(edges.start, kind="stable")
        columns = (column[order].tolist() for column in (edges.nbytes, edges.objects, edges.decoded))
        self._prices = [n + object_cost * o + cell_cost * d for n, o, d in zip(*columns, strict=True)]
        self._ends = edges.end[order].tolist()
        starts, first = np.unique(edges.start[order], return_index=True)
        bounds = [*first.tolist(), len(order)]
        self._of = dict(zip(starts.tolist(), pairwise(bounds), strict=True))
        self.from_nothing = {version for version, _ in self.of(-1)}

    def of(self, version: int) -> Iterator[tuple[int, int]]:
        """Yield the versions that one patch leads to from one, and the patch's price."""
        first, last = self._of.get(version, (0, 0))
        return zip(self._ends[first:last], self._prices[first:last], strict=True)


def _cost(keyframe: KeyframeRef) -> int:
    return USUAL.of(Leg("keyframe", None, keyframe.version, keyframe=keyframe))
