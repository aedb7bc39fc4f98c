"""Rounds that begin anew after somebody else's push: what they leave behind, and who goes on with them."""

from __future__ import annotations

import numpy as np
import pytest

from pulse_kernels.select import outer_loops
from pulse_registry.errors import CorruptObject, Fenced, InvalidArgument
from pulse_registry.format import keys
from pulse_registry.outer.append_guard import OuterAppendGuard
from pulse_registry.outer.log import OuterLog
from pulse_registry.outer.snapshot import snapshot_of, state_of
from pulse_registry.outer.weights import OuterWeights
from pulse_registry.retention.rounds import needed_versions
from pulse_registry.store import Store
from pulse_registry.store.body import Body
from pulse_registry.store.wrappers.wrapper import WrapperStore
from pulse_registry.weights.arrays import Weights
from pulse_schemas.outer import RestartRecord
from pulse_schemas.outer_snapshot import OuterSnapshot
from tests.unit.outer.log import ANEW, BASE, Log, refold
from tests.unit.outer.sessions import GEOMETRY, Site, bits, drawn, flat, train
from tests.unit.outer.test_log import empty
from tests.unit.outer.test_member import BACKEND
from tests.unit.outer.test_saved import saved_floats


def worked(rounds: int = 3) -> Log:
    log = Log()
    log.join("a")
    for _ in range(rounds):
        log.send("a")
    return log


def test_rounds_go_on_after_the_versions_of_others_and_what_led_there_is_retired() -> None:
    log = worked()
    log.checkpoint(2)
    term = log.state.members["a"].term
    assert log.restart(5) is None
    state = log.state
    assert (state.open, state.begun, state.retired, state.dropped, state.spare) == (6, 5, 5, 5, 5)
    assert (state.closed, state.checkpoints, state.left().keys()) == ([], [], {"a"})
    assert state.retirements == {5: state.seq}
    assert needed_versions(state, 100) == {9: "outer rounds began with it"}
    assert "another term" in (log.contribute("a", term=term) or "")
    log.join("a")
    log.join("b")
    assert "other weights" in (log.contribute("b", base=BASE) or "")
    assert log.contribute("b", base=ANEW) is None
    assert state.late() == {"a"}  # who joins before the first round has ended is waited for at once
    assert log.contribute("a", base=ANEW) is None
    assert (state.open, [one.number for one in state.closed]) == (7, [6])
    assert log.checkpoint(5) is not None
    assert log.checkpoint(6) is None
    assert needed_versions(state, 100).keys() == {9, 10}
    assert log.delete(5) is None
    assert refold(log.records) == state


def test_the_newest_round_itself_may_be_begun_at_anew_as_its_version_may_be_somebody_elses() -> None:
    log = worked(3)
    log.join("b")
    log.contribute("b")
    assert log.restart(3) is None
    assert (log.state.open, dict(log.state.contributions)) == (4, {})


@pytest.mark.parametrize(("number", "why"), [(2, "round 3 has ended"), (5, None)])
def test_no_round_that_has_ended_is_begun_at_anew(number: int, why: str | None) -> None:
    assert worked().restart(number) == why


def test_rounds_begin_anew_once_after_a_round() -> None:
    log = worked()
    assert log.restart(4) is None
    before = log.state.copy()
    assert log.restart(4) == "rounds began anew after round 4"
    assert log.state.retirements == before.retirements


def test_a_snapshot_after_a_restart_says_so_and_one_before_is_as_ever() -> None:
    log = worked()
    before = snapshot_of(log.state)
    assert before is not None
    assert (before.format, b'"restart"' in before.canonical()) == ("pulse-outer-snapshot/1", False)
    log.restart(5)
    after = snapshot_of(log.state)
    assert after is not None
    assert after.format == "pulse-outer-snapshot/3"
    assert state_of(OuterSnapshot.unseal(after.seal())) == log.state
    assert after.restart is not None
    for wrong, what in (({"seq": 99}, "after its last one"), ({"round": 6}, "does not tell of all rounds")):
        with pytest.raises(CorruptObject, match=what):
            state_of(after.model_copy(update={"restart": after.restart.model_copy(update=wrong)}))
    with pytest.raises(CorruptObject, match="retired and was deleted"):
        state_of(after.model_copy(update={"retired": 3, "retirements": ()}))


def push(site: Site, version: int) -> str:
    """Push other weights, as somebody else would, and return their digest."""
    made = [(one.view(np.uint32) >> 16).astype(np.uint16).reshape(-1) for one in drawn(9).values()]
    weights = OuterWeights(GEOMETRY, BACKEND, outer_loops("reference"))
    weights.begin(Weights(GEOMETRY, made).copy_of)
    site.versions.push(version, weights)
    return site.versions.digests[version]


def restart(store: Store, digest: str, round_: int) -> None:
    OuterLog(store, "run").append(lambda _, common: RestartRecord(**common, round=round_, digest=digest))


