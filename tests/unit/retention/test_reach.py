"""What can be reached in a run, and by which routes: the search for many finds what a search for each finds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulse_registry.errors import NotFound
from pulse_registry.pull.route import plan
from pulse_registry.retention.reach import steps_to
from pulse_registry.store.prices import Prices
from tests.support.records import chain, keyframe
from tests.unit.pull.test_route import histories


@pytest.mark.slow
@given(histories(), st.data())
def test_one_search_for_many_finds_the_route_of_each(state, data):
    known = st.sampled_from([entry.version for entry in state.versions])
    target, starts = data.draw(known), data.draw(st.sets(known))
    prices = Prices(data.draw(st.integers(0, 12)), data.draw(st.integers(0, 3)))
    steps = steps_to(state, target, starts, prices)
    assert target not in steps
    for start in starts:
        found, here = [], start
        while here in steps:
            found.append(steps[here])
            here = found[-1].target
        try:
            route = plan(state, target, have=start, prices=prices)
        except NotFound:
            assert not found
        else:
            assert found == [(leg.target, leg.nbytes) for leg in route.legs]


@pytest.mark.parametrize(("starts", "looked_at"), [((), 0), ((8,), 1), ((0, 8), 4)])
def test_the_search_ends_where_nothing_cheaper_is_left(starts, looked_at):
    state = chain(10).attach(keyframes=(keyframe(6, size=1),)).state
    steps = steps_to(state, 9, starts, Prices(1000, 0))
    assert len([version for version in steps if version not in starts]) <= looked_at
    assert {*starts} <= steps.keys()
