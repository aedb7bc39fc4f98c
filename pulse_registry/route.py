"""Routes: the cheapest way from what a worker holds to a version. Pure: a function of the run's state.

Versions are the nodes of a graph. A keyframe leads from nothing to its version; a patch, from its base to its
target and, if its coder allows, back; undo entries in the worker's memory lead back at no cost.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NoReturn

from pulse_registry.errors import InvalidArgument, NotFound
from pulse_registry.log.state import RunState
from pulse_schemas import KeyframeRef, ObjectRef, PatchRef

LegKind = Literal["keyframe", "patch", "inverse", "undo"]

DEFAULT_OBJECT_COST = 65536
"""Bytes that one more object to fetch is worth: about what a link carries while a request is under way."""

_NOTHING = 2**63
"""The node of a worker that holds no version; above every version, so that a held base wins a tie."""


@dataclass(frozen=True, slots=True)
class Leg:
    """One step of a route: from version ``base`` (None: from nothing) to version ``target``.

    ``patch`` is set for kinds ``patch`` and ``inverse`` (then its base is this leg's target), ``keyframe``
    for kind ``keyframe``, and neither for ``undo``, which needs no object.
    """

    kind: LegKind
    base: int | None
    target: int
    patch: PatchRef | None = None
    keyframe: KeyframeRef | None = None

    @property
    def nbytes(self) -> int:
        """Bytes to fetch."""
        ref = self.patch or self.keyframe
        return ref.size if ref else 0

    @property
    def objects(self) -> int:
        """Objects to fetch: a keyframe has its shards and an index."""
        if self.keyframe:
            return len(self.keyframe.shards) + 1
        return 1 if self.patch else 0

    @property
    def refs(self) -> tuple[ObjectRef, ...]:
        """The objects to fetch."""
        if self.keyframe:
            return (self.keyframe.index, *self.keyframe.shards)
        return (self.patch.object,) if self.patch else ()


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
    def refs(self) -> tuple[ObjectRef, ...]:
        """The objects to fetch."""
        return tuple(ref for leg in self.legs for ref in leg.refs)


def plan(
    state: RunState,
    target: int,
    *,
    have: int | None,
    undo: Sequence[int] = (),
    object_cost: int = DEFAULT_OBJECT_COST,
) -> Route:
    """Find the route to ``target`` with the least bytes, plus ``object_cost`` for every object.

    Dijkstra's algorithm, backwards from the target, which visits only versions that are no further from it
    than the start. Of equally cheap routes it takes the one with the fewest legs; the same state gives
    the same route. A route fetches nothing that is retired and no way into a retired version, but may start
    at one; layouts change on keyframe legs only.

    Args:
        state: the run.
        target: the version to reach.
        have: the version that the worker holds, None for nothing.
        undo: versions that the worker can step back to in memory, newest first: ``undo[0]`` from ``have``,
            ``undo[1]`` from ``undo[0]``, and so on.
        object_cost: bytes that one more object is worth.

    Raises:
        NotFound: ``target`` or ``have`` is no version, ``target`` is retired, or no live objects lead there.
        InvalidArgument: ``object_cost`` is negative.
    """
    if object_cost < 0:
        raise InvalidArgument(f"object_cost is {object_cost}; it can't be negative")
    state.version(target)
    if have is not None:
        state.version(have)
    if have == target:
        return Route(have, target, ())
    if state.is_retired(target):
        raise NotFound(f"version {target} of run {state.run!r} was retired; pull another version")
    return _search(state, target, _starts(state, have, undo), object_cost)


def _search(state: RunState, target: int, starts: dict[int, tuple[Leg, ...]], object_cost: int) -> Route:
    # Best way known from a version on to the target: cost, legs, and its first leg.
    best: dict[int, tuple[int, int, Leg | None]] = {target: (0, 0, None)}
    queue = [(0, 0, target)]
    # The best start reached: cost, legs with those in memory, version.
    found = none_yet = (math.inf, math.inf, _NOTHING)
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
        for leg in _legs_into(state, version):
            start = _NOTHING if leg.base is None else leg.base
            reached = (cost + leg.nbytes + object_cost * leg.objects, legs + 1)
            if start not in best or reached < best[start][:2]:
                best[start] = (*reached, leg)
                heapq.heappush(queue, (*reached, start))
    if found is none_yet:
        _refuse(state, target, best, starts)
    return _route(target, starts.get(found[2], ()), found[2], best)


def _starts(state: RunState, have: int | None, undo: Sequence[int]) -> dict[int, tuple[Leg, ...]]:
    """Return the versions that the worker is at, or gets to in memory, with the undo legs that lead there."""
    if have is None:
        return {}
    starts: dict[int, tuple[Leg, ...]] = {have: ()}
    layout, here = state.version(have).layout, have
    legs: tuple[Leg, ...] = ()
    for version in undo:
        if not 0 <= version < len(state.versions) or state.versions[version].layout != layout:
            break
        legs = (*legs, Leg("undo", here, version))
        starts.setdefault(version, legs)
        here = version
    return starts


def _legs_into(state: RunState, version: int) -> Iterator[Leg]:
    """Yield every leg with live objects that ends at ``version``."""
    if state.is_retired(version):
        return
    keyframe = state.keyframe(version)
    if keyframe is not None:
        yield Leg("keyframe", None, version, keyframe=keyframe)
    for patch in state.patches_into(version):
        yield Leg("patch", patch.base, version, patch=patch)
    for patch in state.patches_from(version):
        if patch.coder == "gap":
            yield Leg("inverse", patch.target, version, patch=patch)


def _route(target: int, undo: tuple[Leg, ...], start: int, best: dict[int, tuple[int, int, Leg | None]]) -> Route:
    legs = list(undo)
    here = start
    while (leg := best[here][2]) is not None:
        legs.append(leg)
        here = leg.target
    return Route(legs[0].base, target, tuple(legs))


def _refuse(
    state: RunState,
    target: int,
    best: dict[int, tuple[int, int, Leg | None]],
    starts: dict[int, tuple[Leg, ...]],
) -> NoReturn:
    origin = f"from version {next(iter(starts))} or from nothing" if starts else "from nothing"
    retired = sorted(version for version in best if state.is_retired(version))
    because = f"; version {', '.join(map(str, retired[:8]))} on the way was retired" if retired else ""
    raise NotFound(
        f"run {state.run!r}: no live objects lead {origin} to version {target}: patches lead there from "
        f"version {min(best)} on, of which none has a live keyframe{because}"
    )
