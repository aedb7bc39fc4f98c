"""A job that begins anew follows patches of whole groups, though its ranks hold them in part: by the groups' homes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pulse_registry import Registry
from pulse_registry.errors import Conflict, CorruptObject, PulseError, StoreUnavailable
from pulse_registry.peers.local_peers import LocalGroup, LocalPeers
from pulse_registry.testing import FaultStore
from pulse_registry.testing.fault import Fault
from tests.scenarios.sharded.test_pull_slices import models
from tests.scenarios.sharded.test_push_by_rank import objects
from tests.scenarios.sharded.test_push_failures import State, dealt, failed, restored, states
from tests.support.chains import Chain, chains
from tests.support.groups import small_groups
from tests.support.parts import small_parts
from tests.support.ranks import MortalPeers, alike, on_ranks, outcomes
from tests.support.records import DictStore
from tests.support.registries import all_restored, bits, quick
from tests.support.slices import cut, put

CLASS: dict[str, Any] = {"coder": "class", "keyframe_share": 1e9}


@pytest.mark.slow
@given(
    chain=chains(length=4),
    jobs=st.tuples(st.integers(1, 4), st.integers(2, 5)),
    coder=st.sampled_from(["class", "auto"]),
    part_groups=st.sampled_from([1, 2, 64]),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=25)
def test_a_job_of_other_ranks_goes_on_as_one_process_does(
    chain: Chain, jobs: tuple[int, int], coder: str, part_groups: int, seed: int
) -> None:
    """Its weights are no version; it stores the patches that one process stores, and no keyframe."""
    wanted, alone, together = models(chain), DictStore(), DictStore()
    cuts = [cut(wanted[0], ranks, seed) for ranks in jobs]
    assume(all(all(held) for held in cuts))  # a rank without a tensor pushes nothing
    options = {"coder": coder, "keyframe_share": 1e9}
    with small_groups(chain.group_bytes), small_parts(part_groups):
        for held, steps in zip(cuts, ([0, 1], [2, 3]), strict=True):
            with quick(alone, **options) as registry:
                for step in steps:
                    registry.push(step, wanted[step])

            def push(registry: Registry, rank: int, held: Any = held, steps: Any = steps) -> list[str]:
                found = []
                for step in steps:
                    put(held[rank], wanted[step])
                    found.append(registry.push(step, held[rank]).digest)
                return found

            digests = on_ranks([together] * len(held), push, **options)
            assert digests == [digests[0]] * len(held)
        assert objects(together) == objects(alone)


def begun(wanted: list[State], ranks: int = 3) -> DictStore:
    """Return a run of some states, whose patches need whole groups."""
    store = DictStore()

    def push(registry: Registry, rank: int) -> None:
        for step, state in enumerate(wanted):
            registry.push(step, dealt(state, ranks)[rank])

    assert on_ranks([store] * ranks, push, **CLASS) == [None] * ranks
    return store


def flipped(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


@pytest.mark.parametrize(
    ("what", "change", "kind", "message"),
    [
        ("cells", flipped, Conflict, "was committed"),
        ("cells", lambda data: data[:-1], CorruptObject, "rank 1: rank 0 sent cells of group 0 that are cut short"),
        ("cells wanted", lambda data: data[:-1], CorruptObject, "rank 1 sent other cells than those of group 0"),
        ("cells wanted", lambda data: b"\xff" * 8 + data[8:], CorruptObject, "of group 0: -1 dimensions"),
    ],
    ids=["a cell", "cells cut short", "a box cut short", "no box"],
)
def test_what_came_wrong_from_a_home_or_to_it_is_found_and_nothing_is_pushed(
    what: str, change: Callable[[bytes], bytes], kind: type[PulseError], message: str
) -> None:
    wanted = states(3)
    store = begun(wanted[:2])

    class Wire(MortalPeers):
        """A wire that changes what goes between rank 1 and the home of all groups."""

        def exchange(self, parts: Any, name: str = "") -> list[memoryview]:
            came = [bytes(part) for part in super().exchange(parts, name)]
            return [
                memoryview(change(part) if name == what and {self.rank, rank} == {0, 1} and part else part)
                for rank, part in enumerate(came)
            ]

    def life(peers: LocalPeers) -> None:
        with quick(store, peers=Wire(peers), **CLASS) as registry:
            registry.push(2, dealt(wanted[2], 2)[peers.rank])

    assert message in alike(outcomes(life, LocalGroup(2)), kind)
    restored(store, wanted[:2])


@pytest.mark.parametrize("broken", [0, 1])
def test_a_home_that_can_not_read_is_told_on_all_ranks_and_the_next_push_goes_on(broken: int) -> None:
    wanted, armed = states(3), [True]

    def away(verb: str, key: str) -> bool:
        return armed[0] and verb == "get" and "/objects/" in key

    def push(registry: Registry, rank: int) -> Any:
        failure = failed(registry, 2, dealt(wanted[2], 2)[rank])
        armed[0] = False
        registry.push(2, dealt(wanted[2], 2)[rank])
        return failure

    with small_groups(), small_parts(1):
        store = begun(wanted[:2])
        faulty = FaultStore(store, [Fault("fail_before", matches=away)])
        stores = [faulty if rank == broken else store for rank in range(2)]
        assert alike(on_ranks(stores, push, **CLASS), StoreUnavailable).startswith(f"rank {broken}: ")
        assert all_restored(store, wanted) == [bits(state) for state in wanted]