def test_members_are_fenced_and_go_on_from_the_new_version_together(caplog: pytest.LogCaptureFixture) -> None:
    site, mine = Site(), drawn()
    first = site.joined(mine)
    for seed in (1, 2):
        train(mine, seed)
        first.step()
    train(mine, 3)
    saved = first.state_dict()
    push(site, 3)
    digest = push(site, 4)
    restart(site.store, digest, 4)
    with pytest.raises(Fenced, match="began anew, from version 4: join them again, as 'a'"):
        first.step()
    held, theirs = drawn(), drawn(5)
    again = site.session(held, quorum=1)
    again.load_state_dict(saved)
    again.join()
    assert "since then the rounds have begun anew: what it had not sent is dropped" in caplog.text
    assert (again.round, again.steps) == (4, 0)
    assert not again.weights.residual.any()
    assert not again.weights.momentum.any()
    assert again.weights.digest().hex() == digest
    train(held, 4)
    result = again.step()
    assert result is not None
    assert (result.round, result.version, result.counts) == (5, 5, True)
    later = site.joined(theirs, "b", quorum=1)
    assert bits(flat(theirs)) == bits(flat(held))
    assert bits(later.weights.momentum) == bits(again.weights.momentum)


def test_who_joins_while_rounds_begin_anew_at_the_round_that_it_has_come_to_has_the_new_weights() -> None:
    site, mine = Site(), drawn()
    first = site.joined(mine)
    for seed in (1, 2):
        train(mine, seed)
        first.step()
    digest = push(site, 9)  # as if version 2 had been somebody else's
    site.versions.replace(2, 9)

    class Meanwhile(WrapperStore):
        """Lets rounds begin anew just before the first record is appended."""

        def put(self, key: str, data: Body, *, if_absent: bool = False) -> None:
            if "outer/log/0" in key and OuterLog(site.store, "run").refresh().restart is None:
                restart(site.store, digest, 2)
            super().put(key, data, if_absent=if_absent)

    held = drawn(5)
    later = site.joined(held, "b", Meanwhile(site.store))
    assert (later.round, later.weights.digest().hex()) == (2, digest)
    assert not later.weights.momentum.any()
    assert bits(flat(held)) == bits(later.weights.theta)
    train(held, 4)
    assert later.step() is not None


def test_nobody_joins_rounds_that_began_anew_with_weights_that_no_version_has() -> None:
    site, mine = Site(), drawn()
    session = site.joined(mine)
    train(mine, 1)
    session.step()
    restart(site.store, "b" * 32, 1)
    records = list(site.store.list("outer/log/"))
    with pytest.raises(CorruptObject, match=f"began with weights of digest {'b' * 32}, and version 1 has"):
        site.joined(drawn(), "b")
    assert list(site.store.list("outer/log/")) == records


def test_state_saved_after_a_restart_is_used_again() -> None:
    site, mine = Site(), drawn()
    session = site.joined(mine)
    train(mine, 1)
    session.step()
    restart(site.store, push(site, 2), 2)
    held = drawn()
    again = site.joined(held)
    train(held, 2)
    saved = again.state_dict()
    later = site.session(drawn())
    later.load_state_dict(saved)
    later.join()
    assert later.weights.residual.any()
    assert bits(later.weights.residual) == bits(saved_floats(saved))


def test_what_a_fenced_member_saves_of_the_rounds_before_is_dropped_and_none_of_it_gets_into_the_new_ones() -> None:
    site, mine = Site(), drawn()
    first = site.joined(mine)
    train(mine, 1)
    first.step()
    train(mine, 2)
    restart(site.store, push(site, 3), 3)
    for call in (first.step, first.apply):  # there is a round to apply, of others' weights
        with pytest.raises(Fenced, match="began anew"):
            call()
    saved = first.state_dict()
    assert saved_floats(saved).any()
    again = site.session(drawn())
    again.load_state_dict(saved)
    again.join()
    assert not again.weights.residual.any()


def test_a_checkpoint_of_the_rounds_before_that_was_under_way_is_not_told_of() -> None:
    site, mine = Site(), drawn()
    session = site.joined(mine)
    train(mine, 1)
    session.step()
    checkpointing = session.member.checkpointing
    assert checkpointing is not None
    assert checkpointing.writer is not None
    checkpointing.writer.begin(1, session.weights.digest().hex(), session.weights)
    restart(site.store, push(site, 3), 3)
    session.leave()  # through a service, a record that counts for nothing would be refused
    assert [record.kind for record, _ in OuterLog(site.store, "run").follow()][-1] == "restart"


def test_the_guard_of_a_service_takes_a_restart_and_nothing_of_an_ended_term() -> None:
    store, log = empty(), Log()
    term = log.join("a")
    for seq, record in enumerate(log.records):
        store.put("outer/" + keys.record_key(seq), record)
    guard = OuterAppendGuard(store, "run")
    log.restart(2)
    guard.admit(log.records[-1])
    log.contribute("a", term=term)
    with pytest.raises(Fenced):
        guard.admit(log.records[-1])


def test_the_guard_of_a_service_refuses_a_restart_that_would_count_for_nothing() -> None:
    store, log = empty(), worked()
    for seq, record in enumerate(log.records):
        store.put("outer/" + keys.record_key(seq), record)
    guard = OuterAppendGuard(store, "run")
    log.restart(1)
    with pytest.raises(InvalidArgument, match="round 3 has ended"):
        guard.admit(log.records[-1])
