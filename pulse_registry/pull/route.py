"""Route planning: choose the cheapest route from what a worker holds to a version. Pure: a function of the run's state.

Versions are the nodes of a graph. A keyframe leads from nothing to its version; a patch, from its base to its
target and, if its coder allows, back; undo entries in the worker's memory lead back at no cost.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn, TypeAlias

from pulse_kernels import BackendUnavailable
from pulse_registry.errors import Gone, InvalidArgument, NotFound
from pulse_registry.log.leg import Leg, LegKind
from pulse_registry.log.state import RunState
from pulse_registry.store.prices import USUAL, Prices
from pulse_schemas import ObjectRef

__all__ = ["Leg", "LegKind", "Route", "plan"]

_NEAR = 256
"""Versions that are looked at one by one, before the compiled search is worth its calls."""

_NOTHING = 2**63
"""The node of a worker that holds no version; above every version, so that a held base wins a tie."""


@dataclass(frozen=True, slots=True)
class Route:
    """Legs that lead, in this order, from version ``base`` (None: from nothing) to ``target``."""

    base: int | None
    target: int
    legs: tuple[Leg, ...]

    @property
    def nbytes(self) -> int:
        """Bytes to fetch."""
        return sum(leg.nbytes for leg in self.legs)

    @property
    def objects(self) -> int:
        """Objects to fetch."""
        return sum(leg.objects for leg in self.legs)

    @property
    def decoded(self) -> int:
        """Changed cells to decode, a keyframe counted as some."""
        return sum(leg.decoded for leg in self.legs)

    @property
    def refs(self) -> tuple[ObjectRef, ...]:
        """The objects to fetch."""
        return tuple(ref for leg in self.legs for ref in leg.refs)


Starts: TypeAlias = Mapping[int, tuple[Leg, ...]]
"""The versions that a worker is at, or gets to in memory, with the undo legs that lead there."""


def plan(
    state: RunState,
    target: int,
    *,
    have: int | None,
    undo: Sequence[int] = (),
    prices: Prices = USUAL,
    avoid: Collection[str] = (),
    keyframes: bool = True,
    only_gap: bool = False,
    most: int | None = None,
) -> Route:
    """Find the route to ``target`` with the least bytes, plus a price for every object and every cell that is decoded.

    Dijkstra's algorithm, backwards from the target, which visits only versions that are no further from it
    than the start. Of equally cheap routes it takes the one with the fewest legs, and of equal objects the
    newest; the same state gives the same route. A route fetches nothing that is retired and no way into a retired
    version, but may start at one; layouts change on keyframe legs only.

    Args:
        state: the run.
        target: the version to reach.
        have: the version that the worker holds, None for nothing.
        undo: versions that the worker can step back to in memory, newest first: ``undo[0]`` from ``have``,
            ``undo[1]`` from ``undo[0]``, and so on.
        prices: what one more object is worth in bytes, and one more changed cell, which takes time to be decoded.
        avoid: keys of objects that can't be had: patches and keyframes with one of them are left out.
        keyframes: whether the route may have one.
        only_gap: whether patches that are coded against their base are left out.
        most: legs that are made, at least one: a route of more ends where they do, and whoever asks from there on gets
            the others.

    Raises:
        Gone: ``target`` is retired, or ``have`` is forgotten.
        NotFound: ``target`` or ``have`` is no version, or no live objects lead there.
        InvalidArgument: a price is negative.
    """
    for name, price in prices._asdict().items():
        if price < 0:
            raise InvalidArgument(f"{name} is {price}; it can't be negative")
    state.version(target)
    if have is not None:
        state.version(have)
    if have == target:
        return Route(have, target, ())
    if state.is_retired(target):
        raise Gone(f"version {target} of run {state.run!r} was retired; pull another version")
    starts = starts_of(state, have, undo)
    # The last resort, for where nothing is compiled, always finds a route, or says why there is none.
    return (
        search_near(state, target, starts, prices, avoid, keyframes, only_gap, _NEAR, most)
        or search_far(state, target, starts, prices, avoid, keyframes, only_gap, most)
        or search_near(state, target, starts, prices, avoid, keyframes, only_gap, most=most)
        or _refuse(state, target, (), starts)
    )


def search_near(
    state: RunState,
    target: int,
    starts: Starts,
    prices: Prices,
    avoid: Container[str],
    keyframes: bool = True,
    only_gap: bool = False,
    limit: float = math.inf,
    most: int | None = None,
) -> Route | None:
    """Search version by version: the plain search, and the fastest where few versions are looked at.

    Returns:
        None once more than ``limit`` versions were.
    """
    # Best way known from a version on to the target: cost, legs, and its first leg.
    best: dict[int, tuple[int, int, Leg | None]] = {target: (0, 0, None)}
    queue = [(0, 0, target)]
    # The best start reached: cost, legs with those in memory, version.
    found = none_yet = (math.inf, math.inf, _NOTHING)
    looked = 0
    while queue:
        cost, legs, version = heapq.heappop(queue)
        if (cost, legs) >= found[:2]:
            break
        if (cost, legs) != best[version][:2]:
            continue
        if version in starts or version == _NOTHING:
            found = min(found, (cost, legs + len(starts.get(version, ())), version))
        if version == _NOTHING:
            continue
        looked += 1
        if looked > limit:
            return None
        for leg in _legs_into(state, version, avoid, keyframes, only_gap):
            start = _NOTHING if leg.base is None else leg.base
            reached = (cost + prices.of(leg), legs + 1)
            if start not in best or reached < best[start][:2]:
                best[start] = (*reached, leg)
                heapq.heappush(queue, (*reached, start))
    if found is none_yet:
        _refuse(state, target, best, starts)
    way, here = [], found[2]
    while (first := best[here][2]) is not None:
        way.append(first)
        here = first.target
    return _route(starts.get(found[2], ()), way, most)


def search_far(
    state: RunState,
    target: int,
    starts: Starts,
    prices: Prices,
    avoid: Collection[str],
    keyframes: bool = True,
    only_gap: bool = False,
    most: int | None = None,
) -> Route | None:
    """Search in the columns of numbers, compiled: where many versions are looked at. Finds what ``search_near`` finds.

    Returns:
        None where that is not possible: without numba, or with sizes that no store can hold.
    """
    edges = state.edges
    try:
        path = edges.graph().cheapest(
            target,
            {version: len(legs) for version, legs in starts.items()},
            *prices,
            [*edges.rows_of(avoid), *(edges.rows_of_class() if only_gap else ())],
            from_nothing=keyframes,
        )
    except BackendUnavailable:
        return None
    if path is None:
        return None
    if not path.found:
        _refuse(state, target, path.reached.tolist(), starts)
    way = edges.legs(path.rows[:most])  # of a long route, to make its legs costs more than to find it
    return _route(starts.get(path.start, ()), way, most)


def starts_of(state: RunState, have: int | None, undo: Sequence[int]) -> Starts:
    """Return the versions that the worker is at, or gets to in memory, with the undo legs that lead there."""
    if have is None:
        return {}
    starts: dict[int, tuple[Leg, ...]] = {have: ()}
    layout, here = state.version(have).layout, have
    legs: tuple[Leg, ...] = ()
    for version in undo:
        entry = state.find(version)
        if entry is None or entry.layout != layout:
            break
        legs = (*legs, Leg("undo", here, version))
        starts.setdefault(version, legs)
        here = version
    return starts


def _legs_into(state: RunState, version: int, avoid: Container[str], keyframes: bool, only_gap: bool) -> Iterator[Leg]:
    """Yield every leg with live objects that ends at ``version``."""
    if state.is_retired(version):
        return
    for keyframe in reversed(state.keyframes_of(version)) if keyframes else ():
        leg = Leg("keyframe", None, version, keyframe=keyframe)
        if not any(ref.key in avoid for ref in leg.refs):
            yield leg
    for patch in reversed(state.patches_into(version)):
        if patch.object.key not in avoid and (patch.coder == "gap" or not only_gap):
            yield Leg("patch", patch.base, version, patch=patch)
    for patch in reversed(state.patches_from(version)):
        if patch.coder == "gap" and patch.object.key not in avoid:
            yield Leg("inverse", patch.target, version, patch=patch)


def _route(undo: tuple[Leg, ...], way: list[Leg], most: int | None) -> Route:
    legs = (*undo, *way)[:most]
    return Route(legs[0].base, legs[-1].target, legs)


def _refuse(state: RunState, target: int, reached: Collection[int], starts: Starts) -> NoReturn:
    origin = f"from version {next(iter(starts))} or from nothing" if starts else "from nothing"
    retired = sorted(version for version in reached if state.is_retired(version))
    because = f"; version {', '.join(map(str, retired[:8]))} on the way was retired" if retired else ""
    raise NotFound(
        f"run {state.run!r}: no live objects lead {origin} to version {target}: patches lead there from "
        f"version {min(reached, default=target)} on, of which none has a live keyframe{because}"
    )
