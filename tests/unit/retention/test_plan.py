"""The plan of retention: a pure function. What is kept, why, and that nothing that is kept loses its way."""

from __future__ import annotations

import dataclasses
import re
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulse_registry.errors import InvalidArgument, NotFound
from pulse_registry.log import RunState
from pulse_registry.log.fold import advance
from pulse_registry.pull.route import plan as plan_route
from pulse_registry.retention import Plan, RetentionPolicy, plan_gc
from pulse_registry.retention.plan import Needs, can_be_named, harm, is_garbage
from pulse_registry.retention.reach import cheapest_tree
from pulse_schemas import RetireRecord, TagRecord
from tests.support.records import OTHER_LAYOUT, Script, chain, keyframe, patch
from tests.unit.pull.test_route import histories

LAST = RetentionPolicy(keep_last=1, keep_seconds=0)


def needs(state: RunState, held: dict[str, int] | None = None, orphans: tuple[str, ...] = ()) -> Needs:
    return Needs(held or {}, young_from=len(state.versions), orphans=orphans)


def with_keyframes(versions: int, *at: int) -> Script:
    return chain(versions).attach(keyframes=tuple(keyframe(n, size=10) for n in at))


def retired(state: RunState, plan: Plan) -> tuple[RunState, RetireRecord]:
    record = RetireRecord(
        run=state.run,
        seq=state.seq + 1,
        epoch=state.epoch,
        write_id="0" * 32,
        previous=state.last,
        created_at="2026-01-02T03:04:05.678Z",
        versions=plan.versions,
        keys=(*plan.keys, *plan.orphans),
    )
    after = state.copy()
    advance(after, record, "0" * 64)
    return after, record


def test_the_newest_versions_stay_and_the_rest_goes_with_what_leads_to_it():
    state = with_keyframes(9, 6).state
    plan = plan_gc(state, RetentionPolicy(keep_last=3, keep_seconds=0), needs(state))
    assert plan.kept == {8: "the newest", 7: "one of the last 3", 6: "one of the last 3"}
    assert plan.versions == (0, 1, 2, 3, 4, 5)
    assert set(plan.keys) == {patch(n, n + 1).object.key for n in range(6)} | {keyframe(0).index.key}
    assert plan.nbytes == 6 * 100 + 1010
    assert plan.objects == 6 + 2


def test_every_kth_version_a_tagged_one_and_young_ones_stay():
    state = with_keyframes(10, *range(1, 10)).tag("best", 5).state
    plan = plan_gc(state, RetentionPolicy(keep_last=1, keep_every=3, keep_seconds=9), Needs(young_from=8))
    assert plan.kept == {
        0: "every 3th",
        3: "every 3th",
        5: "tag best",
        6: "every 3th",
        8: "young",
        9: "the newest",
    }
    assert plan.versions == (1, 2, 4, 7)


def test_where_no_keyframe_is_near_the_whole_chain_stays():
    state = chain(5).state
    plan = plan_gc(state, LAST, needs(state))
    assert plan.empty
    assert plan.kept[2] == "on the route to version 4"


def test_versions_between_go_where_a_merged_patch_leads_over_them():
    script = chain(9).attach(patches=(patch(0, 4, size=150), patch(4, 8, size=150)))
    plan = plan_gc(script.state, LAST, needs(script.state))
    assert plan.kept == {0: "on the route to version 8", 4: "on the route to version 8", 8: "the newest"}
    assert plan.versions == (1, 2, 3, 5, 6, 7)
    assert set(plan.keys) == {patch(n, n + 1).object.key for n in range(8)}


def test_merged_patches_between_versions_that_are_kept_stay_even_if_no_route_takes_them_now():
    script = with_keyframes(9, 4, 8).attach(patches=(patch(4, 6, size=500), patch(2, 6, tag=1)))
    plan = plan_gc(script.state, RetentionPolicy(keep_last=5, keep_seconds=0), needs(script.state))
    assert patch(4, 6).object.key not in plan.keys
    assert patch(2, 6, tag=1).object.key in plan.keys


def test_the_version_that_a_reader_holds_stays_and_its_cheapest_way_to_the_newest():
    script = chain(9).attach(patches=(patch(3, 8, size=150),), keyframes=(keyframe(8), keyframe(3)))
    state = script.state
    assert plan_gc(state, LAST, needs(state)).kept == {8: "the newest"}
    plan = plan_gc(state, LAST, needs(state, {"w1": 3}))
    assert plan.kept == {3: "held by w1", 8: "the newest"}
    assert patch(3, 8).object.key not in plan.keys
    plan = plan_gc(state, LAST, needs(state, {"w1": 2}))
    assert plan.kept == {
        2: "held by w1",
        3: "on the route from version 2, which a reader holds",
        8: "the newest",
    }


