"""Ranks with a host copy follow patches that are decoded from whole groups, all of them or none, as a whole model does.

What they hold is compared with the slices of a whole model, over random chains, slices, coders, nodes and ways.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulse_registry import InvalidArgument, Registry, Slice
from pulse_registry.errors import PeerLost, PulseError
from pulse_registry.peers.local_peers import LocalGroup, LocalPeers
from pulse_registry.process import node_memory
from pulse_registry.pull import host_copy
from pulse_registry.store import Store
from pulse_registry.testing import FaultStore
from pulse_registry.testing.fault import Fault
from tests.support.chains import Chain, chains
from tests.support.groups import small_groups
from tests.support.ranks import MortalPeers, outcomes
from tests.support.records import DictStore
from tests.support.registries import quick
from tests.support.slices import cut_any, held, untied, wanted

Work = Callable[[Registry, int], Any]
HERE = threading.local()
"""On which node a rank's thread is said to be."""


def pushed(states: Sequence[dict[str, Any]], coders: Sequence[str], share: float) -> DictStore:
    store = DictStore()
    for step, state in enumerate(states):
        with quick(store, coder=coders[step], keyframe_share=share) as registry:
            registry.push(step, state)
    return store


def with_copies(stores: Sequence[Store], work: Work, *, per_node: int = 99, undo_share: float = 0.05) -> list[Any]:
    """Return what each rank's work gives, or raises, where so many ranks are on each node."""

    def life(peers: LocalPeers) -> Any:
        HERE.node = b"%d" % (peers.rank // per_node)
        store = stores[peers.rank % len(stores)]
        with quick(store, peers=peers, host_copy=True, undo_share=undo_share) as registry:
            return work(registry, peers.rank)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(host_copy, "node", lambda: HERE.node)
        return outcomes(life, LocalGroup(len(stores)))


def check_with_copies(
    chain: Chain, ranks: int, per_node: int, coders: list[str], share: float, ways: list[tuple[str, int]], seed: int
) -> None:
    """Let ranks go some ways, and compare what they hold after each with the slices of a whole model.

    Args:
        chain: the versions.
        ranks, per_node: how many; on each node.
        coders: of the pushes.
        share: of a keyframe, after which one is pushed.
        ways: what is done, to which version.
        seed: of the slices.
    """
    states = chain.models()
    dealt = [untied(rank) for rank in cut_any(states[0], ranks, seed)]
    with small_groups(chain.group_bytes):
        store = pushed(states, coders, share)

        def work(registry: Registry, rank: int) -> list[bool]:
            mine, at, found = dealt[rank], None, []
            for way, version in ways:
                staged = registry.stage(version, into=mine, partial=True, replace=way == "replace")
                if way == "discard":
                    staged.discard()
                else:
                    assert staged.apply().version == version
                    assert staged.checked == "state"
                    before, at = at, version
                    if way == "undo":
                        with suppress(InvalidArgument):  # a rank's cells were replaced whole
                            staged.undo()
                            at = before
                if at is not None:
                    found.append(held(mine) == wanted(mine, states[at]))
                    if way == "verify":
                        found.append(registry.verify(at, model=mine, partial=True).version == at)
            return found

        for result in with_copies([store] * ranks, work, per_node=per_node):
            assert isinstance(result, list), result
            assert all(result), result


WAYS = {
    "chain": chains(length=4),
    "ranks": st.integers(1, 5),
    "per_node": st.integers(1, 5),
    "coders": st.lists(st.sampled_from(["class", "class", "auto", "gap"]), min_size=4, max_size=4),
    "share": st.sampled_from([0.3, 1e9, 1e9]),
    "ways": st.lists(
        st.tuples(st.sampled_from(["pull", "pull", "undo", "discard", "verify", "replace"]), st.integers(0, 3)),
        min_size=3,
        max_size=6,
    ),
    "seed": st.integers(0, 2**32 - 1),
}


@pytest.mark.slow
@given(**WAYS)
@settings(max_examples=25)
def test_ranks_hold_their_slices_of_each_version_whatever_its_coder(**drawn: Any) -> None:
    check_with_copies(**drawn)


@pytest.mark.sweep
@given(**WAYS)
@settings(max_examples=2_000)
def test_many_more_ranks_hold_their_slices_whatever_the_coder(**drawn: Any) -> None:
    check_with_copies(**drawn)


def two_ranks(states: int = 4) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return states of a tensor that differ in few cells, and two ranks that hold half of its columns each."""
    rng = np.random.default_rng(0)
    made = [{"w": rng.integers(0, 2**16, (60, 8), dtype=np.uint16)}]
    for step in range(1, states):
        made.append({"w": made[-1]["w"].copy()})
        made[-1]["w"][step::7, step % 8 :: 3] += np.uint16(step)
    return made, [{"w": Slice(np.zeros((60, 4), np.uint16), of=(60, 8), at=(0, 4 * rank))} for rank in range(2)]


def dense(states: Sequence[dict[str, Any]]) -> DictStore:
    """Return a run of one keyframe and patches of coder `class`."""
    return pushed(states, ["class"] * len(states), 1e9)


def raised(call: Callable[[], Any]) -> str:
    """Return what a call raises."""
    try:
        call()
    except PulseError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


@pytest.fixture
def reserved(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of all memory that is made for nodes."""
    sizes: list[int] = []
    reserve = node_memory.NodeMemory.reserve

    def counted(nbytes: int) -> node_memory.NodeMemory:
        sizes.append(nbytes)
        return reserve(nbytes)

    monkeypatch.setattr(node_memory.NodeMemory, "reserve", counted)
    return sizes


@pytest.mark.parametrize(("per_node", "copies"), [(2, 1), (1, 2)])
def test_there_is_one_copy_a_node_and_none_where_no_patch_needs_it(
    reserved: list[int], per_node: int, copies: int
) -> None:
    states, dealt = two_ranks()
    nbytes = states[0]["w"].nbytes

    def follow(registry: Registry, rank: int) -> list[int]:
        registry.pull(0, into=dealt[rank])  # a keyframe, of which a rank fetches its part
        before = len(reserved)
        return [before, *(registry.pull(version, into=dealt[rank]).nbytes for version in (1, 2, 3))]

    gaps = pushed(states, ["gap"] * len(states), 1e9)
    with_copies([gaps] * 2, follow, per_node=per_node)
    assert reserved == []
    first, second = with_copies([dense(states)] * 2, follow, per_node=per_node)
    assert reserved.count(nbytes) == copies
    assert (first[0], second[0]) == (0, 0)
    fetches = [all(found[1:]) for found in (first, second)]
    assert fetches == [True, per_node == 1]  # what the keeper has fetched, the others of its node do not fetch
    assert [held(rank) for rank in dealt] == [wanted(rank, states[3]) for rank in dealt]


@pytest.mark.parametrize("where", [0, 1])
def test_what_fails_at_the_keeper_or_beside_it_changes_no_rank_and_can_be_done_again(where: int) -> None:
    states, dealt = two_ranks()
    store = dense(states)
    down = FaultStore(store, [Fault("fail_before", verb="get", matches=lambda _, key: "/patch/" in key, times=1)])

    def follow(registry: Registry, rank: int) -> tuple[str, bool, bool]:
        registry.pull(0, into=dealt[rank])
        said = raised(lambda: registry.pull(2, into=dealt[rank]))
        unchanged = held(dealt[rank]) == wanted(dealt[rank], states[0])
        registry.pull(3, into=dealt[rank])
        return said, unchanged, held(dealt[rank]) == wanted(dealt[rank], states[3])

    stores = [down if rank == where else store for rank in range(2)]
    first, second = with_copies(stores, follow)
    assert first == second
    said, *right = first
    assert said.startswith("StoreUnavailable: rank 0: " if where == 0 else "nothing")  # a rank beside it reads none
    assert right == [where == 0, True]


def test_a_host_without_the_memory_says_so_and_ranks_stay_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    states, dealt = two_ranks()
    monkeypatch.setattr(node_memory, "available", lambda: 100)

    def follow(registry: Registry, rank: int) -> tuple[str, bool]:
        registry.pull(0, into=dealt[rank])
        said = raised(lambda: registry.pull(1, into=dealt[rank]))
        return said, held(dealt[rank]) == wanted(dealt[rank], states[0])

    first, second = with_copies([dense(states)] * 2, follow)
    assert first == second
    assert "rank 0: 960 bytes of memory are needed on this host, for its ranks to share; 100 are free" in first[0]
    assert first[1]


def test_cells_that_something_else_has_changed_are_found_and_no_rank_is_changed() -> None:
    states, dealt = two_ranks()
    changed = np.flatnonzero(states[0]["w"][:, 4:] != states[1]["w"][:, 4:])[0]

    def follow(registry: Registry, rank: int) -> str:
        registry.pull(0, into=dealt[rank])
        if rank == 1:
            dealt[1]["w"].tensor.flat[changed] += 1
        said = raised(lambda: registry.pull(1, into=dealt[rank]))
        if rank == 1:
            dealt[1]["w"].tensor.flat[changed] -= 1
        return said

    first, second = with_copies([dense(states)] * 2, follow)
    assert first == second
    assert first.startswith("BaseMismatch: rank 1: the slices are not those of version 0")
    assert [held(rank) for rank in dealt] == [wanted(rank, states[0]) for rank in dealt]


def test_where_the_version_that_ranks_hold_is_gone_they_are_given_all_cells() -> None:
    """The keyframe behind it is lost, so that the copy can't hold it; a later keyframe leads to the version."""
    states, dealt = two_ranks(6)
    store = dense(states[:3])
    with quick(store, coder="class", keyframe_share=1e9, keyframe_every=1) as registry:
        registry.push(3, states[3])
    with quick(store, coder="class", keyframe_share=1e9) as registry:
        registry.push(4, states[4])
        lost = [ref.key for keyframe in registry.state().keyframes_of(0) for ref in keyframe.shards]

    def follow(registry: Registry, rank: int) -> tuple[bool, bool]:
        registry.pull(0, into=dealt[rank])
        if rank == 0:
            for key in lost:
                store.delete(key)
        with registry.stage(4, into=dealt[rank]) as staged:
            unchanged = held(dealt[rank]) == wanted(dealt[rank], states[0])
            staged.apply()
        return unchanged, held(dealt[rank]) == wanted(dealt[rank], states[4])

    assert with_copies([store] * 2, follow) == [(True, True)] * 2


@pytest.mark.parametrize("dies", [0, 1])
def test_a_rank_that_dies_at_any_call_of_a_pull_leaves_the_other_where_it_was(dies: int) -> None:
    states, _ = two_ranks()
    store = dense(states)

    def life(at: int) -> tuple[list[str], Any, bool]:
        """Let a rank die at a call; return what it had called, and how it ends for the other, and what that holds."""
        called: list[str] = []
        _, dealt = two_ranks()

        def live(peers: LocalPeers) -> None:
            mortal = MortalPeers(peers)
            with quick(store, peers=mortal, host_copy=True) as registry:
                registry.pull(0, into=dealt[peers.rank])
                if peers.rank == dies:
                    mortal.calls, mortal.dies = called, at
                registry.pull(1, into=dealt[peers.rank])

        found = outcomes(live, LocalGroup(2))
        other = dealt[1 - dies]
        return called, found[1 - dies], held(other) == wanted(other, states[0])

    calls, ended, unchanged = life(0)
    assert (ended, unchanged) == (None, False)
    assert {"host copy needed", "nodes", "host memory", "host copy", "stage", "apply"} <= set(calls)
    for number in range(1, len(calls) + 1):
        called, ended, unchanged = life(number)
        assert (isinstance(ended, PeerLost), unchanged) == (True, True), called[-1]
