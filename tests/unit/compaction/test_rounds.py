"""Merged contributions of outer rounds: attached by the compactor, exact, and one download for who joins."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import pulse_registry
from pulse_registry import Registry
from pulse_registry.compaction import Compactor
from pulse_registry.compaction.rounds import RoundTask, rounds_due
from pulse_registry.outer.log import OuterLog
from pulse_registry.outer.session import OuterSession
from pulse_registry.outer.state import OuterState
from pulse_registry.peers.lone import LonePeers
from pulse_registry.store import Store
from tests.unit.outer.log import Log
from tests.unit.outer.sessions import Arrays, drawn, train
from tests.unit.outer.test_checkpoints import damage, held


class Trainers:
    """Members of one run, that make rounds together."""

    def __init__(self, *members: str, **options: Any) -> None:
        self.root = f"memory://{uuid.uuid4().hex}"
        self.options = {"inner_steps": 1, "quorum": len(members), **options}
        self.registries, self.models, self.sessions = list[Registry](), dict[str, Arrays](), dict[str, OuterSession]()
        for member in members:
            self.join(member)

    @property
    def store(self) -> Store:
        return self.registries[0]._runtime.stores.store

    def join(self, member: str) -> OuterSession:
        self.models[member] = drawn()
        self.registries.append(pulse_registry.open(self.root, run="run"))
        self.sessions[member] = self.registries[-1].outer(self.models[member], member=member, **self.options)
        self.sessions[member].join()
        return self.sessions[member]

    def round(self) -> None:
        for member, session in self.sessions.items():
            train(self.models[member], session.round * 10 + ord(member[0]), 1e-4 if member == "b" else 1e-5)
            session.contribute()
        for session in self.sessions.values():
            session.finish()

    def state(self) -> OuterState:
        return OuterLog(self.store, "run").refresh()

    def compactor(self) -> Compactor:
        return self.registries[0].compactor()


@pytest.fixture
def trainers() -> Iterator[Trainers]:
    made = Trainers("a", "b")
    yield made
    for registry in made.registries:
        registry.close()


def compacted(trainers: Trainers) -> list[int]:
    compactor, made = trainers.compactor(), list[int]()
    while (done := compactor.step()) is not None:
        if done.kind == "round":
            made.append(done.target)
            assert done.nbytes == trainers.state().merged[done.target].object.size
    assert not [task for task in compactor.pending() if isinstance(task, RoundTask)]
    compactor.close()
    return made


def test_rounds_are_merged_and_who_joins_needs_no_contribution(trainers: Trainers) -> None:
    for _ in range(3):
        trainers.round()
    assert compacted(trainers) == [1, 2, 3]
    state, store = trainers.state(), trainers.store
    for closed in state.closed:
        for record in closed.contributions.values():
            assert record.object is not None
            store.delete(f"outer/{record.object.key}")
    assert held(trainers.join("c")) == held(trainers.sessions["a"]) == held(trainers.sessions["b"])
    assert compacted(trainers) == []


def test_damaged_totals_are_passed_over(trainers: Trainers) -> None:
    trainers.round()
    compacted(trainers)
    [record] = trainers.state().merged.values()
    damage(trainers.store, f"outer/{record.object.key}")
    assert held(trainers.join("c")) == held(trainers.sessions["a"])
    trainers.store.delete(f"outer/{record.object.key}")
    assert held(trainers.join("d")) == held(trainers.sessions["a"])


def test_totals_of_other_contributions_are_found_by_their_members(trainers: Trainers) -> None:
    trainers.round()
    compacted(trainers)
    contributions: Any = trainers.sessions["a"].member.contributions
    [record] = trainers.state().merged.values()
    weights = trainers.sessions["a"].weights

    class First:
        peers, homes, each = LonePeers(), [{0}], map

        def version_cells(self, group: Any) -> Any:
            cells = np.concatenate([drawn()[name].reshape(-1) for name in ("b", "w")])
            rounded = np.empty(len(cells), np.uint16)
            weights.backend.cast_f32(cells.view(np.uint32), rounded)
            return rounded

    assert contributions.get_merged(First(), record)
    for change, message in [
        ({"exponent": record.exponent - 1}, "not the totals"),
        ({"entries": record.entries + 1}, "not the totals"),
        ({"object": record.object.model_copy(update={"size": 2**60})}, "at most"),
    ]:
        with pytest.raises(pulse_registry.CorruptObject, match=message):
            contributions.get_merged(First(), record.model_copy(update=change))


def test_a_round_whose_contributions_are_damaged_is_left_and_told(trainers: Trainers) -> None:
    trainers.round()
    record = next(iter(trainers.state().closed[0].contributions.values()))
    assert record.object is not None
    damage(trainers.store, f"outer/{record.object.key}")
    compactor = trainers.compactor()
    while compactor.step() is not None:
        pass
    [left] = [task for task in compactor.pending() if isinstance(task, RoundTask)]
    assert str(left) == "the totals of outer round 1"
    assert "not those that were recorded" in str(compactor.error(left))
    assert not trainers.state().merged
    compactor.close()


def test_rounds_of_one_contribution_and_float32_values_are_not_merged() -> None:
    alone = Log()
    alone.join("a")
    alone.send("a")
    assert not list(rounds_due(alone.state))
    for values, due in (("levels", [1]), ("float32", [])):
        log = Log(values=values, quorum=2)
        log.join("a")
        log.join("b")
        log.send("a")
        log.send("b")
        assert [task.round for task in rounds_due(log.state)] == due
        log.checkpoint(1)
        assert not list(rounds_due(log.state))