def test_a_lease_on_a_version_that_is_gone_or_never_was_keeps_nothing():
    script = with_keyframes(9, 6, 8).retire(versions=(0, 1)).delete().retire(versions=(2,))
    plan = plan_gc(script.state, LAST, needs(script.state, {"a": 0, "b": 2, "c": 99}))
    assert plan.kept == {8: "the newest"}


def test_objects_of_versions_that_were_retired_by_hand_go():
    script = with_keyframes(9, 6, 8).retire(versions=(7, 0))
    plan = plan_gc(script.state, RetentionPolicy(keep_last=3, keep_seconds=0), needs(script.state))
    assert {patch(6, 7).object.key, patch(7, 8).object.key, keyframe(0).index.key} <= set(plan.keys)
    assert plan.kept.keys() == {6, 8}


def test_of_several_keyframes_of_a_version_the_cheapest_stays_and_of_equals_the_newest():
    script = chain(2).attach(keyframes=(keyframe(1, tag=1),)).attach(keyframes=(keyframe(1, tag=2),))
    plan = plan_gc(script.state, LAST, needs(script.state))
    assert set(plan.keys) == {keyframe(0).index.key, keyframe(1, tag=1).index.key, patch(0, 1).object.key}
    script.attach(keyframes=(keyframe(1, tag=3, size=2000),))
    assert keyframe(1, tag=3).index.key in plan_gc(script.state, LAST, needs(script.state)).keys


def test_the_way_to_an_old_layout_stays_for_a_tag():
    script = chain(3).commit(layout=OTHER_LAYOUT).commit().tag("old", 2)
    plan = plan_gc(script.state, LAST, needs(script.state))
    assert plan.kept.keys() == {0, 1, 2, 3, 4}
    plan = plan_gc(script.tag("old", None).state, LAST, needs(script.state))
    assert plan.kept.keys() == {3, 4}


def test_only_what_a_record_could_still_name_is_retired_as_an_orphan():
    script = with_keyframes(4, 3).retire(versions=(0,)).delete().retire(versions=(1,))
    orphans = (
        patch(2, 3).object.key,  # live
        patch(2, 3, tag=5).object.key,
        patch(3, 4, tag=5).object.key,  # of a version to come
        patch(0, 3, tag=5).object.key,  # of one that is forgotten
        keyframe(1, tag=5).index.key,  # of one that was retired
        "objects/somebody's/notes.txt",
    )
    plan = plan_gc(script.state, RetentionPolicy(keep_last=2, keep_seconds=0), needs(script.state, orphans=orphans))
    assert plan.orphans == orphans[1:3]


def test_a_run_without_versions_has_nothing_to_retire():
    assert plan_gc(RunState("math"), LAST, Needs()).empty
    assert plan_gc(Script().epoch().state, LAST, Needs()).empty


def test_garbage_is_what_no_record_names_and_none_can_name_any_more():
    script = with_keyframes(4, 3).retire(versions=(0, 1), keys=(patch(0, 1).object.key,))
    state, live = script.state, patch(1, 2).object.key
    assert (state.is_live(live), can_be_named(state, live), is_garbage(state, live)) == (True, False, False)
    assert is_garbage(state, patch(0, 1).object.key), "it was retired"
    assert is_garbage(state, patch(1, 3, tag=9).object.key), "an orphan, of a version that was retired"
    assert not is_garbage(state, patch(2, 3, tag=9).object.key), "its record may be on its way"


def test_without_word_of_ages_everything_is_young():
    state = with_keyframes(9, 8).state
    assert plan_gc(state, LAST, Needs()).empty


