"""Routes: cheapest, live, and explained where there is none."""

from __future__ import annotations

import itertools
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulse_kernels import BackendUnavailable
from pulse_registry.errors import InvalidArgument, NotFound
from pulse_registry.log import RunState
from pulse_registry.log.graph import RouteGraph
from pulse_registry.log.leg import KEYFRAME_BYTES
from pulse_registry.pull.route import Route, plan, search_far, search_near, starts_of
from pulse_registry.store.prices import USUAL, Prices
from pulse_schemas import Snapshot, VersionEntry
from tests.support.records import LAYOUT, OTHER_LAYOUT, RUN, WHEN, Script, chain, keyframe, patch


def kinds(route: Route) -> list[str]:
    return [leg.kind for leg in route.legs]


def versions(route: Route) -> list[int | None]:
    return [route.base, *(leg.target for leg in route.legs)]


def test_who_holds_the_target_needs_nothing():
    route = plan(chain(3).state, 2, have=2)
    assert route == Route(2, 2, ())
    assert (route.nbytes, route.objects) == (0, 0)


def test_who_holds_nothing_takes_a_keyframe_and_the_patches_after_it():
    route = plan(chain(4).state, 3, have=None)
    assert kinds(route) == ["keyframe", "patch", "patch", "patch"]
    assert versions(route) == [None, 0, 1, 2, 3]
    assert route.nbytes == 1010 + 3 * 100
    assert route.objects == 2 + 3
    assert route.legs[0].keyframe == keyframe(0)
    assert route.legs[3].patch == patch(2, 3)


def test_who_holds_an_older_version_takes_the_patches_between():
    route = plan(chain(6).state, 5, have=2)
    assert versions(route) == [2, 3, 4, 5]
    assert {leg.base for leg in route.legs} == {2, 3, 4}


def test_a_keyframe_is_taken_where_it_costs_less_than_the_chain():
    script = chain(30).attach(keyframes=(keyframe(28, shards=2),))
    assert kinds(plan(script.state, 29, have=0, prices=Prices(0))) == ["keyframe", "patch"]
    assert len(plan(script.state, 29, have=15, prices=Prices(0)).legs) == 14
    assert kinds(plan(script.state, 29, have=15, prices=Prices(10**6))) == ["keyframe", "patch"]


def test_the_cost_of_an_object_decides_between_few_large_and_many_small():
    script = chain(5).attach(patches=(patch(0, 4, size=1000),))
    assert versions(plan(script.state, 4, have=0, prices=Prices(0))) == [0, 1, 2, 3, 4]
    assert versions(plan(script.state, 4, have=0, prices=Prices(300))) == [0, 4]
    assert versions(plan(script.state, 4, have=0)) == [0, 4]


def test_merged_patches_on_a_ladder_are_joined():
    script = chain(15)
    rungs = [patch(a, a + span, size=120) for span in (2, 4, 8) for a in range(0, 15 - span, span)]
    route = plan(script.attach(patches=tuple(rungs)).state, 13, have=3)
    assert versions(route) == [3, 4, 8, 12, 13]


def test_a_worker_goes_back_by_inverse_patches_where_the_coder_allows():
    route = plan(chain(6).state, 2, have=4)
    assert kinds(route) == ["inverse", "inverse"]
    assert versions(route) == [4, 3, 2]
    assert route.legs[0].patch == patch(3, 4)
    assert route.nbytes == 200


def test_a_class_patch_is_never_taken_backwards():
    script = chain(2).commit(patch=patch(1, 2, coder="class"))
    assert kinds(plan(script.state, 1, have=2)) == ["keyframe", "patch"]
    assert kinds(plan(script.state, 2, have=1)) == ["patch"]


def test_a_merged_patch_too_far_and_back_is_taken_where_it_costs_least():
    script = chain(8).attach(patches=(patch(0, 7, size=110),))
    assert versions(plan(script.state, 6, have=0)) == [0, 7, 6]


