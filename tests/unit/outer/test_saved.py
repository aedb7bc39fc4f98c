"""What a trainer has not sent, saved and taken up again: nothing is sent twice, and nothing of another one's."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from pulse_registry.errors import Fenced, InvalidArgument, InvalidModel, LayoutMismatch, StoreUnavailable
from pulse_registry.outer.session import OuterSession
from pulse_registry.testing import Fault, FaultStore
from tests.support.installed import needs
from tests.unit.outer.sessions import Site, Switch, bits, drawn, flat, train

FLOATS = npt.NDArray[np.float32]


def residual(session: OuterSession) -> FLOATS:
    return session.weights.residual


def saved_floats(saved: dict[str, Any], name: str = "residual") -> FLOATS:
    return np.asarray(saved[name], np.float32)


def test_a_trainer_goes_on_with_what_it_had_not_sent_and_the_steps_of_its_round() -> None:
    site, held = Site(), drawn()
    session = site.joined(held, inner_steps=3)
    for k in range(4):
        train(held, k)
        session.step()
    moved = session.weights.theta - flat(held)
    saved = session.state_dict()
    assert (saved["round"], saved["steps"], saved["member"], saved["run"]) == (1, 1, "a", "run")
    assert bits(saved_floats(saved)) == bits(residual(session) + moved)
    again = drawn(9)
    later = site.session(again, inner_steps=3)
    later.load_state_dict(saved)
    later.join()
    assert bits(residual(later)) == bits(saved_floats(saved))
    assert bits(flat(again)) == bits(later.weights.theta) == bits(session.weights.theta)
    train(again, 11)
    assert later.step() is None
    train(again, 12)
    result = later.step()  # the third step of the round
    assert result is not None
    assert (result.round, result.counts) == (2, True)


def test_what_is_saved_while_a_round_is_awaited_is_without_what_was_sent() -> None:
    site, held = Site(), drawn()
    session = site.joined(held)
    site.joined(drawn(), "b")
    train(held, 1)
    session.contribute()
    sent_of = residual(session).copy()
    train(held, 2)
    moved = session.weights.origin - flat(held)
    saved = session.state_dict()
    assert bits(saved_floats(saved)) == bits(sent_of + moved)
    later = site.session(drawn())
    later.load_state_dict(saved)
    later.join()
    assert bits(residual(later)) == bits(saved_floats(saved))


def test_after_a_later_contribution_it_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    site, held = Site(), drawn()
    session = site.joined(held)
    train(held, 1)
    session.step()
    saved = session.state_dict()
    assert residual(session).any()
    train(held, 2)
    session.step()
    later = site.session(drawn())
    later.load_state_dict(saved)
    later.join()
    assert not residual(later).any()
    assert "saved at round 1, and since then it has contributed: a part of it was sent" in caplog.text


def test_a_contribution_that_came_too_late_does_not_count_as_a_later_one() -> None:
    site = Site()
    mine, theirs = drawn(), drawn()
    a, b = site.joined(mine, "a", grace_s=0.0), site.joined(theirs, "b", grace_s=0.0)
    train(mine, 1)
    train(theirs, 2)
    saved = b.state_dict()
    a.contribute()
    a.await_round()
    assert not b.contribute().counts
    later = site.session(drawn(), "b", grace_s=0.0)
    later.load_state_dict(saved)
    later.join()
    assert bits(residual(later)) == bits(saved_floats(saved))
    assert later.round == 1


@pytest.mark.parametrize(("action", "landed"), [("fail_before", False), ("fail_after", True)])
def test_a_contribution_on_its_way_is_sent_once_whether_it_landed_or_not(action: Any, landed: bool) -> None:
    site, held = Site(), drawn()
    switch = Switch(lambda key: "log/" in key)
    session = site.joined(held, store=FaultStore(site.store, [Fault(action, "put", matches=switch)]))
    train(held, 1)
    switch.on = True
    with pytest.raises(StoreUnavailable):
        session.step()
    train(held, 2)
    saved = session.state_dict()
    whole, rest = saved_floats(saved), saved_floats(saved, "rest")
    assert bits(whole) != bits(rest)
    later = site.session(drawn())
    later.load_state_dict(saved)
    later.join()
    assert bits(residual(later)) == bits(rest if landed else whole)
    assert later.round == (1 if landed else 0)


def test_a_contribution_on_its_way_does_not_land_after_its_member_has_begun_anew() -> None:
    """The elder process still lives, and tries again: its place in the log is taken, and its term has ended."""
    site, held, again = Site(), drawn(), drawn()
    switch = Switch(lambda key: "log/" in key)
    elder = site.joined(held, store=FaultStore(site.store, [Fault("fail_before", "put", matches=switch, times=1)]))
    train(held, 1)
    switch.on = True
    with pytest.raises(StoreUnavailable):
        elder.step()
    younger = site.session(again)
    younger.load_state_dict(elder.state_dict())
    younger.join()
    records = list(site.store.list("outer/log/"))
    with pytest.raises(Fenced):
        elder.finish()
    assert list(site.store.list("outer/log/")) == records
    train(again, 2)
    assert younger.contribute().counts


def test_what_an_elder_saves_is_dropped_once_the_younger_one_has_sent_of_it(caplog: pytest.LogCaptureFixture) -> None:
    """The younger one began with what the elder had saved before, which is part of what the elder has yet."""
    site, held, again = Site(), drawn(), drawn()
    elder = site.joined(held)
    train(held, 1)
    elder.step()
    before = elder.state_dict()
    assert saved_floats(before).any()
    younger = site.session(again)
    younger.load_state_dict(before)
    younger.join()
    assert younger.contribute().counts
    with pytest.raises(Fenced):
        elder.step()
    last = site.session(drawn())
    last.load_state_dict(elder.state_dict())
    last.join()
    assert not residual(last).any()
    assert "since then it has contributed" in caplog.text


def test_a_contribution_that_landed_is_sent_once_though_the_store_failed_as_that_was_seen() -> None:
    site, held = Site(), drawn()
    put, get = Switch(lambda key: "log/" in key), Switch(lambda key: "log/000000000003" in key)
    faults = [Fault("fail_after", "put", matches=put, times=1), Fault("fail_before", "get", matches=get)]
    session = site.joined(held, store=FaultStore(site.store, faults))
    train(held, 1)
    put.on = True
    with pytest.raises(StoreUnavailable):
        session.step()
    get.on = True
    with pytest.raises(StoreUnavailable):
        session.finish()
    assert session.member.state.seq == 2  # it is in the log, and was read
    saved = session.state_dict()
    assert bits(saved_floats(saved)) != bits(saved_floats(saved, "rest"))
    later = site.session(drawn())
    later.load_state_dict(saved)
    later.join()
    assert later.round == 1
    assert bits(residual(later)) == bits(saved_floats(saved, "rest"))


@pytest.mark.parametrize("loaded", [True, False])
def test_it_goes_through_torch_save(loaded: bool) -> None:
    needs("torch")
    import torch

    site, held = Site(), drawn()
    session = site.joined(held)
    train(held, 1)
    session.step()
    file = io.BytesIO()
    torch.save({"model": {}, "outer": session.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)["outer"]
    if not loaded:
        saved = {name: value.numpy() if hasattr(value, "numpy") else value for name, value in saved.items()}
    later = site.session(drawn())
    later.load_state_dict(saved)
    later.join()
    assert bits(residual(later)) == bits(residual(session))


def test_the_state_of_another_one_is_refused_and_nobody_hears_of_it() -> None:
    site, held = Site(), drawn()
    session = site.joined(held)
    train(held, 1)
    session.step()
    saved = session.state_dict()
    records = list(site.store.list("outer/log/"))
    with pytest.raises(InvalidArgument, match="of member 'a' of run 'run', not of 'b' of 'run'"):
        site.session(drawn(), "b").load_state_dict(saved)
    with pytest.raises(InvalidArgument, match="of run 'run', not of 'a' of 'other'"):
        site.session(drawn(), name="other").load_state_dict(saved)
    with pytest.raises(InvalidArgument, match="call load_state_dict before join"):
        session.load_state_dict(saved)
    for changed, error, match in (
        ({"layout": "0" * 64}, LayoutMismatch, "of layout 0000"),
        ({"residual": saved_floats(saved)[:-1]}, LayoutMismatch, "begin without it"),
        ({"start": "f" * 32}, InvalidArgument, "of other rounds"),
        ({"round": 7}, InvalidArgument, "of round 7, and run 'run' is at round 2"),
    ):
        other = site.session(drawn())
        other.load_state_dict(saved | changed)
        with pytest.raises(error, match=match):
            other.join()
    fresh = Site().session(drawn())
    fresh.load_state_dict(saved)
    with pytest.raises(InvalidArgument, match="of other rounds"):
        fresh.join()
    assert list(site.store.list("outer/log/")) == records


@pytest.mark.parametrize(
    "changed",
    [
        {"format": "pulse-outer-state/2"},
        {"residual": None},
        {"residual": np.full(320, np.nan, np.float32)},
        {"residual": np.zeros(320, np.float64)},
        {"residual": np.zeros((20, 16), np.float32)},
        {"round": -1},
        {"steps": "many"},
        {"attempt": "f" * 32},
        {"rest": np.zeros(320, np.float32)},
    ],
)
def test_what_is_no_saved_state_is_refused(changed: dict[str, Any]) -> None:
    site, held = Site(), drawn()
    session = site.joined(held)
    with pytest.raises(InvalidArgument, match=r"state_dict\(\)|not whole|contradicts itself"):
        site.session(drawn()).load_state_dict(session.state_dict() | changed)
    with pytest.raises(InvalidArgument, match=r"state_dict\(\)"):
        site.session(drawn()).load_state_dict({})
    missing = session.state_dict()
    del missing["newest"]
    with pytest.raises(InvalidArgument, match="not whole"):
        site.session(drawn()).load_state_dict(missing)


def test_weights_that_are_not_finite_are_not_saved() -> None:
    site, held = Site(), drawn()
    session = site.joined(held)
    held["b"][3] = np.nan
    with pytest.raises(InvalidModel, match="'b' at flat index 3"):
        session.state_dict()
