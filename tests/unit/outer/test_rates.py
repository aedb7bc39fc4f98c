"""Rates of the outer step that change from a named round on: all members fold them alike."""

from __future__ import annotations

from typing import Any

import pytest

from pulse_registry.errors import InvalidArgument
from pulse_registry.outer.session import OuterSession
from tests.unit.outer.sessions import Arrays, Site, bits, drawn, flat, train


def together(site: Site, members: dict[str, tuple[OuterSession, Arrays]], seed: int) -> None:
    """Make a round of so many steps as are to be."""
    for k, (session, model) in enumerate(members.values()):
        train(model, seed + k)
        session.contribute(1)
    for session, _ in members.values():
        session.finish()


def test_a_schedule_of_the_outer_step_is_folded_alike_by_those_who_were_there_and_who_join_later() -> None:
    site = Site()
    members = {name: (site.joined(model := drawn(), name, quorum=2), model) for name in "ab"}
    a, b = members["a"][0], members["b"][0]
    for round_ in (2, 3):
        for session in (a, b):  # all run the same program
            session.change(from_round=round_, lr=0.7 / round_, momentum=0.5)
    before = []
    for round_ in range(1, 5):
        together(site, members, 100 * round_)
        before.append(a.member.state.closed[-1].rates)
    assert [(one.rate, one.momentum) for one in before] == [(0.7, 0.9), (0.35, 0.5), (0.7 / 3, 0.5), (0.7 / 3, 0.5)]
    records = len(list(site.store.list("outer/log/")))
    late = drawn()
    c = site.joined(late, "c", quorum=2)  # it gives what the rounds were started with
    assert len(list(site.store.list("outer/log/"))) == records + 1
    assert bits(flat(late)) == bits(flat(members["a"][1])) == bits(flat(members["b"][1]))
    assert c.weights.momentum.tobytes() == a.weights.momentum.tobytes()
    with pytest.raises(InvalidArgument, match="were started with rates"):
        site.joined(drawn(), "d", quorum=2, lr=0.7 / 3, momentum=0.5)


def test_the_rates_are_used() -> None:
    found = []
    for changed in ({}, {"lr": 0.1}, {"momentum": 0.0}):
        site, held = Site(), drawn()
        session = site.joined(held)
        if changed:
            session.change(from_round=2, **changed)  # type: ignore[arg-type]
        for k in range(3):
            train(held, k)
            session.step()
        found.append(bits(flat(held)))
    assert len({tuple(one) for one in found}) == 3


def test_steps_are_counted_by_the_round_that_is_open() -> None:
    site, held = Site(), drawn()
    session = site.joined(held, inner_steps=2)
    session.change(from_round=2, inner_steps=3)
    session.change(from_round=3, inner_steps=1)
    ended = []
    for k in range(8):
        train(held, k)
        result = session.step()
        ended.append(None if result is None else result.round)
    assert ended == [None, 1, None, None, 2, 3, 4, 5]
    assert [one.rates.inner_steps for one in session.member.state.closed] == [2, 3, 1, 1, 1]


def test_a_round_that_has_begun_is_not_changed_and_saying_the_same_again_says_nothing() -> None:
    site, held = Site(), drawn()
    session = site.joined(held)
    records = list(site.store.list("outer/log/"))
    with pytest.raises(InvalidArgument, match="round 1 has begun; change a later one, from 2 on"):
        session.change(from_round=1, lr=0.5)
    session.change(from_round=1, lr=0.7)  # as it is
    assert list(site.store.list("outer/log/")) == records
    session.change(from_round=2, lr=0.5)
    session.change(from_round=2, lr=0.5)
    assert len(list(site.store.list("outer/log/"))) == len(records) + 1
    for k in range(2):
        train(held, k)
        session.step()
    session.change(from_round=2, lr=0.5)  # a program that was started again says what it said
    assert session.member.state.closed[1].rates.rate == 0.5


@pytest.mark.parametrize("changed", [{"inner_steps": 0}, {"lr": 0.0}, {"lr": float("nan")}, {"momentum": 1.0}])
def test_rates_out_of_range_are_refused(changed: dict[str, Any]) -> None:
    session = Site().joined(drawn())
    with pytest.raises(InvalidArgument, match="inner steps are from 1 to"):
        session.change(from_round=2, **changed)
    with pytest.raises(InvalidArgument, match="numbered from 1"):
        session.change(from_round=0, lr=0.5)
