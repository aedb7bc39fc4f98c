"""Checkpoints of rounds: written when contributions outweigh them, begun at by who comes later, compared by all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulse_registry.errors import CorruptObject, Diverged, NotFound, PulseError
from pulse_registry.outer.checkpoint_turn import round_bytes, writer_of
from pulse_registry.outer.checkpoint_writer import CheckpointWriter
from pulse_registry.outer.log import OuterLog
from pulse_registry.outer.session import OuterSession
from pulse_registry.outer.state import OuterState
from pulse_registry.store import MOST_WHOLE_BYTES, ByteRange, Store, WrapperStore
from pulse_registry.testing import Fault, FaultStore
from pulse_schemas.outer import CheckpointRecord, RetireRoundsRecord
from tests.support.inline import Inline
from tests.support.sampling import examples
from tests.unit.outer.sessions import BACKEND, Arrays, Site, bits, drawn, flat, train

HEAD = "/checkpoint-head"


class Team:
    """Trainers that make rounds together, of one inner step each."""

    def __init__(self, site: Site, *members: str, **options: Any) -> None:
        self.site, self.models, self.sessions = site, dict[str, Arrays](), dict[str, OuterSession]()
        self.options = {"quorum": len(members), **options}
        for member in members:
            self.join(member)

    def join(self, member: str, store: Store | None = None) -> OuterSession:
        self.models[member] = drawn()
        self.sessions[member] = self.site.joined(self.models[member], member, store, **self.options)
        return self.sessions[member]

    def round(self, *members: str) -> None:
        """Let some make a round; all by default."""
        who = members or tuple(self.sessions)
        for member in who:
            train(self.models[member], self.sessions[member].round * 10 + ord(member[0]))
            self.sessions[member].contribute()
        for member in who:
            self.sessions[member].await_round()
            self.sessions[member].apply()

    def rounds(self, count: int) -> None:
        for _ in range(count):
            self.round()

    def state(self) -> OuterState:
        return OuterLog(self.site.store, "run").refresh()


def held(session: OuterSession) -> tuple[int, list[int], list[int]]:
    """Return what of a member's state all hold."""
    return session.round, bits(session.weights.theta), bits(session.weights.momentum)


def damage(store: Store, key: str) -> None:
    data = bytearray(store.get(key, max_bytes=1 << 20))
    data[-1] ^= 1
    store.put(key, bytes(data))


def test_a_checkpoint_is_written_when_contributions_outweigh_it_and_who_joins_begins_there() -> None:
    team = Team(Site(), "a", "b")
    while len(team.state().checkpoints) < 3:
        team.round()
        assert team.sessions["a"].round < 60
    state, store = team.state(), team.site.store
    assert state.dropped == state.checkpoints[-2].round > 0
    between = range(state.checkpoints[1].round + 1, state.checkpoints[2].round + 1)
    sent = sum(round_bytes(closed) for closed in state.closed if closed.number in between)
    assert sent >= 2 * (state.checkpoints[1].object.size + state.checkpoints[1].parts)
    heads = [key for key in store.list("outer/objects/checkpoint/") if key.endswith(HEAD)]
    assert [f"outer/{one.object.key}" for one in state.checkpoints] == sorted(heads)
    for number in range(1, state.dropped + 1):  # nobody needs them
        for key in [*store.list(f"outer/objects/contribution/{number:012d}")]:
            store.delete(key)
    team.join("c")
    assert held(team.sessions["c"]) == held(team.sessions["a"]) == held(team.sessions["b"])
    assert bits(flat(team.models["c"])) == bits(flat(team.models["a"]))
    team.round()
    assert held(team.sessions["c"]) == held(team.sessions["a"])


def test_members_write_the_same_bytes_and_the_second_is_not_named() -> None:
    team = Team(Site(), "a", "b")
    for _ in range(3):
        team.round()
    found = []
    for name, session in team.sessions.items():
        ids = iter([name * 32])
        writer = CheckpointWriter(team.site.store, BACKEND, lambda *_: Inline(), lambda ids=ids: next(ids))  # type: ignore[misc]
        writer.begin(3, session.weights.digest().hex(), session.weights)
        assert writer.busy
        found.append(writer.take())
        assert not writer.busy
    one, two = found
    assert one is not None
    assert two is not None
    assert (one.theta, one.momentum, one.parts) == (two.theta, two.momentum, two.parts)
    assert (one.object.blake3, one.object.size) == (two.object.blake3, two.object.size)
    groups = [[*team.site.store.list(f"outer/{key.rpartition('/')[0]}")] for key in (one.object.key, two.object.key)]
    stored = [[team.site.store.get(key, max_bytes=1 << 20) for key in keys] for keys in groups]
    assert stored[0] == stored[1]


