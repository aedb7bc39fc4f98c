"""The columns of live objects: after every record they say what the state's own lists say."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulse_registry.log import RunState
from pulse_registry.log.fold import advance
from pulse_registry.log.graph import RouteGraph
from tests.support.records import Script, chain, keyframe, patch


def rows(edges: RouteGraph) -> Counter:
    starts, ends, sizes, changed = (column.tolist() for column in (edges.start, edges.end, edges.nbytes, edges.decoded))
    legs = edges.legs(np.arange(len(edges)))
    for leg, start, end, size, cells in zip(legs, starts, ends, sizes, changed, strict=True):
        assert (-1 if leg.base is None else leg.base, leg.target, leg.nbytes) == (start, end, size)
        assert cells == leg.decoded
    assert [leg.objects for leg in legs] == edges.objects.tolist()
    return Counter(zip(starts, ends, sizes, strict=True))


def expected(state: RunState) -> Counter:
    found: Counter = Counter()
    for ref in state.patches:
        for start, end in ((ref.base, ref.target), (ref.target, ref.base))[: 2 if ref.coder == "gap" else 1]:
            if not state.is_retired(end):
                found[start, end, ref.size] += 1
    for frame in state.keyframes:
        if not state.is_retired(frame.version):
            found[-1, frame.version, frame.size] += 1
    return found


@pytest.mark.slow
@given(st.data())
def test_they_are_the_live_legs_after_every_record_in_old_states_too(data):
    script = chain(data.draw(st.integers(2, 6)))
    states = [script.state]
    for tag in range(1, data.draw(st.integers(1, 8))):
        state = script.state
        live = [n for n in range(len(state.versions)) if not state.is_retired(n)]
        keys = [p.object.key for p in state.patches] + [k.index.key for k in state.keyframes]
        match data.draw(st.sampled_from(["commit", "attach", "keyframe", "retire", "keys", "delete"])):
            case "commit":
                record = script.make_commit(patch=patch(len(state.versions) - 1, len(state.versions), coder="class"))
            case "attach" if len(live) > 1:
                a, b = sorted(data.draw(st.lists(st.sampled_from(live), min_size=2, max_size=2, unique=True)))
                record = script.make_attach(patches=(patch(a, b, size=100 + tag, tag=tag),))
            case "keyframe":
                record = script.make_attach(keyframes=(keyframe(data.draw(st.sampled_from(live)), tag=tag),))
            case "retire" if len(live) > 1:
                record = script.make_retire(versions=tuple(data.draw(st.sets(st.sampled_from(live[:-1]), max_size=2))))
            case "keys" if keys:
                record = script.make_retire(keys=tuple(data.draw(st.sets(st.sampled_from(keys), max_size=3))))
            case _:
                record = script.make_delete()
        script.state = state.copy()
        advance(script.state, record, "0" * 64)
        states.append(script.state)
        script.records.append(record)
    for state in states:
        assert rows(state.edges) == expected(state)
        again = RunState.from_snapshot(state.to_snapshot())
        assert rows(again.edges) == expected(state)


def test_two_states_that_go_on_from_one_do_not_see_each_other():
    script = chain(3)
    one, other = script.state.copy(), script.state.copy()
    advance(one, script.make_attach(patches=(patch(0, 2, size=7),)), "1" * 64)
    advance(other, script.make_attach(keyframes=(keyframe(2, size=7),)), "2" * 64)
    advance(one, Script.make_attach(_of(one), patches=(patch(0, 1, size=8, tag=3),)), "3" * 64)
    for state in (script.state, one, other):
        assert rows(state.edges) == expected(state)


def _of(state: RunState) -> Script:
    script = Script()
    script.state = state
    return script


def test_what_leads_into_retired_versions_and_what_was_deleted_takes_no_rows():
    script = chain(400)
    state = script.state.copy()
    advance(state, script.make_retire(versions=tuple(range(390))), "0" * 64)
    assert rows(state.edges) == expected(state)
    assert len(state.edges) < 30 < len(script.state.edges)
    advance(state, Script.make_delete(_of(state)), "1" * 64)
    assert [len(table) for table in vars(state.tables).values()] == [10, 9, 0]


def test_the_rows_of_an_object_are_found_by_its_key():
    script = chain(4).attach(keyframes=(keyframe(3, shards=2),))
    edges = script.state.edges
    found = edges.rows_of([patch(1, 2).object.key, keyframe(3, shards=2).shards[1].key, "objects/none"])
    assert [(edges.start[row], edges.end[row]) for row in found] == [(1, 2), (2, 1), (-1, 3)]
    assert edges.rows_of([]) == []


def test_the_rows_of_patches_that_are_coded_against_their_base_are_found():
    edges = chain(2).commit(patch=patch(1, 2, coder="class")).commit().state.edges
    assert [(edges.start[row], edges.end[row]) for row in edges.rows_of_class()] == [(1, 2)]