def test_steps_back_in_memory_cost_nothing():
    route = plan(chain(8).state, 4, have=7, undo=(6, 5, 4, 3))
    assert kinds(route) == ["undo", "undo", "undo"]
    assert versions(route) == [7, 6, 5, 4]
    assert (route.nbytes, route.objects) == (0, 0)


def test_a_route_goes_on_from_where_the_memory_ends():
    route = plan(chain(8).state, 2, have=7, undo=(6, 4))
    assert kinds(route) == ["undo", "undo", "inverse", "inverse"]
    assert versions(route) == [7, 6, 4, 3, 2]


def test_memory_is_used_on_the_way_forward_too_where_that_is_cheaper():
    script = chain(8).attach(patches=(patch(2, 7, size=101),))
    assert versions(plan(script.state, 7, have=4, undo=(2,))) == [4, 2, 7]


def test_memory_that_comes_back_to_a_version_is_used_up_to_its_first_visit():
    route = plan(chain(8).state, 6, have=5, undo=(4, 5, 4, 6))
    assert versions(route) == [5, 4, 5, 4, 6]
    assert versions(plan(chain(8).state, 4, have=5, undo=(4, 5, 4))) == [5, 4]


def test_memory_of_another_layout_or_of_no_known_version_is_not_used():
    script = chain(3).commit(layout=OTHER_LAYOUT).commit()
    assert kinds(plan(script.state, 2, have=4, undo=(3, 2))) == ["keyframe", "patch", "patch"]
    assert kinds(plan(script.state, 3, have=4, undo=(99, 3))) == ["inverse"]
    assert kinds(plan(script.state, 2, have=None, undo=(2,))) == ["keyframe", "patch", "patch"]


def test_a_change_of_layout_is_crossed_by_a_keyframe_alone():
    script = chain(3).commit(layout=OTHER_LAYOUT).commit().commit(layout=LAYOUT)
    assert kinds(plan(script.state, 4, have=2)) == ["keyframe", "patch"]
    assert versions(plan(script.state, 4, have=2)) == [None, 3, 4]
    assert kinds(plan(script.state, 5, have=2)) == ["keyframe"]
    assert kinds(plan(script.state, 2, have=3)) == ["keyframe", "patch", "patch"]


def test_a_retired_version_is_no_target_but_a_worker_may_leave_it():
    state = chain(5).retire(versions=(2,)).state
    with pytest.raises(NotFound, match="version 2 of run 'math' was retired"):
        plan(state, 2, have=1)
    assert versions(plan(state, 3, have=2)) == [2, 3]
    assert plan(state, 2, have=2).legs == ()
    assert versions(plan(state, 3, have=4, undo=(2,))) == [4, 3]
    assert versions(plan(state, 1, have=4, undo=(3, 2))) == [4, 3, 2, 1]


def test_no_route_leads_through_a_retired_version():
    script = chain(5).attach(patches=(patch(1, 3, size=500),)).retire(versions=(2,))
    assert versions(plan(script.state, 4, have=1, prices=Prices(0))) == [1, 3, 4]
    script.retire(keys=(patch(1, 3).object.key,))
    with pytest.raises(NotFound, match="version 2 on the way was retired"):
        plan(script.state, 4, have=1)


def test_no_route_uses_a_retired_object():
    script = chain(4).attach(patches=(patch(0, 3, size=10),), keyframes=(keyframe(3, size=1),))
    assert versions(plan(script.state, 3, have=0)) == [0, 3]
    script.retire(keys=(patch(0, 3).object.key, keyframe(3).index.key))
    assert versions(plan(script.state, 3, have=0)) == [0, 1, 2, 3]


def test_where_no_route_is_left_the_error_says_how_far_the_patches_go():
    script = chain(6).retire(keys=(patch(1, 2).object.key,))
    with pytest.raises(NotFound, match="from nothing to version 4: patches lead there from version 2 on"):
        plan(script.state, 4, have=None)
    with pytest.raises(NotFound, match="from version 1 or from nothing to version 4"):
        plan(script.state, 4, have=1)
    assert versions(plan(script.state, 4, have=5)) == [5, 4]


