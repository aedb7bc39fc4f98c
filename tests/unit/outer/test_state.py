"""Rounds, members and terms: what the order of the records alone decides."""

from __future__ import annotations

import dataclasses

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from pulse_registry.errors import CorruptObject
from pulse_registry.outer.snapshot import snapshot_of, state_of
from pulse_registry.outer.state import ClosedRound, OuterState
from pulse_schemas import ObjectRef
from pulse_schemas.outer import MOST_MEMBERS, CloseRecord, JoinRecord, Rates, unseal_outer_record
from tests.unit.outer.log import BASE, RATES, Log, refold

OTHER = "1" * 32


def log_of(*members: str, quorum: int = 1, patience: int = 2) -> Log:
    log = Log(quorum=quorum, patience=patience)
    for member in members:
        log.join(member)
    return log


def test_a_round_ends_by_itself_when_all_have_contributed() -> None:
    log = log_of("a", "b")
    assert log.contribute("a") is None
    assert (log.state.open, log.state.late()) == (1, {"b"})
    assert log.contribute("b") is None
    [closed] = log.state.closed
    assert isinstance(closed, ClosedRound)
    assert (closed.number, list(closed.contributions), closed.members) == (1, ["a", "b"], {"a", "b"})
    assert (log.state.open, log.state.contributions, log.state.late()) == (2, {}, {"a", "b"})


def test_a_run_has_no_more_members_than_sums_have_room_for_whether_they_are_new_or_come_back() -> None:
    log = log_of(*(f"m{number}" for number in range(MOST_MEMBERS)))
    full = f"the run has {MOST_MEMBERS} members"
    assert log.append(JoinRecord, member="new") == full
    assert log.append(JoinRecord, member="m0") is None  # a newer term of who is there
    log.leave("m0")
    assert log.append(JoinRecord, member="new") is None
    assert log.append(JoinRecord, member="m0") == full
    snapshot = snapshot_of(log.state)
    assert snapshot is not None
    assert state_of(snapshot) == log.state


def test_a_round_has_no_more_contributions_than_sums_have_room_for_whoever_comes_and_goes() -> None:
    log = log_of("slow", *(f"m{number}" for number in range(MOST_MEMBERS - 1)))
    for number in range(MOST_MEMBERS - 1):
        assert log.contribute(f"m{number}") is None
    for number, void in enumerate((None, f"round 1 has {MOST_MEMBERS} contributions")):
        log.leave(f"m{number}")
        log.join(f"n{number}")
        assert log.contribute(f"n{number}") == void
    assert len(log.state.contributions) == MOST_MEMBERS


def test_a_round_does_not_end_below_its_quorum() -> None:
    log = log_of("a", quorum=2)
    log.contribute("a")
    assert "no quorum" in (log.close() or "")
    assert log.state.open == 1
    log.join("b")
    log.contribute("b")
    assert log.state.open == 2


def test_anybody_ends_a_round_at_its_quorum_and_the_late_are_members_of_it() -> None:
    log = log_of("a", "b", "c", quorum=2)
    log.contribute("c")
    log.contribute("a")
    assert log.close() is None
    [closed] = log.state.closed
    assert (list(closed.contributions), closed.members) == (["c", "a"], {"a", "b", "c"})
    assert "round 1 is not open" in (log.close(1) or "")  # another one that wanted the same
    assert "round 1 is not open" in (log.contribute("b", round=1) or "")
    assert len(log.state.closed) == 1
    assert log.contribute("b") is None


def test_a_contribution_counts_once() -> None:
    log = log_of("a", "b")
    log.contribute("a", exponent=-19)
    assert "before" in (log.contribute("a", exponent=-18) or "")
    assert log.state.contributions["a"].exponent == -19


def test_a_newer_term_fences_the_older_one() -> None:
    log = log_of("a", "b")
    elder = log.state.members["a"].term
    younger = log.join("a")
    assert "another term" in (log.contribute("a", term=elder) or "")
    assert "another term" in (log.leave("a", elder) or "")
    assert log.contribute("a", term=younger) is None


def test_what_an_elder_term_contributed_counts_and_the_younger_one_contributes_to_the_next_round() -> None:
    log = log_of("a", "b")
    log.contribute("a")
    log.join("a")
    assert "before" in (log.contribute("a") or "")
    log.contribute("b")
    assert list(log.state.closed[0].contributions) == ["a", "b"]
    assert log.contribute("a") is None


def test_who_joins_later_is_waited_for_from_the_next_round_on_and_may_contribute_before() -> None:
    log = log_of("a")
    log.contribute("a")
    log.join("b")
    assert log.state.late() == {"a"}
    log.contribute("a")
    assert log.state.closed[-1].members == {"a"}
    assert log.state.late() == {"a", "b"}
    log.join("c")
    log.contribute("c")
    log.contribute("a")
    log.contribute("b")
    assert log.state.closed[-1].members == {"a", "b", "c"}


def test_who_leaves_is_not_waited_for_and_its_leaving_may_end_the_round() -> None:
    log = log_of("a", "b")
    log.contribute("a")
    assert log.leave("b") is None
    assert log.state.closed[0].members == {"a"}
    assert "has left" in (log.contribute("b") or "")
    log.join("b")
    assert log.contribute("b") is None


