"""Outer rounds of a run that has moved: all terms end, and members go on at its home alone."""

from __future__ import annotations

import pytest

from pulse_registry.errors import CorruptObject, Fenced
from pulse_registry.format import keys
from pulse_registry.log.home import prove
from pulse_registry.outer.append_guard import OuterAppendGuard
from pulse_registry.outer.log import OuterLog
from pulse_registry.outer.snapshot import snapshot_of, state_of
from pulse_registry.store import Store
from pulse_schemas import HomeEntry
from pulse_schemas.outer import MoveRoundsRecord
from pulse_schemas.outer_snapshot import OuterSnapshot
from tests.unit.outer.log import Log
from tests.unit.outer.test_log import empty, join, started
from tests.unit.outer.test_member import Site

HOME = HomeEntry(move="a" * 32, to="s3://bucket/eu", seq=7)


def moved(store: Store) -> Store:
    """Move the rounds of a store elsewhere."""
    OuterLog(store, "run").move(HOME)
    return store


def test_a_move_ends_all_terms_as_if_all_had_left() -> None:
    log = Log(quorum=1)
    log.join("a")
    term = log.join("b")
    log.contribute("a")
    assert log.append(MoveRoundsRecord, to="s3://bucket/eu") is None
    assert log.state.left().keys() == {"a", "b"}
    assert (log.state.open, [*log.state.closed[0].members]) == (2, ["a"])
    assert "another term" in (log.contribute("b", term=term) or "")
    log.join("b")
    assert log.state.awaited() == frozenset()  # who joins after round 1 is waited for from the round after
    assert log.contribute("b") is None


def test_a_snapshot_after_a_move_says_where_the_run_lives_and_one_before_is_as_ever() -> None:
    log = Log()
    log.join("a")
    before = snapshot_of(log.state)
    assert before is not None
    assert (before.format, b'"home"' in before.canonical()) == ("pulse-outer-snapshot/1", False)
    log.append(MoveRoundsRecord, to="s3://bucket/eu")
    after = snapshot_of(log.state)
    assert after is not None
    assert after.format == "pulse-outer-snapshot/2"
    assert state_of(OuterSnapshot.unseal(after.seal())) == log.state
    with pytest.raises(CorruptObject, match="records after its last one"):
        state_of(after.model_copy(update={"home": HOME.model_copy(update={"seq": 99})}))


def test_nothing_is_appended_where_the_rounds_do_not_live_any_more() -> None:
    store = empty()
    member = started(store)
    moved(store)
    with pytest.raises(Fenced, match="moved it to s3://bucket/eu"):
        member.append(join("a"))
    with pytest.raises(Fenced, match="moved it to s3://bucket/eu"):
        OuterLog(store, "run").append(join("a"))
    assert not store.exists("outer/log/000000000002.json")
    prove(store, "run", HOME.move)
    assert member.append(join("a")) is not None


def test_rounds_move_once_by_each_move_and_not_at_all_where_there_are_none() -> None:
    store = empty()
    moved(store)
    assert not [*store.list("outer/")]
    started(store)
    moved(moved(store))
    assert OuterLog(store, "run").refresh().seq == 1


def test_rounds_that_have_moved_are_moved_on_only_where_their_home_is_lost() -> None:
    store, other = empty(), HOME.model_copy(update={"move": "b" * 32, "to": "s3://bucket/us"})
    started(store)
    moved(store)
    with pytest.raises(Fenced, match="s3://bucket/eu"):
        OuterLog(store, "run").move(other)
    log = OuterLog(store, "run")
    log.move(other, lost=True)
    assert log.state.home is not None
    assert log.state.home.to == "s3://bucket/us"


def test_a_member_of_rounds_that_move_is_fenced_and_told_where_to() -> None:
    site = Site(quorum=1)
    trainer = site.trainer("a", 1)
    trainer.train()
    assert trainer.contribute()
    trainer.follow()
    trainer.train()
    moved(site.store)
    with pytest.raises(Fenced, match="has moved to s3://bucket/eu: join its rounds there, as 'a'"):
        trainer.contribute()
    prove(site.store, "run", HOME.move)  # as if it were there
    again = site.trainer("a", 2)
    again.train()
    assert again.contribute()


def test_the_guard_of_a_service_takes_a_move_and_nothing_behind_it() -> None:
    store, log = empty(), Log()
    store.put("outer/" + keys.record_key(0), log.records[0])
    guard = OuterAppendGuard(store, "run")
    log.append(MoveRoundsRecord, to="s3://bucket/eu")
    guard.admit(log.records[-1])
    log.join("a")
    with pytest.raises(Fenced, match="s3://bucket/eu"):
        guard.admit(log.records[-1])
