"""Replicas that drift apart are found before a keyframe of their cells is written, or by the push after it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from pulse_registry import InvalidModel, Registry
from pulse_registry.events import Event, EventKind
from pulse_registry.peers.local_peers import LocalGroup, LocalPeers
from tests.scenarios.sharded.test_push_failures import Rank, State, dealt, failed, restored, states
from tests.support.gate import PATIENCE, GateStore
from tests.support.ranks import MortalPeers, alike, on_ranks, outcomes
from tests.support.records import DictStore
from tests.support.registries import commits, quick, settle, state_of

RANKS = 3
DRIFTED = "tensor 'r', cells 0 to 8, is not the same on rank 0 and on rank 2, which both hold it"


def drifted(state: State, rank: int) -> Rank:
    """Return what a rank holds, of which one cell of a replica, that rank 0 speaks for, is another one on rank 2."""
    held = dealt(state, RANKS)[rank]
    if rank == 2:
        held["r"][0] += 1
    return held


def keyframes(store: DictStore) -> list[int]:
    return [keyframe.version for keyframe in state_of(store).keyframes]


def test_a_keyframe_of_drifted_replicas_is_not_written_and_the_push_before_it_is_refused_on_all_ranks() -> None:
    """It fails if replicas are compared at the first push alone."""
    wanted, store, told = states(5), DictStore(), list[Event]()

    def life(peers: LocalPeers) -> Any:
        rank, errors = peers.rank, []
        with quick(store, peers=peers, keyframe_every=3, keyframe_share=1e9, on_event=told.append) as registry:
            registry.push(0, dealt(wanted[0], RANKS)[rank])
            for step in (1, 2):  # the version before the keyframe's: nobody has looked yet
                registry.push(step, drifted(wanted[step], rank))
                settle(registry)
            errors = [failed(registry, step, drifted(wanted[3], rank)) for step in (3, 4)]
            registry.push(5, dealt(wanted[3], RANKS)[rank])
            settle(registry)
            registry.push(6, dealt(wanted[4], RANKS)[rank])
        return errors

    found = outcomes(life, LocalGroup(RANKS))
    for number in range(2):
        said = alike([errors[number] for errors in found], InvalidModel)
        assert DRIFTED in said
        assert "Versions so far may mix their cells" in said
    assert {event.kind for event in told} == {EventKind.PUSH_FAILED}
    assert len(told) == 2 * RANKS
    assert [record.step for record in commits(store)] == [0, 1, 2, 5, 6]
    assert keyframes(store) == [0, 3]
    restored(store, wanted)


def test_a_drift_that_no_push_before_a_keyframe_could_show_is_raised_by_the_next_one() -> None:
    """Pushes that were under way before anybody knew that a keyframe would be due."""
    wanted, store = states(5), GateStore("/objects/patch/000000000000")
    ready = threading.Barrier(RANKS, action=store.open, timeout=PATIENCE)

    def push(registry: Registry, rank: int) -> Any:
        registry.push(0, dealt(wanted[0], RANKS)[rank])
        futures = [registry.push(step, drifted(wanted[step], rank), wait=False) for step in (1, 2)]
        ready.wait()
        assert [future.exception(PATIENCE) for future in futures] == [None, None]
        settle(registry)
        error = failed(registry, 3, drifted(wanted[3], rank))
        registry.push(4, dealt(wanted[4], RANKS)[rank])
        return error

    options: dict[str, Any] = {"keyframe_every": 2, "keyframe_share": 1e9, "max_pending": 2}
    with store.shut():
        assert DRIFTED in alike(on_ranks([store] * RANKS, push, **options), InvalidModel)
    assert [record.step for record in commits(store)] == [0, 1, 2, 4]
    assert keyframes(store) == [0, 2]
    restored(store, [*wanted[:3], wanted[4]])


class SpyPeers(MortalPeers):
    """A rank's end of a group that keeps at which version replicas were compared."""

    def exchange(self, parts: Sequence[Any], what: str = "") -> list[memoryview]:
        self.compared = [*getattr(self, "compared", []), self.version] if what == "replicas" else self.compared
        return super().exchange(parts, what)

    version = 0
    compared: list[int] = []  # noqa: RUF012 - replaced, never changed


@pytest.mark.parametrize(("every", "compared"), [(1, [0, 1, 2, 3, 4, 5, 6]), (3, [0, 3, 6]), (100, [0])])
def test_replicas_are_compared_once_a_keyframe(every: int, compared: list[int]) -> None:
    """It fails if a pass over the replicas is made at each push."""
    wanted, store = states(7), DictStore()

    def life(peers: LocalPeers) -> Any:
        spy = SpyPeers(peers)
        with quick(store, peers=spy, keyframe_every=every, keyframe_share=1e9) as registry:
            for spy.version, state in enumerate(wanted):
                registry.push(spy.version, dealt(state, RANKS)[peers.rank])
                settle(registry)
        return sorted(set(spy.compared))

    assert outcomes(life, LocalGroup(RANKS)) == [compared] * RANKS
    assert np.array_equal(keyframes(store), range(0, 7, every))