def test_who_has_missed_too_many_rounds_is_not_waited_for_until_it_contributes() -> None:
    log = log_of("a", "b", patience=2)
    for _ in range(2):
        log.contribute("a")
        assert log.close() is None
    assert log.state.late() == {"a"}
    log.contribute("a")
    assert log.state.closed[-1].members == {"a"}
    log.contribute("b")
    log.contribute("a")
    assert log.state.late() == {"a", "b"}


def test_what_was_made_from_other_weights_is_void() -> None:
    log = log_of("a", "b")
    assert "other weights" in (log.contribute("a", base=OTHER) or "")  # the first round's are in the log
    log.contribute("a")
    log.contribute("b")
    assert log.contribute("a", base=OTHER) is None  # the first of a later round says which they are
    assert "other weights" in (log.contribute("b", base=BASE) or "")


def test_exponents_far_from_the_middle_one_are_void_and_the_middle_one_follows_the_rounds() -> None:
    log, sent = log_of("a"), {"entries": 3, "object": ObjectRef(key="k", size=9, blake3="0" * 64)}
    assert "are about -20" in (log.contribute("a", exponent=-33, **sent) or "")
    assert log.contribute("a", exponent=-32, **sent) is None
    assert log.state.middle == -32
    assert "are about -32" in (log.contribute("a", exponent=-19, **sent) or "")
    log.contribute("a", exponent=-30)  # it has sent nothing
    assert log.state.middle == -32


def test_rates_change_from_a_named_round_on_for_all() -> None:
    log, slower = log_of("a"), Rates(inner_steps=4, rate=0.5, momentum=0.9)
    assert log.change(3, slower) is None
    assert "has begun" in (log.change(1, slower) or "")
    for _ in range(3):
        log.contribute("a")
    assert [closed.rates for closed in log.state.closed] == [RATES, RATES, slower]


def test_strangers_contribute_nothing() -> None:
    log = log_of("a")
    assert "another term" in (log.contribute("x") or "")


@pytest.mark.parametrize("change", [{"seq": 7}, {"run": "other"}, {"previous": "1" * 64}])
def test_records_that_do_not_follow_are_refused_and_change_nothing(change: dict[str, object]) -> None:
    log = log_of("a")
    before = dataclasses.replace(log.state)
    given = {
        "run": "run", "seq": log.state.seq + 1, "write_id": "a" * 32, "previous": log.state.last,
        "created_at": "2026-01-01T00:00:00.000Z", "round": 1,
    }  # fmt: skip
    with pytest.raises(CorruptObject, match="outer record"):
        log.state.advance(CloseRecord(**(given | change)), "0" * 64)
    assert log.state == before


def test_a_log_starts_once() -> None:
    log = Log()
    sealed = log.records[0]
    with pytest.raises(CorruptObject):
        log.state.advance(unseal_outer_record(sealed), blake3(sealed).hexdigest())
    record = CloseRecord(
        run="run", seq=0, write_id="a" * 32, previous=None, created_at="2026-01-01T00:00:00.000Z", round=1
    )
    with pytest.raises(CorruptObject, match="record 0 starts"):
        OuterState("run").advance(record, "0" * 64)


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["join", "contribute", "old", "close", "leave", "round"]),
        st.sampled_from("abcd"),
        st.integers(0, 3),
    ),
    max_size=60,
)


@given(actions=ACTIONS, quorum=st.integers(1, 3), patience=st.integers(1, 3))
def test_whatever_comes_each_contribution_counts_at_most_once_and_all_fold_alike(
    actions: list[tuple[str, str, int]], quorum: int, patience: int
) -> None:
    """Void records move nothing; each round that ends has its quorum, and is of the members that it waited for."""
    log = Log(quorum=quorum, patience=patience)
    terms: list[tuple[str, str]] = []
    for what, member, number in actions:
        awaited, number_open, present = log.state.awaited(), log.state.open, dict(log.state.contributions)
        void = None
        match what:
            case "join":
                terms.append((member, log.join(member)))
            case "contribute":
                void = log.contribute(member)
            case "old" if terms:
                name, term = terms[number % len(terms)]
                void = log.contribute(name, term=term)
            case "round":
                void = log.contribute(member, round=max(1, log.state.open - number))
            case "close":
                void = log.close(max(1, log.state.open - number))
            case "leave" if member in log.state.members:
                void = log.leave(member)
        if void is not None:
            assert (log.state.open, log.state.contributions) == (number_open, present)
        if log.state.open > number_open:
            closed = log.state.closed[-1]
            assert len(closed.contributions) >= quorum
            assert closed.contributions.keys() <= closed.members
            assert awaited - {member} <= closed.members
    counted = [record.write_id for closed in log.state.closed for record in closed.contributions.values()]
    counted += [record.write_id for record in log.state.contributions.values()]
    assert len(counted) == len(set(counted))
    assert [closed.number for closed in log.state.closed] == list(range(1, len(log.state.closed) + 1))
    assert refold(log.records) == log.state
