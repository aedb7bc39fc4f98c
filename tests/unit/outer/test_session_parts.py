"""The parts of a session: contribute, wait, apply; retries, overlap, resets and bad input."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pulse_registry.errors import Fenced, InvalidArgument, InvalidModel, StoreUnavailable
from pulse_registry.outer.result import RoundResult
from pulse_registry.outer.session import OuterSession
from pulse_registry.testing import Fault, FaultStore
from tests.unit.outer.sessions import Arrays, Site, Switch, bits, drawn, flat, train


def weights(session: OuterSession) -> Any:
    return session.weights


def stepped(session: OuterSession) -> RoundResult:
    result = session.step()
    assert result is not None
    return result


def pair(site: Site, **options: Any) -> list[tuple[OuterSession, Arrays]]:
    models = [drawn(), drawn()]
    return [(site.joined(model, name, quorum=2, **options), model) for name, model in zip("ab", models, strict=True)]


@pytest.mark.parametrize("options", [{}, {"values": "float32"}, {"gain": None}, {"gain": None, "values": "float32"}])
@pytest.mark.parametrize("weighting", ["equal", "steps"])
def test_two_trainers_hold_the_same_bits_whatever_is_sent(options: dict[str, Any], weighting: str) -> None:
    site = Site()
    sessions = pair(site, weighting=weighting, **options)
    for round_ in range(1, 4):
        for k, (session, model) in enumerate(sessions):
            train(model, 10 * round_ + k)
            session.contribute(1 + k)
        for session, _ in sessions:
            result = session.finish()
            assert (result.round, result.version, result.counts, result.members) == (round_, round_, True, ("a", "b"))
            assert session.last == result
    (a, mine), (b, theirs) = sessions
    assert bits(flat(mine)) == bits(flat(theirs)) == bits(weights(a).theta)
    assert weights(a).momentum.tobytes() == weights(b).momentum.tobytes()
    if options == {"gain": None, "values": "float32"}:
        assert not weights(a).residual.any()


def test_fewer_steps_than_the_others_are_told_as_such() -> None:
    site = Site()
    sessions = pair(site, inner_steps=4, weighting="steps")
    (a, mine), (b, theirs) = sessions
    train(mine, 1)
    assert a.step() is None
    a.contribute()
    assert a.contribute() == a.contribute()  # once
    for k in range(3):
        train(theirs, 2 + k)
        assert b.step() is None
    train(theirs, 5)
    assert stepped(b).round == 1
    assert a.finish().round == 1
    state = a.member.state
    assert [one.steps for one in state.closed[0].contributions.values()] == [1, 4]


def test_steps_made_while_a_round_is_awaited_stay_in_the_model_and_go_out_with_the_next() -> None:
    site = Site()
    (a, mine), (b, theirs) = pair(site, gain=None, values="float32", inner_steps=2)
    for k in range(2):
        train(mine, k)
        assert a.step(wait=False) is None
    before = flat(mine).copy()
    train(mine, 7)
    moved = flat(mine) - before
    assert a.step(wait=False) is None
    for k in range(2):
        train(theirs, 20 + k)
        result = b.step(wait=False)
    assert result is not None
    assert result.round == 1
    train(mine, 8)
    at_last = a.step(wait=False)
    assert at_last is not None
    assert at_last.counts
    theta = weights(a).theta
    later = flat(mine) - theta
    assert np.abs(moved).max() > 0
    two = flat(mine).copy()
    assert a.contribute().steps == 2
    sent = weights(a).residual
    assert not sent.any()
    assert np.abs(later).max() > np.abs(moved).max() / 2
    train(theirs, 30)
    b.contribute(2)
    b.finish()
    a.finish()
    assert bits(weights(a).theta) == bits(weights(b).theta) == bits(flat(mine)) == bits(flat(theirs))
    assert bits(two) != bits(flat(mine))


def test_a_trainer_that_is_to_contribute_again_waits_for_the_round_before() -> None:
    site = Site()
    held = drawn()
    alone = site.joined(held, "a", quorum=1, grace_s=5.0)
    site.joined(drawn(), "b", quorum=1)  # never contributes
    results = []
    for k in range(4):
        train(held, k)
        results.append(alone.step(wait=False))
    assert [result is not None for result in results] == [False, True, True, True]


@pytest.mark.parametrize("action", ["fail_before", "fail_after"])
@pytest.mark.parametrize("what", ["objects/", "log/"])
@pytest.mark.parametrize("train_on", [False, True])
def test_after_a_store_without_an_answer_a_round_goes_on_and_nothing_is_sent_twice(
    action: Any, what: str, train_on: bool
) -> None:
    site = Site()
    switch = Switch(lambda key: what in key)
    store = FaultStore(site.store, [Fault(action, "put", matches=switch, times=1)])
    held = drawn()
    session = site.joined(held, "a", store, values="float32", gain=None)
    train(held, 1)
    local = flat(held).copy()
    switch.on = True
    with pytest.raises(StoreUnavailable):
        session.step()
    if train_on:
        before = flat(held).copy()
        train(held, 2)
        moved = before - flat(held)
        result = session.step()
        assert result is not None
        if what == "log/":  # it was on its way: what was moved after that is of the next round
            assert bits(flat(held)) == bits(weights(session).theta - moved)
        else:
            assert bits(flat(held)) == bits(weights(session).theta)
    else:
        result = session.finish()
    assert (result.round, result.counts) == (1, True)
    assert not weights(session).residual.any()
    if not train_on:
        twin, twins = Site(), drawn()
        other = twin.joined(twins, "a", values="float32", gain=None)
        train(twins, 1)
        assert bits(flat(twins)) == bits(local)
        other.step()
        assert bits(flat(twins)) == bits(flat(held))
    assert len(list(site.store.list("outer/log/"))) == 3  # start, join, contribute


def test_a_lost_answer_is_found_by_whoever_looks_at_the_log_first() -> None:
    """The record landed, its author does not know, and goes on by `await_round` alone."""
    site = Site()
    switch = Switch(lambda key: "log/" in key)
    store = FaultStore(site.store, [Fault("fail_after", "put", matches=switch, times=1)])
    held = drawn()
    session = site.joined(held, "a", store, values="float32", gain=None)
    train(held, 1)
    switch.on = True
    with pytest.raises(StoreUnavailable):
        session.contribute(1)
    session.await_round()
    result = session.apply()
    assert result.counts
    assert not weights(session).residual.any()
    assert bits(flat(held)) == bits(weights(session).theta)


def test_a_store_that_fails_while_rounds_are_folded_leaves_the_step_to_the_next_call() -> None:
    site = Site()
    switch = Switch(lambda key: "-b-" in key)
    store = FaultStore(site.store, [Fault("fail_before", "get", matches=switch, times=1)])
    mine, theirs = drawn(), drawn()
    a = site.joined(mine, "a", store, quorum=2)
    b = site.joined(theirs, "b", quorum=2)
    for session, model in ((a, mine), (b, theirs)):
        train(model, 3)
        session.contribute(1)
    switch.on = True
    with pytest.raises(StoreUnavailable):
        a.finish()
    assert a.finish().round == b.finish().round == 1
    assert bits(flat(mine)) == bits(flat(theirs))


def test_who_has_not_contributed_keeps_what_it_has_learnt() -> None:
    site = Site()
    mine, theirs = drawn(), drawn()
    a, b = site.joined(mine, "a", grace_s=1.0), site.joined(theirs, "b", inner_steps=1)
    train(mine, 1)
    a.contribute(1)
    a.await_round()
    train(theirs, 2)
    b.await_round()
    result = b.apply()
    assert (result.counts, result.late) == (False, ("b",))
    assert np.abs(weights(b).residual).max() > 0
    assert bits(flat(theirs)) == bits(weights(b).theta)
    with pytest.raises(InvalidArgument, match="no round has ended"):
        b.apply()


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e30])
@pytest.mark.parametrize("values", ["levels", "float32"])
def test_a_bad_pseudo_gradient_is_refused_and_after_reset_the_trainer_goes_on(bad: float, values: str) -> None:
    site = Site()
    held = drawn()
    session = site.joined(held, values=values)
    train(held, 1)
    session.step()
    kept = weights(session).residual.copy()
    held["w"][3, 3] = bad
    for _ in range(2):
        with pytest.raises(InvalidModel, match=r"'w' at flat index 33.*call reset"):
            session.step()
    assert weights(session).residual.tobytes() == kept.tobytes()
    assert len(list(site.store.list("outer/log/"))) == 3  # start, join, one contribution
    session.reset()
    assert bits(flat(held)) == bits(weights(session).theta)
    train(held, 2)
    assert stepped(session).round == 2


def test_reset_while_a_round_is_awaited_drops_the_steps_since() -> None:
    site = Site()
    (a, mine), (b, theirs) = pair(site)
    train(mine, 1)
    a.contribute(1)
    held = weights(a).residual.copy()
    train(mine, 2)
    a.reset()
    assert weights(a).residual.tobytes() == held.tobytes()
    train(theirs, 3)
    b.contribute(1)
    a.finish()
    assert bits(flat(mine)) == bits(weights(a).theta)


def test_the_elder_of_a_name_is_fenced_and_its_leaving_says_nothing() -> None:
    site = Site()
    mine, theirs = drawn(), drawn()
    elder = site.joined(mine)
    younger = site.joined(theirs)
    train(mine, 1)
    with pytest.raises(Fenced, match="as 'a'"):
        elder.step()
    elder.leave()
    assert len(list(site.store.list("outer/log/"))) == 3  # start, join, join
    train(theirs, 2)
    assert stepped(younger).counts


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"inner_steps": 3}, "rates"),
        ({"lr": 0.6}, "rates"),
        ({"momentum": 0.8}, "rates"),
        ({"gain": 1.0}, "gain"),
        ({"gain": None}, "gain"),
        ({"values": "float32"}, "values"),
        ({"weighting": "steps"}, "weighting"),
        ({"patience": 9}, "patience"),
        ({"quorum": 2}, "quorum"),
    ],
)
def test_other_settings_than_the_start_has_are_refused_before_anybody_hears_of_them(
    changed: dict[str, Any], named: str
) -> None:
    site = Site()
    first = site.joined(drawn(), "a")
    records = list(site.store.list("outer/log/"))
    with pytest.raises(InvalidArgument, match=f"were started with {named} "):
        site.joined(drawn(), "b", **changed)
    assert list(site.store.list("outer/log/")) == records
    del first


@pytest.mark.parametrize(
    "wrong",
    [
        {"quorum": 0}, {"quorum": 257}, {"patience": 0}, {"gain": 0.0}, {"gain": np.inf}, {"gain": "much"},
        {"weighting": "fair"}, {"values": "bf16"}, {"inner_steps": 0}, {"lr": -1.0}, {"momentum": 1.0},
        {"grace_s": -1.0}, {"grace_s": np.nan}, {"poll_s": -0.1}, {"member": "EU 1"}, {"member": ""},
    ],
)  # fmt: skip
def test_options_out_of_range_are_refused_at_once(wrong: dict[str, Any]) -> None:
    named = "much" if "much" in wrong.values() else next(iter(wrong)).removesuffix("_s")
    with pytest.raises(InvalidArgument, match=named):
        Site().session(drawn(), **{"member": "a", **wrong})


def test_models_that_do_not_fit_are_named() -> None:
    site = Site()
    with pytest.raises(InvalidModel, match="'w' is not there, and was of shape"):
        site.joined({"b": drawn()["b"]})
    with pytest.raises(InvalidModel, match=r"'b' is of shape \(4,\), and was of shape \(20,\)"):
        site.joined({**drawn(), "b": np.zeros(4, np.float32)})
    with pytest.raises(InvalidModel, match=r"'extra' is of shape .* and was not there"):
        site.joined({**drawn(), "extra": np.zeros(4, np.float32)})
    with pytest.raises(InvalidModel, match=r"'b' is F16: .*pass a mapping"):
        site.joined({**drawn(), "b": np.zeros(20, np.float16)})
    assert not list(site.store.list("outer/"))


def test_what_is_called_out_of_turn_says_what_to_call() -> None:
    site = Site()
    session = site.session(drawn())
    calls: list[Callable[[], object]] = [session.step, session.finish, session.contribute, session.apply]
    for call in (*calls, session.reset, session.state_dict, lambda: session.change(from_round=3)):
        with pytest.raises(InvalidArgument, match="call join"):
            call()
    session.join()
    with pytest.raises(InvalidArgument, match="call leave first"):
        session.join()
    session.leave()
    session.leave()
    with pytest.raises(InvalidArgument, match="call join"):
        session.step()
    session.join()