@pytest.mark.parametrize(("target", "have"), [(3, None), (-1, None), (0, 3), (0, -1), (3, 3)])
def test_a_version_that_was_never_committed_is_not_found(target, have):
    with pytest.raises(NotFound, match="the newest is 2"):
        plan(chain(3).state, target, have=have)


def test_a_run_without_versions_has_no_routes():
    with pytest.raises(NotFound, match="it has none yet"):
        plan(RunState("math"), 0, have=None)


def test_an_object_can_not_cost_less_than_nothing():
    with pytest.raises(InvalidArgument):
        plan(chain(2).state, 1, have=0, prices=Prices(-1))


def test_of_two_equal_routes_the_one_with_fewer_legs_is_taken_and_a_held_base_before_a_keyframe():
    script = chain(3).attach(patches=(patch(0, 2, size=200),))
    assert versions(plan(script.state, 2, have=0, prices=Prices(0))) == [0, 2]
    script = chain(2).attach(keyframes=(keyframe(1, size=90),))
    assert plan(script.state, 1, have=0, prices=Prices(0)).base == 0


def test_a_search_stays_near_the_target_however_long_the_run_is():
    class Watched(RunState):
        asked = 0

        def patches_into(self, version):
            self.asked += 1
            return super().patches_into(version)

    state = Watched("math")
    state.__dict__.update(chain(400).state.copy().__dict__)
    plan(state, 399, have=395)
    assert state.asked <= 10


@st.composite
def histories(draw):
    """A run of a few versions with random layouts, sizes, coders, merged patches, keyframes and retirements."""
    script = Script().epoch()
    tags = itertools.count(1)
    total = draw(st.integers(1, 7))
    sizes = st.integers(1, 8)
    coders = st.sampled_from(["gap", "class"])
    for number in range(total):
        latest = script.state.latest
        layout = draw(st.sampled_from([LAYOUT, LAYOUT, LAYOUT, OTHER_LAYOUT]))
        step = patch(number - 1, number, size=draw(sizes), coder=draw(coders)) if number else None
        frame = keyframe(number, size=draw(st.integers(1, 30)), shards=draw(st.integers(1, 2)))
        if latest is None or latest.layout != layout:
            script.commit(layout=layout, patch=None, keyframe=frame)
        else:
            script.commit(layout=layout, patch=step, keyframe=frame if draw(st.booleans()) else None)
    entries = script.state.versions
    pairs = [(a, b) for a, b in itertools.combinations(range(total), 2) if entries[a].layout == entries[b].layout]
    merged = draw(st.lists(st.sampled_from(pairs), max_size=5)) if pairs else []
    script.attach(patches=tuple(patch(a, b, size=draw(sizes), coder=draw(coders), tag=next(tags)) for a, b in merged))
    if draw(st.booleans()):
        newer = keyframe(draw(st.integers(0, total - 1)), size=draw(st.integers(1, 30)), tag=next(tags))
        script.attach(keyframes=(newer,))
    live = [p.object.key for p in script.state.patches] + [k.index.key for k in script.state.keyframes]
    script.retire(
        versions=tuple(draw(st.sets(st.integers(0, total - 2), max_size=2))) if total > 1 else (),
        keys=tuple(draw(st.sets(st.sampled_from(live), max_size=3))),
    )
    if draw(st.booleans()):
        script.delete()
    return script.state