def test_a_checkpoint_that_fails_is_written_by_another_later() -> None:
    site = Site()
    faults = [Fault("fail_before", "put", matches=lambda _, key: "checkpoint" in key)]
    team = Team(site)
    team.options = {"quorum": 2}
    for member in "ab":
        team.join(member, FaultStore(site.store, faults) if member == "a" else None)
    while not team.state().checkpoints:
        team.round()
        assert team.sessions["a"].round < 60
    writers = {key.split("/")[3] for key in site.store.list("outer/objects/checkpoint/")}
    assert len(writers) == 1


@pytest.mark.parametrize("which", ["theta", "momentum"])
def test_a_member_that_holds_something_else_than_a_checkpoint_stops_and_says_where(which: str) -> None:
    team = Team(Site(), "a", "b")
    team.round()
    team.round()
    getattr(team.sessions["b"].weights, which).view(np.uint32)[7] ^= 1  # invisible in BF16
    what = "weights" if which == "theta" else "momentum"
    with pytest.raises(Diverged, match=rf"{what} of group 0 \(b to w\)"):
        team.rounds(60)


def test_who_slept_behind_two_checkpoints_begins_at_the_newest_and_loses_nothing_that_it_learnt() -> None:
    team = Team(Site(), "a", "b", "late", quorum=2, patience=1, grace_s=0.0)
    team.round()
    late = team.sessions["late"]
    train(team.models["late"], 99)
    while len(team.state().checkpoints) < 3:
        team.round("a", "b")
    state = team.state()
    assert late.round < state.dropped
    for number in range(1, state.dropped + 1):
        for key in [*team.site.store.list(f"outer/objects/contribution/{number:012d}")]:
            team.site.store.delete(key)
    sent = late.contribute()
    assert not sent.counts
    kept = late.weights.residual.copy()
    assert np.abs(kept).max() > 0
    late.await_round()
    late.apply()
    assert held(late) == held(team.sessions["a"])
    np.testing.assert_array_equal(late.weights.residual, kept)
    assert bits(flat(team.models["late"])) == bits(flat(team.models["a"]))
    team.round()
    assert held(late) == held(team.sessions["a"])


def test_what_is_deleted_while_somebody_reads_it_is_passed_over_by_a_checkpoint() -> None:
    team = Team(Site(), "a", "b", "late", quorum=2, patience=1, grace_s=0.0)
    late = team.sessions["late"]
    team.round("a", "b")
    late.member.log.refresh()
    while len(team.state().checkpoints) < 2:
        team.round("a", "b")
    spare, store = team.state().spare, team.site.store
    OuterLog(store, "run").append(lambda _, common: RetireRoundsRecord(**common, round=spare))
    for number in range(1, spare + 1):
        for key in [*store.list(f"outer/objects/contribution/{number:012d}")]:
            store.delete(key)
    late.apply()
    assert held(late) == held(team.sessions["a"])


class Overtaken(WrapperStore):
    """A store in which something happens before the head of a checkpoint is read for the first time."""

    def __init__(self, store: Store, meanwhile: Callable[[], None]) -> None:
        super().__init__(store)
        self._meanwhile: Callable[[], None] | None = meanwhile

    def get(self, key: str, byte_range: ByteRange | None = None, *, max_bytes: int = MOST_WHOLE_BYTES) -> bytes:
        meanwhile = self._meanwhile
        if key.endswith(HEAD) and meanwhile is not None:
            self._meanwhile = None
            meanwhile()
        return super().get(key, byte_range, max_bytes=max_bytes)


def test_who_joins_while_all_that_it_knows_of_is_deleted_begins_at_what_is_newer() -> None:
    team = Team(Site(), "a", "b", patience=1, grace_s=0.0)
    while len(team.state().checkpoints) < 2:
        team.round()
    store, old = team.site.store, team.state().checkpoints[-1].round

    def others_go_on() -> None:
        while team.state().spare <= old:
            team.round("a", "b")
        spare = team.state().spare
        OuterLog(store, "run").append(lambda _, common: RetireRoundsRecord(**common, round=spare))
        for kind, end in (("checkpoint", spare), ("contribution", spare + 1)):
            for number in range(end):
                for key in [*store.list(f"outer/objects/{kind}/{number:012d}")]:
                    store.delete(key)

    team.join("late", Overtaken(store, others_go_on))
    assert held(team.sessions["late"]) == held(team.sessions["a"])


@pytest.fixture(scope="module")
def written() -> tuple[Site, Team, OuterSession]:
    """A run with four checkpoints, and a member that was there from the first round on."""
    team = Team(Site(), "a", "b")
    while len(team.state().checkpoints) < 4:
        team.round()
    team.round()
    return team.site, team, team.sessions["a"]


