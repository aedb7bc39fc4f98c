"""Checkpoints, merged contributions and retirements: what of the rounds a state keeps, and what a snapshot says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulse_registry.errors import CorruptObject
from pulse_registry.outer.snapshot import snapshot_of, state_of
from pulse_registry.outer.snapshots import is_due
from pulse_registry.outer.state import OuterState
from pulse_schemas.outer_snapshot import OuterSnapshot
from tests.unit.outer.log import RATES, Log, refold


def after(rounds: int, *checkpoints: int) -> Log:
    log = Log()
    log.join("a")
    for _ in range(rounds):
        log.send("a")
    for number in checkpoints:
        assert log.checkpoint(number) is None
    return log


def numbers(state: OuterState) -> list[int]:
    return [one.number for one in state.closed]


def test_rounds_behind_two_checkpoints_are_not_kept_in_memory() -> None:
    log = after(9, 3)
    assert numbers(log.state) == list(range(1, 10))
    assert log.checkpoint(6) is None
    assert (numbers(log.state), log.state.open) == ([4, 5, 6, 7, 8, 9], 10)
    assert log.state.ended(3) is None
    assert getattr(log.state.ended(4), "number", None) == 4
    assert log.state.ended(10) is None
    assert log.contribute("a") is None
    assert numbers(log.state)[-1] == 10
    assert numbers(refold(log.records, whole=True)) == list(range(1, 11))


def test_checkpoints_are_of_rounds_that_have_ended_and_the_newest_of_the_newest() -> None:
    log = after(5, 3)
    assert "has not ended" in (log.checkpoint(6) or "")
    for number in (2, 3):
        assert "there is a checkpoint of round 3" in (log.checkpoint(number) or "")
    assert [one.round for one in log.state.checkpoints] == [3]


def test_the_contributions_of_a_round_are_merged_once_while_somebody_may_want_them() -> None:
    log = after(5, 2, 4)
    assert "the least of round 3 is another" in (log.merged(3, -19) or "")
    assert log.merged(3) is None
    assert "are merged" in (log.merged(3) or "")
    assert "behind two checkpoints" in (log.merged(2) or "")
    assert "has not ended" in (log.merged(6) or "")
    assert list(log.state.merged) == [3]
    log.contribute("a")
    log.checkpoint(5)
    assert not log.state.merged


def test_float32_values_are_not_merged() -> None:
    log = Log(values="float32")
    log.join("a")
    log.contribute("a")
    assert "not merged" in (log.merged(1) or "")


def test_what_is_behind_two_checkpoints_can_be_retired_and_then_told_as_deleted() -> None:
    log = after(9, 3, 5, 8)
    for number in (2, 4, 8):
        assert "no checkpoint is of round" in (log.retire(number) or "")
    assert log.retire(3) is None
    assert log.retire(5) is None
    assert "was retired before" in (log.retire(3) or "")
    assert (log.state.retired, [one.round for one in log.state.checkpoints]) == (5, [5, 8])
    assert log.delete(3) is None
    assert (log.state.deleted, list(log.state.retirements)) == (3, [5])
    assert "was not retired, or was deleted" in (log.delete(3) or "")
    assert log.delete(5) is None
    whole = refold(log.records, whole=True)
    assert (numbers(whole), whole.retirements) == ([6, 7, 8, 9], {})


def test_the_newest_contribution_of_a_member_is_known_whatever_was_dropped_and_whoever_came_back() -> None:
    log = after(3)
    newest = log.state.ended(3)
    assert newest is not None
    written = newest.contributions["a"].write_id
    log.join("a")
    log.join("b")
    log.contribute("b")
    log.close()
    log.checkpoint(3)
    log.checkpoint(4)
    assert log.state.ended(3) is None
    assert log.state.counts("a", written)
    assert not log.state.counts("a", "f" * 32)
    assert log.state.members["a"].newest_round == 3


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(
            ["join", "contribute", "contribute", "close", "checkpoint", "merged", "retire", "delete", "restart"]
        ),
        st.sampled_from("abc"),
        st.integers(-1, 4),
    ),
    max_size=60,
)


@given(actions=ACTIONS)
def test_a_state_from_a_snapshot_goes_on_as_the_log_does(actions: list[tuple[str, str, int]]) -> None:
    """Read anew at any record, it folds the rest alike; a whole fold agrees in what both keep."""
    log = Log()
    resumed = state_of(_written(log.state))
    for what, member, number in actions:
        before, wanted = len(log.records), max(1, log.state.open - number)
        match what:
            case "join":
                log.join(member)
            case "contribute":
                log.send(member)
            case "close":
                log.close(wanted)
            case "checkpoint":
                log.checkpoint(wanted)
            case "merged":
                log.merged(wanted)
            case "retire":
                log.retire(wanted)
            case "delete":
                log.delete(wanted)
            case "restart":
                log.restart(wanted)
        again = Log()
        again.state = resumed
        for sealed in log.records[before:]:
            again.fold(sealed)
        assert resumed == log.state
        resumed = state_of(_written(log.state))
        assert resumed == log.state
    state, whole = log.state, refold(log.records, whole=True)
    assert state.dropped == max(state.spare, state.retired)
    assert numbers(whole) == list(range(whole.retired + 1, whole.open))
    assert [one for one in whole.closed if one.number > state.dropped] == state.closed
    same = ("seq", "last", "open", "members", "contributions", "checkpoints", "middle", "retired", "retirements")
    assert all(getattr(state, name) == getattr(whole, name) for name in same)


def _written(state: OuterState) -> OuterSnapshot:
    snapshot = snapshot_of(state)
    assert snapshot is not None
    return OuterSnapshot.unseal(snapshot.seal())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dropped": 1}, "out of their place"),
        ({"rounds": ()}, "out of their place"),
        ({"checkpoints": ()}, "does not tell of all rounds"),
        ({"seq": 4}, "after its last one"),
        ({"rates": ()}, "rates of round 1"),
        ({"deleted": 7}, "does not fit"),
    ],
)
def test_a_snapshot_that_contradicts_itself_is_refused(change: dict[str, object], message: str) -> None:
    snapshot = _written(after(6, 2, 4).state)
    assert numbers(state_of(snapshot)) == [3, 4, 5, 6]
    with pytest.raises(CorruptObject, match=message):
        state_of(snapshot.model_copy(update=change))


def test_snapshots_grow_rarer_where_rounds_are_not_dropped() -> None:
    log = Log()
    log.join("a")
    due = []
    while log.state.seq < 600:
        log.contribute("a")
        if is_due(log.state):
            due.append(log.state.seq)
    assert due == [63, 127, 255, 511]
    assert log.state.rates == RATES


def test_a_snapshot_of_nothing_is_none() -> None:
    assert snapshot_of(OuterState("run")) is None


@given(rounds=st.integers(0, 40), members=st.integers(1, 5), seed=st.integers(0, 3))
def test_what_a_state_says_is_measured_about_as_its_snapshot_says_it(rounds: int, members: int, seed: int) -> None:
    log, names = Log(quorum=members), [f"trainer-{number}" for number in range(members)]
    for name in names:
        log.join(name)
    for number in range(rounds):
        for name in names:
            log.send(name)
        if seed and number % (5 * seed) == 4:
            log.checkpoint(number + 1)
    snapshot = snapshot_of(log.state)
    assert snapshot is not None
    said = len(snapshot.canonical())
    assert 0.6 * (said - 1500) < log.state.measure() < 1.4 * said
