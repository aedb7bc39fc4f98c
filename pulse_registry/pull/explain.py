"""Route alternatives: other routes to a version, and their costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pulse_registry.errors import NotFound
from pulse_registry.log import RunState
from pulse_registry.pull.route import Leg, Route, plan
from pulse_registry.store.prices import Prices

Way = Literal["chain", "keyframe", "direct"]


@dataclass(frozen=True, slots=True)
class Alternative:
    """Another route from a route's base to its target.

    Attributes:
        way: ``chain``, version by version; ``keyframe``, as for who holds nothing; ``direct``, one patch.
        route: its objects; None where they are not there.
    """

    way: Way
    route: Route | None


def alternatives(state: RunState, route: Route, have: int | None, prices: Prices) -> tuple[Alternative, ...]:
    """Return the other routes that a reader may have expected, whether they are there or not.

    From nothing there is no chain and no direct patch.

    Args:
        state: the run.
        route: what ``plan`` found for it.
        have: the version at hand that it was planned with; None: nothing.
        prices: as in ``plan``.
    """
    target = route.target
    try:
        fresh = plan(state, target, have=None, prices=prices)
    except NotFound:
        fresh = None
    keyframe = Alternative("keyframe", fresh)
    if have is None or have == target:
        return (keyframe,)
    return (
        Alternative("chain", _chain(state, have, target)),
        keyframe,
        Alternative("direct", _direct(state, have, target)),
    )


def _chain(state: RunState, have: int, target: int) -> Route | None:
    """Return the route version by version, each by the smallest patch; None where one is missing."""
    legs = []
    towards = 1 if target > have else -1
    for version in range(have, target, towards):
        leg = _step(state, version, version + towards)
        if leg is None:
            return None
        legs.append(leg)
    return Route(have, target, tuple(legs))


def _direct(state: RunState, have: int, target: int) -> Route | None:
    leg = _step(state, have, target)
    return None if leg is None else Route(have, target, (leg,))


def _step(state: RunState, base: int, target: int) -> Leg | None:
    if state.is_retired(target):
        return None
    if base < target:
        legs = [Leg("patch", base, target, patch=patch) for patch in state.patches_into(target) if patch.base == base]
    else:
        legs = [
            Leg("inverse", base, target, patch=patch)
            for patch in state.patches_from(target)
            if patch.target == base and patch.coder == "gap"
        ]
    return min(legs, key=lambda leg: leg.nbytes, default=None)
