"""Garbage of outer rounds: what leads to the last checkpoint but one, and what counts for nothing, at any moment."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulse_registry.format import keys
from pulse_registry.log import StoreClock
from pulse_registry.outer.log import OuterLog
from pulse_registry.outer.state import OuterState
from pulse_registry.retention import RetentionPolicy
from pulse_registry.retention.plan import Needs, plan_gc
from pulse_registry.retention.rounds import Fate, RoundsCollector, RoundsGc, fate, needed_versions
from pulse_registry.store import PrefixStore, Store
from pulse_schemas.outer import JoinRecord
from tests.support.sampling import examples
from tests.unit.outer.log import Log
from tests.unit.outer.sessions import Site
from tests.unit.outer.test_checkpoints import Team, held
from tests.unit.retention.world import World

AT_ONCE = RetentionPolicy(keep_last=1, keep_seconds=0, grace_seconds=0, orphan_seconds=0)


def collect(store: Store, policy: RetentionPolicy = AT_ONCE, *, dry_run: bool = False) -> RoundsGc:
    clock = StoreClock(store)
    return RoundsCollector(store, OuterLog(store, "run"), clock).collect(policy, clock.now(), dry_run=dry_run)


def objects(store: Store) -> list[str]:
    return [*PrefixStore(store, "outer").list("objects/")]


def after(checkpoints: int) -> Team:
    team = Team(Site(), "a", "b")
    while len(team.state().checkpoints) < checkpoints:
        team.round()
    return team


def test_what_leads_to_the_last_checkpoint_but_one_is_retired_and_then_deleted() -> None:
    team = after(3)
    store, spare = team.site.store, team.state().spare
    before = objects(store)
    assert collect(store, dry_run=True).round == spare
    assert (objects(store), team.state().retired) == (before, 0)
    found = collect(store)
    assert (found.round, found.deleted, found.retired > 2 * spare) == (spare, 0, True)
    assert team.state().retired == spare
    waiting = collect(store, RetentionPolicy(grace_seconds=3600, orphan_seconds=3600))
    assert (waiting.waiting, waiting.deleted, waiting.retired) == (found.retired, 0, 0)
    assert objects(store) == before
    done = collect(store)
    assert done.deleted == found.retired
    assert (team.state().deleted, team.state().retirements) == (spare, {})
    left = [keys.outer_object(key) for key in objects(store)]
    assert all(one is not None and one[1] >= spare for one in left)
    assert not [one for one in left if one == ("contribution", spare)]
    team.join("c")
    assert held(team.sessions["c"]) == held(team.sessions["a"])
    assert collect(store).deleted == 0


def test_objects_that_count_for_nothing_are_deleted_once_none_can_name_them() -> None:
    team = after(2)
    store, state = team.site.store, team.state()
    named, open_ = state.spare + 1, state.open
    newest = state.checkpoints[-1].round
    ids = iter(f"{k:032x}" for k in range(10))
    orphans = [
        keys.contribution_key(named, "a", next(ids)),
        keys.checkpoint_head_key(newest, next(ids)),
        keys.checkpoint_group_key(keys.checkpoint_head_key(newest - 1, next(ids)), 3),
    ]
    kept = [
        keys.contribution_key(open_, "a", next(ids)),
        keys.merged_key(named, next(ids)),
        keys.checkpoint_head_key(open_, next(ids)),
        "objects/of/a/later/release",
    ]
    for key in (*orphans, *kept):
        store.put(f"outer/{key}", b"x")
    young = collect(store, RetentionPolicy(grace_seconds=0, orphan_seconds=3600))
    assert young.orphans == 0
    assert collect(store).orphans == 3
    assert set(kept) <= set(objects(store))
    assert not set(orphans) & set(objects(store))


def test_old_snapshots_of_the_log_go() -> None:
    team = Team(Site(), "a")
    log = OuterLog(team.site.store, "run")
    while log.refresh().seq < 64 * 4:
        log.append(lambda _, common: JoinRecord(**common, member="x"))
    assert collect(team.site.store).snapshots == 2
    assert len([*team.site.store.list("outer/log/snapshots/")]) == 2
    assert OuterLog(team.site.store, "run").refresh() == log.state


def test_versions_that_rounds_need_are_kept() -> None:
    log = Log()
    log.join("a")
    assert needed_versions(OuterState("run"), 10) == {}
    assert list(needed_versions(log.state, 10)) == [4]
    for _ in range(8):
        log.contribute("a")
    log.checkpoint(3)
    assert sorted(needed_versions(log.state, 10)) == [4, 7]
    log.checkpoint(5)
    log.checkpoint(8)
    assert sorted(needed_versions(log.state, 10)) == [9, 12]


def test_a_plan_keeps_them_and_what_leads_there() -> None:
    world = World()
    world.commits(5, whole_every=9)
    needs = Needs(rounds={1: "of the checkpoint of outer round 1"})
    plan = plan_gc(world.state, RetentionPolicy(keep_last=1, keep_seconds=0), needs)
    assert plan.kept[1] == "of the checkpoint of outer round 1"
    assert 0 in plan.kept


@pytest.mark.parametrize("key", ["objects/contribution/x", "objects/patch/000000000001-000000000002-x", "objects/a"])
def test_what_is_not_ours_is_kept(key: str) -> None:
    assert fate(OuterState("run"), key, 5) is Fate.KEPT


ACTION = st.tuples(st.sampled_from(["round", "round", "alone", "gc", "gc", "join", "wake", "stale"]), st.integers(0, 2))


@pytest.mark.slow
@examples(12)
@given(actions=st.lists(ACTION, min_size=5, max_size=40))
def test_a_collection_at_any_moment_takes_nothing_that_is_needed(actions: list[tuple[str, int]]) -> None:
    """Beside members that work, sleep, and join; with no grace at all."""
    team = Team(Site(), "a", "b", "sleeper", quorum=2, patience=1, grace_s=0.0)
    store, joined = team.site.store, 0
    for what, number in actions:
        match what:
            case "round":
                team.round("a", "b")
            case "alone":
                for _ in range(3 * number):
                    team.round("b", "a")
            case "gc":
                collect(store)
            case "join" if joined < 3:
                joined += 1
                late = team.join(f"late{joined}")
                assert held(late) == held(team.sessions["a"])
                late.leave()
            case "wake":
                _wake(team)
            case "stale":  # it has read the log, and sleeps before it reads the objects
                team.sessions["sleeper"].member.log.refresh()
    team.round("a", "b")
    _wake(team)
    assert held(team.sessions["sleeper"]) == held(team.sessions["a"])
    _everything_named_is_there(store)


def _wake(team: Team) -> None:
    sleeper = team.sessions["sleeper"]
    if sleeper.member.has_ended:
        sleeper.apply()
    sleeper.member.log.refresh()
    if sleeper.member.has_ended:
        sleeper.apply()


def _everything_named_is_there(store: Store) -> None:
    state, stored = OuterLog(store, "run", whole=True).refresh(), set(objects(store))
    named = {record.object.key for record in state.checkpoints}
    named |= {part.object.key for closed in state.closed for part in closed.contributions.values() if part.object}
    assert named <= stored


def test_a_run_whose_rounds_have_just_begun_has_nothing_to_collect() -> None:
    store = Team(Site(), "a").site.store
    found = collect(store)
    assert (found.round, found.retired, found.deleted) == (0, 0, 0)
    assert OuterLog(store, "run").refresh().retired == 0