def cheapest(state: RunState, target: int, have: int | None, undo: list[int], prices: Prices) -> int | None:
    """The least cost by Bellman-Ford over every edge, forwards from the worker: no heap, no early stop."""
    infinity = 10**18
    cost: dict[int | None, int] = dict.fromkeys(range(len(state.versions)), infinity)
    cost[None] = 0
    if have is not None:
        cost[have] = 0
        for number in undo:
            entry = state.find(number)
            if entry is None or entry.layout != state.versions[have].layout:
                break
            cost[number] = 0
    edges: list[tuple[int | None, int, int]] = []
    for ref in state.patches:
        edges.append((ref.base, ref.target, ref.size + prices.object_cost + prices.cell_cost * ref.changed))
        if ref.coder == "gap":
            edges.append((ref.target, ref.base, ref.size + prices.object_cost + prices.cell_cost * ref.changed))
    for frame in state.keyframes:
        objects, decoded = len(frame.shards) + 1, frame.size // KEYFRAME_BYTES
        edges.append((None, frame.version, frame.size + prices.object_cost * objects + prices.cell_cost * decoded))
    for _ in range(len(state.versions)):
        for start, end, price in edges:
            if not state.is_retired(end):
                cost[end] = min(cost[end], cost[start] + price)
    return cost[target] if cost[target] < infinity else None


@given(histories(), st.data())
def test_a_route_costs_what_an_exhaustive_search_finds_and_each_leg_joins_the_next(state, data):
    numbers = st.integers(0, len(state.versions) - 1)
    known = st.sampled_from([entry.version for entry in state.versions])
    target, have = data.draw(known), data.draw(st.none() | known)
    undo = data.draw(st.lists(numbers, max_size=3))
    prices = Prices(data.draw(st.integers(0, 12)), data.draw(st.integers(0, 3)))
    expected = cheapest(state, target, have, undo, prices)
    if target != have and (expected is None or state.is_retired(target)):
        with pytest.raises(NotFound):
            plan(state, target, have=have, undo=undo, prices=prices)
        return
    route = plan(state, target, have=have, undo=undo, prices=prices)
    assert prices.of(route) == (0 if target == have else expected)
    assert route == plan(state, target, have=have, undo=undo, prices=prices)
    assert route.base in (have, None)
    assert route.target == target

    here, memory = route.base, list(undo)
    for leg in route.legs:
        assert leg.base == here
        layout = None if here is None else state.versions[here].layout
        match leg.kind:
            case "keyframe":
                assert here is None
                assert leg.keyframe in state.keyframes_of(leg.target)
            case "patch":
                assert leg.patch in state.patches_into(leg.target)
                assert leg.patch.base == here
            case "inverse":
                assert leg.patch in state.patches_from(leg.target)
                assert (leg.patch.target, leg.patch.coder) == (here, "gap")
            case "undo":
                assert leg.target == memory.pop(0)
        assert leg.kind == "undo" or not state.is_retired(leg.target)
        assert layout in (None, state.versions[leg.target].layout)
        here = leg.target
    assert here == target


@given(histories(), st.data())
def test_the_compiled_search_finds_the_very_route_of_the_plain_one(state, data):
    numbers = st.integers(0, len(state.versions) - 1)
    known = st.sampled_from([entry.version for entry in state.versions])
    target, have = data.draw(known), data.draw(st.none() | known)
    if target == have or state.is_retired(target):
        return
    starts = starts_of(state, have, data.draw(st.lists(numbers, max_size=3)))
    keys = [p.object.key for p in state.patches] + [ref.key for k in state.keyframes for ref in (k.index, *k.shards)]
    avoid = data.draw(st.sets(st.sampled_from(keys), max_size=3)) if keys else set()
    prices = Prices(data.draw(st.integers(0, 12)), data.draw(st.integers(0, 3)))

    def found(search) -> Route | str:
        try:
            return search(state, target, starts, prices, avoid)
        except NotFound as error:
            return str(error)

    plain = found(search_near)
    assert found(search_far) == plain
    if isinstance(plain, Route):
        assert not avoid & {ref.key for ref in plain.refs}


def test_sizes_that_no_store_can_hold_are_added_up_all_the_same():
    huge = keyframe(0, size=2**62, shards=9, tag=7)
    script = chain(600).attach(keyframes=(huge,)).retire(keys=(keyframe(0).index.key,))
    route = plan(script.state, 599, have=None)
    assert (route.nbytes, route.objects) == (9 * 2**62 + 10 + 599 * 100, 10 + 599)


