"""A keyframe that follows a push of ranks: nobody waits for it, and what goes wrong with it costs no version."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest

from pulse_registry import Registry
from pulse_registry.errors import PeerLost
from pulse_registry.peers.local_peers import LocalGroup, LocalPeers
from tests.scenarios.sharded.test_push_failures import dealt, restored, states
from tests.support.gate import PATIENCE, GateStore
from tests.support.ranks import MortalPeers, on_ranks, outcomes
from tests.support.records import DictStore
from tests.support.registries import check_store, commits, quick, settle, state_of


def keyframes(store: DictStore) -> list[int]:
    """Return the versions that have a keyframe."""
    return [keyframe.version for keyframe in state_of(store).keyframes]


@pytest.mark.slow
def test_a_push_is_done_before_the_keyframe_that_follows_it() -> None:
    """It fails if a result waits for the keyframe: then the gate gives up, and there is none of version 1."""
    wanted, store = states(3), GateStore("/objects/keyframe/000000000001")
    meet, seen = threading.Barrier(2, timeout=PATIENCE), []

    def push(registry: Registry, rank: int) -> Any:
        registry.push(0, dealt(wanted[0], 2)[rank])
        registry.push(1, dealt(wanted[1], 2)[rank])
        meet.wait()
        if rank == 0:
            seen.append(keyframes(store))
            store.open()
        registry.push(2, dealt(wanted[2], 2)[rank])

    with store.shut():
        assert on_ranks([store] * 2, push, keyframe_every=1) == [None, None]
    assert seen == [[0]]
    assert keyframes(store) == [0, 1, 2]
    restored(store, wanted)


@pytest.mark.slow
def test_a_keyframe_that_can_not_be_stored_is_told_and_tried_after_the_next_push(
    caplog: pytest.LogCaptureFixture,
) -> None:
    wanted, store = states(3), GateStore("/objects/keyframe/000000000001")
    store.down = True

    def push(registry: Registry, rank: int) -> None:
        for step in range(2):
            registry.push(step, dealt(wanted[step], 2)[rank])
            settle(registry)
        store.down = False
        registry.push(2, dealt(wanted[2], 2)[rank])

    with caplog.at_level(logging.WARNING):
        assert on_ranks([store] * 2, push, keyframe_every=1) == [None, None]
    told = [record.message for record in caplog.records if "no keyframe of version 1" in record.message]
    assert len(told) == 2  # one a rank
    assert all("the bucket is down" in message for message in told)
    assert keyframes(store) == [0, 2]
    restored(store, wanted)


class DiesInKeyframe(MortalPeers):
    """A rank's end of a group, whose process ends so many collectives after the second look whether a keyframe is due.

    Which collectives there are before, depends on when pushes are called: what follows a keyframe compares replicas.
    """

    def __init__(self, peers: LocalPeers, late: int) -> None:
        super().__init__(peers)
        self._late = late

    def _living(self, what: str, call: Callable[[], Any]) -> Any:
        looks = [number for number, one in enumerate(self.calls, 1) if one == "keyframe due"]
        self.dies = looks[1] + self._late if len(looks) > 1 else 0
        return super()._living(what, call)


def lives(store: GateStore, late: int) -> list[Any]:
    """Return how three pushes end on three ranks, of which rank 1 dies in the keyframe after push 1."""
    wanted = states(4)
    ready = threading.Barrier(3, action=store.open, timeout=PATIENCE)

    def life(peers: LocalPeers) -> Any:
        mortal = DiesInKeyframe(peers, late) if peers.rank == 1 else MortalPeers(peers)
        registry = quick(store, peers=mortal, keyframe_every=1, max_pending=3)
        try:
            registry.push(0, dealt(wanted[0], 3)[peers.rank])
            futures = [registry.push(n, dealt(wanted[n], 3)[peers.rank], wait=False) for n in (1, 2, 3)]
            ready.wait()
            ends = [future.exception(PATIENCE) for future in futures]
            settle(registry)
            return ends
        finally:
            mortal.close()
            registry.close()

    return outcomes(life, LocalGroup(3))


@pytest.mark.parametrize("late", [1, 3, 6])
def test_a_rank_that_dies_in_a_keyframe_is_told_to_the_pushes_behind_it(late: int) -> None:
    """The push before the keyframe is done, and nobody hangs."""
    store = GateStore("/objects/patch/000000000000")
    with store.shut():
        found = lives(store, late)
    for ends in (found[0], found[2]):
        assert [type(end) for end in ends] == [type(None), PeerLost, PeerLost], ends
    assert found[1][0] is None
    check_store(store)
    assert [record.step for record in commits(store)] == [0, 1]
    if late < 6:  # at the sixth call the coordinator may have written the keyframe's record already
        assert keyframes(store) == [0]
