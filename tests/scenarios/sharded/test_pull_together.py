"""Ranks that pull together hold one version, all of them or none, and all raise the same error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulse_registry import (
    BaseMismatch,
    InvalidArgument,
    InvalidModel,
    LayoutMismatch,
    NotFound,
    PullResult,
    Registry,
    Slice,
)
from pulse_registry.errors import PulseError, StoreUnavailable
from pulse_registry.peers.local_peers import LocalGroup, LocalPeers, run_ranks
from pulse_registry.pull.sliced_destination import SlicedDestination
from pulse_registry.store import Store
from pulse_registry.testing import FaultStore
from pulse_registry.testing.fault import Fault
from tests.scenarios.sharded.test_pull_slices import models
from tests.support.chains import Chain, chains
from tests.support.groups import small_groups
from tests.support.ranks import outcomes
from tests.support.records import DictStore
from tests.support.registries import quick
from tests.support.slices import cells, cells_of, cut_any, flip, held, untied, wanted

Work = Callable[[Registry, int], Any]


def on_ranks(stores: list[Store], work: Work) -> list[Any]:
    """Return what each rank's work gives with a registry of its own: a result, or the error that it raised."""

    def life(peers: LocalPeers) -> Any:
        with quick(stores[peers.rank], peers=peers) as registry:
            return work(registry, peers.rank)

    found = run_ranks(life, LocalGroup(len(stores)))
    return [future.exception() or future.result() for future in found]


def pushed(states: list[dict[str, Any]], **options: Any) -> DictStore:
    store = DictStore()
    with quick(store, **({"coder": "gap"} | options)) as registry:
        for step, state in enumerate(states):
            registry.push(step, state)
    return store


def check_together(
    chain: Chain, ranks: int, share: float, order: list[int], memory: tuple[bool, bool, bool], seed: int
) -> None:
    """Let ranks pull versions together, and compare what they hold with those of the whole.

    Args:
        chain: the versions.
        ranks: how many.
        share: of a keyframe, after which one is pushed.
        order: of the versions.
        memory: whether a tensor has two names; whether they have one memory on a rank; whether every other rank can go
            back in memory, and so by another route than its neighbours.
        seed: of the slices.
    """
    two, one, back = memory
    states = chain.models("z" if two else None)
    dealt = [rank if one else untied(rank) for rank in cut_any(states[0], ranks, seed)]
    with small_groups(chain.group_bytes):
        store = pushed(states, keyframe_share=share)

        def life(peers: LocalPeers) -> list[PullResult]:
            rank, undo = dealt[peers.rank], 100.0 * (back and peers.rank % 2)
            with quick(store, peers=peers, undo_share=undo) as registry:
                return [registry.pull(version, into=rank, partial=True) for version in order]

        for number, results in enumerate(outcomes(life, LocalGroup(ranks))):
            assert [(result.version, result.checked) for result in results] == [(v, "state") for v in order]
            assert held(dealt[number]) == wanted(dealt[number], states[order[-1]])


TOGETHER = {
    "chain": chains(length=3),
    "ranks": st.integers(1, 9),
    "share": st.sampled_from([0.3, 1e9]),
    "order": st.lists(st.integers(0, 2), min_size=3, max_size=5),
    "memory": st.tuples(st.booleans(), st.booleans(), st.booleans()),
    "seed": st.integers(0, 2**32 - 1),
}


@pytest.mark.slow
@given(**TOGETHER)
@settings(max_examples=25)
def test_the_state_of_all_ranks_together_is_checked_at_every_pull(**drawn: Any) -> None:
    check_together(**drawn)


@pytest.mark.sweep
@given(**TOGETHER)
@settings(max_examples=2_000)
def test_the_state_of_many_more_ranks_is_checked_at_every_pull(**drawn: Any) -> None:
    check_together(**drawn)


