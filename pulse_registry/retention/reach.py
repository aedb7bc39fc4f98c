"""Cheapest routes from nothing to each version of a run, and which versions can be reached from others.

No I/O. A route may not pass a retired version; only who holds one may begin there.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from pulse_registry.log import RunState
from pulse_registry.log.leg import Leg
from pulse_registry.store.prices import USUAL, Prices
from pulse_schemas import KeyframeRef

_NOTHING = 2**63
"""Where a route from nothing begins: above every version, so that a held one wins a tie."""


class Step(NamedTuple):
    """One object of a route: the version that it leads to, and its bytes."""

    target: int
    nbytes: int


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
        for other, price, _ in ways.of(version):
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
    found = {version for version, _, _ in ways.of(-1)} if starts is None else set(starts)
    todo = list(found)
    while todo:
        for other, _, _ in ways.of(todo.pop()):
            if other not in found:
                found.add(other)
                todo.append(other)
    return found


def steps_to(state: RunState, target: int, starts: Collection[int], prices: Prices = USUAL) -> dict[int, Step]:
    """Return the first step of the route to a version from each of others: one search, backwards, for all of them.

    The routes are those that `pulse_registry.pull.route.plan` finds. The versions on them have their step, too, so that
    a route is followed from step to step; the target, and a version from which there is none, have no step.
    """
    ways, left = _Ways(state, into=True, prices=prices), {*starts}
    best, first, final = {target: (0, 0)}, dict[int, Step](), dict[int, Step]()
    queue = [(0, 0, target)]
    while queue and left:
        cost, legs, version = heapq.heappop(queue)
        if (cost, legs) != best[version]:
            continue
        if version == _NOTHING:  # nothing cheaper leads from those that are left
            return final | dict.fromkeys(left, first[_NOTHING])
        if version != target:
            final[version] = first[version]
        left.discard(version)
        for other, price, nbytes in ways.of(version):
            start = _NOTHING if other < 0 else other
            reached = (cost + price, legs + 1)
            if start not in best or reached < best[start]:
                best[start], first[start] = reached, Step(version, nbytes)
                heapq.heappush(queue, (*reached, start))
    return final


class _Ways:
    """The objects that lead from each version, and from nothing (-1); or into each: of equal ones the newest first."""

    def __init__(self, state: RunState, *, into: bool = False, prices: Prices = USUAL) -> None:
        edges, (object_cost, cell_cost) = state.edges, prices
        here, there = (edges.end, edges.start) if into else (edges.start, edges.end)
        order = len(here) - 1 - np.argsort(here[::-1], kind="stable")
        nbytes, objects, decoded = (column[order].tolist() for column in (edges.nbytes, edges.objects, edges.decoded))
        price = [n + object_cost * o + cell_cost * d for n, o, d in zip(nbytes, objects, decoded, strict=True)]
        self._rows = list(zip(there[order].tolist(), price, nbytes, strict=True))
        heres, first = np.unique(here[order], return_index=True)
        self._of = dict(zip(heres.tolist(), pairwise([*first.tolist(), len(order)]), strict=True))

    def of(self, version: int) -> list[tuple[int, int, int]]:
        """Return where each object leads to, or comes from, with its price and its bytes."""
        return self._rows[slice(*self._of.get(version, (0, 0)))]


def _cost(keyframe: KeyframeRef) -> int:
    return USUAL.of(Leg("keyframe", None, keyframe.version, keyframe=keyframe))
