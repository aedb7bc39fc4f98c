"""Cheapest routes from nothing to each version of a run, and which versions can be reached from others.

No I/O. A route may not pass a retired version; only who holds one may begin there.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from pulse_registry.log import RunState
from pulse_registry.log.leg import Leg
from pulse_registry.store.prices import USUAL
from pulse_schemas import KeyframeRef, PatchRef


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
    queue = [(_cost(keyframe), version, -1) for version, keyframe in best_keyframes(state).items()]
    heapq.heapify(queue)
    before: dict[int, int | None] = {}
    while queue:
        cost, version, last = heapq.heappop(queue)
        if version in before:
            continue
        before[version] = None if last < 0 else last
        for other, price in _next(state, version):
            if other not in before:
                heapq.heappush(queue, (cost + price, other, version))
    return Tree(before)


def best_keyframes(state: RunState) -> dict[int, KeyframeRef]:
    """Return the cheapest keyframe of each version that has one and is not retired; see ``best_keyframe``."""
    found = ((version, best_keyframe(state, version)) for version in {frame.version for frame in state.keyframes})
    return {version: keyframe for version, keyframe in found if keyframe is not None}


def best_keyframe(state: RunState, version: int) -> KeyframeRef | None:
    """Return the cheapest keyframe of a version, of equals the newest; None if it has none, or was retired."""
    found = () if state.is_retired(version) else state.keyframes_of(version)
    return min(reversed(found), key=_cost, default=None)


def reachable(state: RunState, starts: Iterable[int] | None = None) -> set[int]:
    """Return the versions that can be reached from some versions, or from nothing; the starts are among them."""
    if starts is None:
        starts = (keyframe.version for keyframe in state.keyframes if not state.is_retired(keyframe.version))
    found = set(starts)
    todo = list(found)
    while todo:
        for other, _ in _next(state, todo.pop()):
            if other not in found:
                found.add(other)
                todo.append(other)
    return found


def _cost(keyframe: KeyframeRef) -> int:
    return USUAL.of(Leg("keyframe", None, keyframe.version, keyframe=keyframe))


def _next(state: RunState, version: int) -> Iterator[tuple[int, int]]:
    """Yield the versions that one patch leads to from here, and the patch's price: forwards, or inverted."""
    for patch in state.patches_from(version):
        if not state.is_retired(patch.target):
            yield patch.target, _price(patch)
    for patch in state.patches_into(version):
        if patch.coder == "gap" and not state.is_retired(patch.base):
            yield patch.base, _price(patch)


def _price(patch: PatchRef) -> int:
    return USUAL.of(Leg("patch", patch.base, patch.target, patch=patch))
