"""What else would lead to a version: the chain, a keyframe, a direct patch, as far as they are there."""

from __future__ import annotations

import pytest

from pulse_registry.log import RunState
from pulse_registry.pull.explain import alternatives
from pulse_registry.pull.route import Route, plan
from pulse_registry.store.prices import Prices
from tests.support.records import Script, chain, keyframe, patch

BY_BYTES = Prices(0, 0)


def ways(state: RunState, have: int | None, target: int, prices: Prices = BY_BYTES) -> dict[str, Route | None]:
    route = plan(state, target, have=have, prices=prices)
    return {other.way: other.route for other in alternatives(state, route, have, prices)}


@pytest.fixture
def script() -> Script:
    return chain(9).attach(
        patches=(patch(2, 8, size=150), patch(2, 8, size=140, tag=1), patch(2, 3, size=90, tag=2)),
        keyframes=(keyframe(7, size=50),),
    )


def test_the_three_ways_onwards_are_named(script: Script) -> None:
    found = ways(script.state, 2, 8)
    assert [leg.base for leg in found["chain"].legs] == [2, 3, 4, 5, 6, 7]  # type: ignore[union-attr]
    assert Prices(10, 0).of(found["chain"]) == 590 + 60, "of two patches the smaller"  # type: ignore[arg-type]
    assert found["keyframe"] == plan(script.state, 8, have=None, prices=BY_BYTES)
    assert Prices(10, 0).of(found["direct"]) == 150  # type: ignore[arg-type]


def test_the_ways_back_are_inverses(script: Script) -> None:
    found = ways(script.state, 8, 2)
    assert {leg.kind for leg in found["chain"].legs} == {"inverse"}  # type: ignore[union-attr]
    assert found["direct"].nbytes == 140  # type: ignore[union-attr]
    classes = chain(2).commit(patch=patch(1, 2, coder="class")).state
    assert ways(classes, 2, 1)["chain"] is None
    assert ways(classes, 2, 1)["direct"] is None


def test_no_way_leads_through_what_was_retired(script: Script) -> None:
    script.retire(versions=(5,), keys=(patch(2, 8, size=140, tag=1).object.key,))
    found = ways(script.state, 2, 8)
    assert found["chain"] is None
    assert found["direct"].nbytes == 150  # type: ignore[union-attr]
    script.retire(keys=(keyframe(0).index.key, keyframe(7, size=50).index.key))
    assert ways(script.state, 2, 8)["keyframe"] is None


def test_from_nothing_there_is_a_keyframe_alone(script: Script) -> None:
    assert list(ways(script.state, None, 8)) == ["keyframe"]
    assert list(ways(script.state, 8, 8)) == ["keyframe"]