@pytest.mark.parametrize(
    "changes",
    [
        {"keep_last": 0},
        {"keep_every": 0},
        {"keep_seconds": -1},
        {"grace_seconds": -1},
        {"orphan_seconds": float("nan")},
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(changes):
    with pytest.raises(InvalidArgument, match=next(iter(changes))):
        RetentionPolicy(**changes)


BROKEN = {
    "a version that is kept": ({"versions": (6,)}, "version 6, which is kept"),
    "the keyframe of one that is kept": ({"keys": (keyframe(6).index.key,)}, "the keyframe of version 6"),
    "the chain": ({"keys": (patch(7, 8).object.key,)}, "the route from version 2"),
    "the route of a reader": ({"keys": (patch(2, 6, tag=1).object.key,)}, "the route from version 2"),
    "a merged patch": ({"keys": (patch(6, 8, tag=1).object.key,)}, "a patch between two versions that are kept"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_record_that_would_take_away_what_must_stay_is_seen(name):
    script = with_keyframes(9, 6, 2).attach(patches=(patch(2, 6, size=1, tag=1), patch(6, 8, size=90_000, tag=1)))
    state, held = script.state, {"w": 2}
    plan = plan_gc(state, RetentionPolicy(keep_last=3, keep_seconds=0), needs(state, held))
    good, record = retired(state, plan)
    assert harm(state, good, plan, held) is None
    changes, message = BROKEN[name]
    after = state.copy()
    advance(after, record.model_copy(update=changes), "0" * 64)
    found = harm(state, after, plan, held)
    assert found is not None
    assert re.search(message, found)


def test_a_plan_that_forgets_what_is_between_is_seen():
    state = chain(5).state
    plan = plan_gc(state, LAST, needs(state))
    broken = dataclasses.replace(plan, kept={0: "x", 4: "the newest"}, versions=(1, 2, 3))
    after, _ = retired(state, broken)
    assert harm(state, after, broken, {}) == "version 4, which is kept (the newest), could not be restored any more"


def cost(state: RunState, target: int, have: int | None) -> int | None:
    try:
        route = plan_route(state, target, have=have)
    except NotFound:
        return None
    return route.nbytes + 65536 * route.objects


@pytest.mark.slow
@given(
    histories(),
    st.builds(RetentionPolicy, keep_last=st.integers(1, 4), keep_every=st.none() | st.integers(1, 3)),
    st.dictionaries(st.sampled_from("abc"), st.integers(0, 7), max_size=3),
    st.integers(0, 7),
)
def test_what_is_kept_costs_as_much_to_reach_as_before_and_a_second_plan_is_empty(state, policy, held, young):
    wants = Needs(held, young_from=young)
    plan = plan_gc(state, policy, wants)
    after, _ = retired(state, plan)
    assert harm(state, after, plan, held) is None
    newest = len(state.versions) - 1
    for number in range(newest + 1):
        assert (number in plan.kept) != after.is_retired(number)
        if number in plan.kept:
            assert cost(after, number, None) == cost(state, number, None)
    for version in set(held.values()) & plan.kept.keys():
        assert cost(after, newest, version) == cost(state, newest, version)
    assert all(patch.base in plan.kept and patch.target in plan.kept for patch in after.patches)
    assert plan_gc(after, policy, wants).empty


def kept_plainly(state: RunState, policy: RetentionPolicy, wants: Needs) -> dict[int, set[str]]:
    """What is kept, and why, by a route search for each reader; of what routes alone keep, all that pass it."""
    newest = len(state.versions) - 1
    numbers = [entry.version for entry in state.versions]
    reasons = [(newest, "the newest")]
    reasons += [(version, f"tag {name}") for name, version in state.tags.items()]
    reasons += [(version, f"held by {reader}") for reader, version in wants.held.items()]
    for number in numbers:
        if number > newest - policy.keep_last:
            reasons.append((number, f"one of the last {policy.keep_last}"))
        elif number >= wants.young_from:
            reasons.append((number, "young"))
        elif policy.keep_every is not None and number % policy.keep_every == 0:
            reasons.append((number, f"every {policy.keep_every}th"))
    kept: dict[int, str] = {}
    for version, why in reasons:
        if version == newest or (version < newest and not state.is_retired(version)):
            kept.setdefault(version, why)
    for version in sorted({version for version in wants.held.values() if version in kept}):
        with suppress(NotFound):
            for leg in plan_route(state, newest, have=version).legs:
                kept.setdefault(leg.target, f"on the route from version {version}, which a reader holds")
    found, tree = {version: {why} for version, why in kept.items()}, cheapest_tree(state)
    for version in sorted(kept):
        for step in tree.route_to(version) if version in tree.before else ():
            if step not in kept:
                found.setdefault(step, set()).add(f"on the route to version {version}")
    return found


@given(
    histories(),
    st.builds(RetentionPolicy, keep_last=st.integers(1, 4), keep_every=st.none() | st.integers(2, 3)),
    st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 7)),
    st.integers(0, 7),
    st.integers(0, 6),
)
def test_one_search_for_all_readers_keeps_what_a_search_for_each_keeps(state, policy, held, young, tagged):
    if tagged < len(state.versions) and not state.is_retired(tagged):
        tag = {"name": "best", "version": tagged, "run": state.run, "seq": state.seq + 1, "epoch": state.epoch}
        more = {"previous": state.last, "write_id": "0" * 32, "created_at": "2026-01-02T03:04:05.678Z"}
        advance(state, TagRecord(**tag, **more), "0" * 64)
    wants = Needs(held, young_from=young)
    kept, plainly = plan_gc(state, policy, wants).kept, kept_plainly(state, policy, wants)
    assert kept.keys() == plainly.keys()
    assert all(why in plainly[version] for version, why in kept.items())