def two_ranks() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return three states of one tensor, and two ranks that hold half of its columns each."""
    rng = np.random.default_rng(0)
    states = [{"w": rng.integers(0, 2**16, (6, 8), dtype=np.uint16)} for _ in range(3)]
    return states, [{"w": Slice(np.zeros((6, 4), np.uint16), of=(6, 8), at=(0, 4 * rank))} for rank in range(2)]


def alike(errors: list[Any], kind: type[PulseError]) -> str:
    """Check that all ranks raised the same, and return what it says."""
    assert [type(error) for error in errors] == [kind] * len(errors), errors
    assert len({str(error) for error in errors}) == 1
    return str(errors[0])


def test_where_one_rank_can_not_read_no_rank_is_changed() -> None:
    states, dealt = two_ranks()
    store = pushed(states, keyframe_share=1e9)
    down = FaultStore(store, [Fault("fail_before", matches=lambda verb, key: "/objects/" in key)])

    def pull(registry: Registry, rank: int) -> None:
        registry.pull(1, into=dealt[rank])

    said = alike(on_ranks([store, down], pull), StoreUnavailable)
    assert said.startswith("rank 1: ")
    assert not any(rank["w"].tensor.any() for rank in dealt)


def test_a_rank_whose_cells_were_changed_by_others_keeps_all_ranks_where_they_were() -> None:
    states, dealt = two_ranks()
    store = pushed(states, keyframe_share=1e9)

    def pull(registry: Registry, rank: int) -> None:
        registry.pull(1, into=dealt[rank])
        if rank:
            dealt[1]["w"].tensor[0, 0] ^= 1
        registry.pull(2, into=dealt[rank])

    said = alike(on_ranks([store] * 2, pull), BaseMismatch)
    assert "rank 1: the slices are not those of version 1" in said
    assert held(dealt[0]) == wanted(dealt[0], states[1])


@pytest.mark.parametrize(("copies", "cell", "passes"), [(1, None, 0), (1, 0, 2), (1, 5, 0), (2, None, 2), (2, 0, 2)])
def test_cells_are_passed_over_only_where_the_sums_of_all_ranks_do_not_tell(
    copies: int, cell: int | None, passes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    states, _ = two_ranks()
    states[2] = {"w": np.where(np.arange(48).reshape(6, 8) % 4 == 0, states[1]["w"] ^ 1, states[1]["w"])}
    store, size = pushed(states, keyframe_share=1e9), 2 * copies
    dealt = [{"w": Slice(np.zeros((6, 4), np.uint16), of=(6, 8), at=(0, 4 * (rank % 2)))} for rank in range(size)]
    passed, plain = [], SlicedDestination.check

    def check(destination: SlicedDestination, version: int | None) -> None:
        passed.append(version)
        plain(destination, version)

    monkeypatch.setattr(SlicedDestination, "check", check)

    def pull(registry: Registry, rank: int) -> str:
        registry.pull(1, into=dealt[rank])
        if rank == size - 1 and cell is not None:
            flip(dealt[rank], cell)
        return registry.pull(2, into=dealt[rank]).checked

    found = on_ranks([store] * size, pull)
    if cell == 0:
        assert f"rank {size - 1}: the slices are not those of version 1" in alike(found, BaseMismatch)
        assert all(held(rank) == wanted(rank, states[1]) for rank in dealt[:-1])
    else:
        assert found == ["state"] * size, "a cell that no patch changes is as it was"
    assert len(passed) == passes


@pytest.mark.slow
@given(
    chain=chains(length=3),
    ranks=st.integers(1, 3),
    target=st.sampled_from([1, 2]),
    where=st.integers(0, 2**16),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=25)
def test_a_cell_that_something_else_changed_is_found_on_all_ranks_where_a_pull_would_change_it(
    chain: Chain, ranks: int, target: int, where: int, seed: int
) -> None:
    states = models(chain)
    dealt = cut_any(states[0], ranks, seed)
    holders = [number for number, rank in enumerate(dealt) if cells_of(rank)]
    if not holders:
        return  # a model without a cell has none to change
    hit = holders[where % len(holders)]
    cell = where % cells_of(dealt[hit])
    with small_groups(chain.group_bytes):
        store = pushed(states, keyframe_share=1e9)

        def pull(registry: Registry, rank: int) -> str:
            registry.pull(0, into=dealt[rank], partial=True)
            if rank == hit:
                flip(dealt[hit], cell)
            return registry.pull(target, into=dealt[rank], partial=True).checked

        found = on_ranks([store] * ranks, pull)
    over = [cells(wanted(dealt[hit], states[version]), states[version])[cell] for version in (0, target)]
    refused = isinstance(found[0], BaseMismatch)
    if refused:
        assert alike(found, BaseMismatch).startswith(f"rank {hit}: ")
    else:
        assert found == ["state"] * ranks
        assert over[0] == over[1], "what a pull changes is looked at"
    for number, rank in enumerate(dealt):
        state = states[0 if refused else target]
        pairs = zip(cells(held(rank), state), cells(wanted(rank, state), state), strict=True)
        assert [at for at, (has, should) in enumerate(pairs) if has != should] == [cell] * (number == hit)


@pytest.mark.parametrize("hit", [0, 1])
def test_a_small_tensor_that_all_ranks_hold_is_compared_on_each(hit: int) -> None:
    rng = np.random.default_rng(3)
    states = [{"n": rng.integers(0, 99, 3, np.uint16), "w": rng.integers(0, 99, (6, 8), np.uint16)} for _ in range(2)]
    store = pushed(states, keyframe_share=1e9)
    dealt: list[dict[str, Any]] = [
        {"n": np.zeros(3, np.uint16), "w": Slice(np.zeros((6, 4), np.uint16), of=(6, 8), at=(0, 4 * rank))}
        for rank in range(2)
    ]

    def pull(registry: Registry, rank: int) -> None:
        registry.pull(0, into=dealt[rank])
        if rank == hit:
            dealt[rank]["n"][1] ^= 1
        registry.pull(1, into=dealt[rank])

    assert f"rank {hit}: the slices are not those" in alike(on_ranks([store] * 2, pull), BaseMismatch)
    assert held(dealt[1 - hit]) == wanted(dealt[1 - hit], states[0])


def test_a_version_that_one_rank_can_not_apply_any_more_is_applied_by_none() -> None:
    states, dealt = two_ranks()
    store = pushed(states, keyframe_share=1e9)

    def pull(registry: Registry, rank: int) -> None:
        registry.pull(0, into=dealt[rank])
        staged = registry.stage(1, into=dealt[rank])
        if rank:
            staged.discard()
        staged.apply()

    assert "rank 1: the staged version 1 was discarded" in alike(on_ranks([store] * 2, pull), InvalidArgument)
    assert held(dealt[0]) == wanted(dealt[0], states[0])


def test_all_ranks_take_the_version_that_the_first_one_finds_and_undo_it_together() -> None:
    states, dealt = two_ranks()
    store = pushed(states, keyframe_share=1e9)

    def pull(registry: Registry, rank: int) -> int:
        registry.pull(0, into=dealt[rank])
        staged = registry.stage("latest" if rank == 0 else 1, into=dealt[rank])
        assert staged.checked == "state"
        staged.apply()
        assert held(dealt[rank]) == wanted(dealt[rank], states[2])
        staged.undo()
        assert held(dealt[rank]) == wanted(dealt[rank], states[0])
        return registry.pull(1, into=dealt[rank]).version

    assert on_ranks([store] * 2, pull) == [1, 1]
    assert held(dealt[1]) == wanted(dealt[1], states[1])


def test_an_error_of_one_rank_in_its_own_arguments_is_raised_on_all() -> None:
    states, dealt = two_ranks()
    store = pushed(states)
    dealt[1]["v"] = np.zeros(3, np.uint16)

    def pull(registry: Registry, rank: int) -> None:
        registry.pull(0, into=dealt[rank])

    assert "rank 1: tensor 'v' of the model is not in the version" in alike(on_ranks([store] * 2, pull), LayoutMismatch)
    assert "rank 0: run 'run' has no version 7" in alike(
        on_ranks([store] * 2, lambda r, k: r.pull(7, into=dealt[0])), NotFound
    )


def test_ranks_that_do_not_hold_all_cells_once_are_told_that_the_slices_were_checked() -> None:
    states, dealt = two_ranks()
    store = pushed(states)
    dealt[1] = {"w": Slice(np.zeros((6, 5), np.uint16), of=(6, 8), at=(0, 3))}

    def pull(registry: Registry, rank: int) -> str:
        return registry.pull(1, into=dealt[rank]).checked

    assert on_ranks([store] * 2, pull) == ["slices", "slices"]
    assert all(held(rank) == wanted(rank, states[1]) for rank in dealt)


def test_weights_of_one_rank_that_can_not_be_read_are_told_on_all_and_the_next_pull_goes_on() -> None:
    states, dealt = two_ranks()
    store = pushed(states)

    def pull(registry: Registry, rank: int) -> tuple[str, str]:
        with pytest.raises(InvalidModel) as raised:
            registry.pull(1, into={"w": "no tensor"} if rank else dealt[rank])
        return str(raised.value), registry.pull(2, into=dealt[rank]).checked

    first, second = on_ranks([store] * 2, pull)
    assert first == second
    assert first[0].startswith("rank 1: tensor 'w' is a str")
    assert first[1] == "state"


@pytest.mark.parametrize("call", ["pull", "stage"])
def test_a_check_that_is_not_valid_on_one_rank_is_told_on_all_and_the_next_pull_goes_on(call: str) -> None:
    states, dealt = two_ranks()
    store = pushed(states)

    def pull(registry: Registry, rank: int) -> tuple[str, str]:
        with pytest.raises(InvalidArgument) as raised:
            getattr(registry, call)(1, into=dealt[rank], check="some" if rank else "all")
        return str(raised.value), registry.pull(2, into=dealt[rank], check=3).checked

    first, second = on_ranks([store] * 2, pull)
    assert first == second
    assert first[0].startswith("rank 1: check is 'some'")
    assert first[1] == "state"


def test_a_run_of_class_patches_is_refused_on_ranks_that_hold_groups_in_part_with_words() -> None:
    states, dealt = two_ranks()
    store = pushed(states, coder="class", keyframe_share=1e9)

    def pull(registry: Registry, rank: int) -> str:
        with pytest.raises(NotFound) as raised:
            registry.pull(1, into=dealt[rank])
        assert registry.pull(0, into=dealt[rank]).checked == "state"
        return str(raised.value)

    first, second = on_ranks([store] * 2, pull)
    assert first == second
    assert "Patches of coder 'class' are left out, since the slices hold groups in part" in first
    assert "compact, with coder='gap'" in first
    assert held(dealt[0]) == wanted(dealt[0], states[0])


@pytest.mark.parametrize("replicas", [2, 3])
def test_replicas_count_once(replicas: int) -> None:
    states, _ = two_ranks()
    store = pushed(states)
    dealt = [{"w": np.zeros((6, 8), np.uint16)} for _ in range(replicas)]

    def pull(registry: Registry, rank: int) -> str:
        return registry.pull(2, into=dealt[rank]).checked

    assert on_ranks([store] * replicas, pull) == ["state"] * replicas
    assert all(np.array_equal(rank["w"], states[2]["w"]) for rank in dealt)