class Damaged(FaultStore):
    """A store some objects of which are gone, or other ones than were stored."""

    def __init__(self, store: Store, gone: dict[str, str]) -> None:
        super().__init__(store, [])
        self._gone = gone

    def get(self, key: str, *args: Any, **options: Any) -> bytes:
        how = next((how for part, how in self._gone.items() if part in key), None)
        if how == "gone":
            raise NotFound(key)
        data = super().get(key, *args, **options)
        return data if how is None else data[:-1] + bytes([data[-1] ^ 1])


@pytest.mark.slow
@examples(25)
@given(data=st.data())
def test_whatever_checkpoints_are_damaged_who_joins_holds_the_same_bits(
    written: tuple[Site, Team, OuterSession], data: Any
) -> None:
    site, team, other = written
    checkpoints = team.state().checkpoints
    gone = {}
    for record in checkpoints:
        how = data.draw(st.sampled_from([None, "gone", "flipped"]))
        part = data.draw(st.sampled_from([HEAD, "/0000000"]))
        if how is not None:
            gone[record.object.key.replace(HEAD, part)] = how
    model = drawn()
    late = site.session(model, f"late{len(gone)}", Damaged(site.store, gone), quorum=2)
    late.join()
    assert held(late) == held(other)
    late.leave()


def test_where_nothing_leads_to_the_newest_round_it_is_told(written: tuple[Site, Team, OuterSession]) -> None:
    site, team, _ = written
    late = site.session(
        drawn(), "z", Damaged(site.store, {HEAD: "gone", "contribution/000000000002": "gone"}), quorum=2
    )
    with pytest.raises(NotFound):
        late.join()
    assert "z" not in team.state().members


HOSTILE = [
    ({"object": {"size": 2**62}}, "it has"),
    ({"parts": 2**62}, "not a checkpoint"),
    ({"round": 1}, "not the checkpoint"),
    ({"theta": "0" * 32}, "not the state"),
    ({"momentum": "0" * 32}, "not the state"),
]


@pytest.mark.parametrize(("change", "message"), HOSTILE)
def test_records_that_lie_about_a_checkpoint_are_refused(
    written: tuple[Site, Team, OuterSession], change: dict[str, Any], message: str
) -> None:
    _, team, session = written
    record = team.state().checkpoints[-1]
    given = dict(change)
    if "object" in given:
        given["object"] = record.object.model_copy(update=given["object"])
    lying: CheckpointRecord = record.model_copy(update=given)
    version = team.site.versions.load(record.round)
    checkpointing: Any = session.member.checkpointing
    weights = type(session.weights)(version.geometry, BACKEND, session.weights.loops)
    checkpointing.checkpoints.read(record, weights, version.copy_of)
    with pytest.raises(CorruptObject, match=message):
        checkpointing.checkpoints.read(lying, weights, version.copy_of)


def test_a_checkpoint_beside_another_version_is_refused(written: tuple[Site, Team, OuterSession]) -> None:
    _, team, session = written
    record = team.state().checkpoints[-1]
    weights = type(session.weights)(session.weights.geometry, BACKEND, session.weights.loops)
    checkpointing: Any = session.member.checkpointing
    with pytest.raises(PulseError):
        checkpointing.checkpoints.read(record, weights, team.site.versions.load(record.round - 1).copy_of)


def test_whose_turn_it_is_does_not_depend_on_when_it_is_asked() -> None:
    team = Team(Site(), "a", "b", "c")
    asked = dict[int, str | None]()
    for number in range(1, 25):
        team.round()
        state = team.state()
        closed = state.ended(number)
        assert closed is not None
        asked[number] = writer_of(state, closed, 320)
    whole = OuterLog(team.site.store, "run", whole=True).refresh()
    assert {closed.number: writer_of(whole, closed, 320) for closed in whole.closed} == asked
    assert [record.round for record in whole.checkpoints] == [number for number, who in asked.items() if who]


def test_a_turn_passes_on_while_nobody_writes() -> None:
    class Nobody:
        busy = True

        def __getattr__(self, name: str) -> Any:
            return lambda *args, **options: None

    team = Team(Site(), "a", "b", "c")
    for session in team.sessions.values():
        checkpointing: Any = session.member.checkpointing
        checkpointing.writer = Nobody()
    for _ in range(20):
        team.round()
    state = team.state()
    turns = [who for closed in state.closed if (who := writer_of(state, closed, 320))]
    assert not state.checkpoints
    assert set(turns) == {"a", "b", "c"}