@pytest.mark.parametrize("missing", ["numba", "exact sums"])
def test_where_nothing_compiled_helps_the_plain_search_goes_all_the_way(monkeypatch, missing):
    def unavailable(_: object) -> None:
        raise BackendUnavailable("no numba")

    if missing == "numba":
        monkeypatch.setattr(RouteGraph, "graph", unavailable)
    script = chain(600)
    if missing != "numba":
        script.attach(patches=(patch(0, 1, size=2**62, tag=1),))
    assert versions(plan(script.state, 599, have=0, prices=Prices(0))) == [0, *range(1, 600)]
    with pytest.raises(NotFound, match="no live objects lead from nothing to version 599"):
        plan(script.retire(keys=(keyframe(0).index.key,)).state, 599, have=None)


@pytest.mark.slow
def test_a_far_route_is_the_plain_search_s_with_a_ladder_retirements_and_memory():
    script = chain(700)
    rungs = [
        patch(a, a + span, size=round(90 * span**0.48), coder="class" if span == 64 else "gap", tag=span)
        for span in (2, 4, 8, 16, 32, 64, 128, 256)
        for a in range(0, 700 - span, span)
    ]
    script.attach(patches=tuple(rungs)).retire(versions=tuple(range(300, 330)))
    state = script.state
    for have, target, undo in ((0, 699, ()), (None, 650, ()), (699, 3, ()), (5, 690, (4, 3)), (310, 699, ())):
        starts = starts_of(state, have, undo)
        for prices in itertools.starmap(Prices, itertools.product((0, 50, 65536), (0, 2))):
            expected = search_near(state, target, starts, prices, ())
            assert plan(state, target, have=have, undo=undo, prices=prices) == expected
            assert search_far(state, target, starts, prices, ()) == expected


@pytest.mark.parametrize("have", [None, 3])
@pytest.mark.parametrize("most", [1, 7, 299, 1000])
def test_a_route_of_so_many_legs_at_most_is_the_beginning_of_the_whole_one(have, most):
    state = chain(300).state
    whole, part = plan(state, 299, have=have), plan(state, 299, have=have, most=most)
    assert part.legs == whole.legs[:most]
    assert (part.base, part.target) == (have, part.legs[-1].target)
    near = search_near(state, 299, starts_of(state, have, ()), USUAL, (), most=most)
    assert near == part


def test_a_snapshot_of_few_versions_with_high_numbers_makes_a_search_take_no_more():
    numbers = [*range(400), *range(10**12 - 400, 10**12)]
    versions = tuple(
        VersionEntry(
            version=number,
            seq=n + 1,
            step=n,
            layout=LAYOUT,
            digest="f" * 32,
            changed=1,
            cells=100,
            created_at=WHEN,
        )
        for n, number in enumerate(numbers)
    )
    patches = tuple(patch(base, target, coder="class") for base, target in itertools.pairwise(numbers))
    snapshot = Snapshot(
        run=RUN, seq=801, last="0" * 64, epoch=1, count=10**12, versions=versions, patches=patches,
        keyframes=(keyframe(0),),
    )  # fmt: skip
    state = RunState.from_snapshot(snapshot)
    plan(state, numbers[-1], have=None)  # what is compiled is no part of it
    state = RunState.from_snapshot(snapshot)
    tracemalloc.start()
    try:
        found = plan(state, numbers[-1], have=None)
        assert state.to_snapshot() == snapshot
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(found.legs) == 800
    assert peak < 16 << 20


def test_a_route_without_keyframes_is_found_near_and_far():
    script = chain(700).attach(keyframes=(keyframe(650), keyframe(5)))
    for have, target in ((0, 10), (0, 699)):
        found = plan(script.state, target, have=have, keyframes=False)
        assert [leg.kind for leg in found.legs] == ["patch"] * (target - have)
    with pytest.raises(NotFound):
        plan(script.state, 699, have=None, keyframes=False)
