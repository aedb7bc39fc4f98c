"""Ranks that pull together may have versions ready, each by itself: the same one, others, or none; all apply one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulse_registry import BaseMismatch, InvalidArgument, InvalidModel, Prefetch, Registry, Slice
from pulse_registry.errors import StoreUnavailable
from pulse_registry.store import Store
from pulse_registry.testing import CountingStore, FaultStore
from pulse_registry.testing.fault import Fault
from tests.scenarios.sharded.test_pull_slices import models
from tests.support.chains import Chain, chains
from tests.support.groups import small_groups
from tests.support.ranks import alike, on_ranks
from tests.support.records import DictStore
from tests.support.registries import quick
from tests.support.slices import cut_any, held, wanted
from tests.support.waiting import HANG_S, until

Model = dict[str, npt.NDArray[Any]]
POLL_S = 0.01


def model_at(version: int) -> Model:
    rng = np.random.default_rng(0)
    cells = rng.integers(0, 2**14, (6, 8), np.uint16)
    for _ in range(version):
        cells[rng.integers(6), rng.integers(8)] ^= 1
    return {"w": cells}


def pushed(versions: int) -> tuple[DictStore, Callable[[], int]]:
    """Return a store of so many versions, and what pushes the next one."""
    store, count = DictStore(), 0
    trainer = quick(store, coder="gap", keyframe_share=1e9)

    def push() -> int:
        nonlocal count
        trainer.push(count, model_at(count))
        count += 1
        return count - 1

    for _ in range(versions):
        push()
    return store, push


def columns(ranks: int = 2) -> list[dict[str, Slice]]:
    """Return the slices of ranks that hold as many columns each."""
    wide = 8 // ranks
    return [{"w": Slice(np.zeros((6, wide), np.uint16), of=(6, 8), at=(0, wide * n))} for n in range(ranks)]


def counting(store: Store, ranks: int = 2) -> list[CountingStore]:
    return [CountingStore(store) for _ in range(ranks)]


def objects_read(store: CountingStore) -> int:
    return sum("/objects/" in key for _, key in store.ledger)


def ready(prefetch: Prefetch, version: int) -> None:
    until(lambda: prefetch.ready == version)


def test_what_all_ranks_have_ready_is_applied_together_and_nothing_is_fetched_for_it() -> None:
    store, push = pushed(1)
    stores, dealt = counting(store), columns()

    def serve(registry: Registry, rank: int) -> list[tuple[int, str, int]]:
        found = []
        with registry.prefetch(into=dealt[rank], poll_seconds=POLL_S) as prefetch:
            for version in range(3):
                if version and not rank:
                    push()
                ready(prefetch, version)
                before = objects_read(stores[rank])
                staged = prefetch.take()
                assert staged is not None
                with staged:
                    result = staged.apply()
                found.append((result.version, result.checked, objects_read(stores[rank]) - before))
                assert held(dealt[rank]) == wanted(dealt[rank], model_at(version))
                assert prefetch.take() is None, "all hold the newest version"
        return found

    assert on_ranks(stores, serve) == [[(version, "state", 0) for version in range(3)]] * 2


def test_ranks_with_other_versions_ready_go_where_the_first_one_is_or_where_a_pull_says() -> None:
    store, _ = pushed(3)
    stores, dealt = counting(store, 4), columns(4)

    def serve(registry: Registry, rank: int) -> list[Any]:
        registry.pull(0, into=dealt[rank])
        with registry.prefetch(into=dealt[rank], poll_seconds=POLL_S) as prefetch:
            if rank < 2:
                prefetch.pin(1)
            ready(prefetch, 1 if rank < 2 else 2)
            before = objects_read(stores[rank])
            staged = prefetch.take()
            assert staged is not None
            with staged:
                found = [staged.apply().version, objects_read(stores[rank]) > before]
            assert held(dealt[rank]) == wanted(dealt[rank], model_at(1))
            if rank:
                prefetch.pin(None)
                ready(prefetch, 2)
            before = objects_read(stores[rank])
            found += [registry.pull(into=dealt[rank]).version, objects_read(stores[rank]) > before]
            assert held(dealt[rank]) == wanted(dealt[rank], model_at(2))
        return found

    assert on_ranks(stores, serve) == [[1, rank >= 2, 2, rank == 0] for rank in range(4)]


def test_a_rank_need_not_prefetch_but_all_must_make_the_same_calls() -> None:
    store, push = pushed(2)
    stores, dealt = counting(store), columns()

    def serve(registry: Registry, rank: int) -> tuple[int, str]:
        registry.pull(0, into=dealt[rank])
        if rank:
            registry.pull(into=dealt[1])
            push()
            registry.pull(into=dealt[1], check="all")
            with pytest.raises(InvalidArgument, match="same calls in the same order") as raised:
                registry.pull(into=dealt[1])
            return 0, str(raised.value)
        with registry.prefetch(into=dealt[0], poll_seconds=POLL_S) as prefetch:
            reads = 0
            for version in (1, 2):
                ready(prefetch, version)
                before = objects_read(stores[0])
                assert registry.pull(into=dealt[0], check="touched" if version == 1 else "all").version == version
                reads += objects_read(stores[0]) - before
            with pytest.raises(InvalidArgument, match="same calls in the same order") as raised:
                prefetch.take()
        return reads, str(raised.value)

    [(reads, one), (_, other)] = on_ranks(stores, serve)
    assert one == other
    assert reads == 0
    assert all(held(rank) == wanted(rank, model_at(2)) for rank in dealt)


@pytest.mark.parametrize("first", [True, False])
def test_a_rank_that_can_not_read_keeps_all_where_they_are_and_what_others_have_ready_stays_so(first: bool) -> None:
    store, _ = pushed(2)
    bad, down = 1, [False]
    faults = [Fault("fail_before", matches=lambda verb, key: down[0] and "/objects/" in key)]
    stores, dealt = counting(store), columns()
    broken: list[Store] = [stores[0], FaultStore(stores[1], faults)]

    def serve(registry: Registry, rank: int) -> list[Any]:
        registry.pull(0, into=dealt[rank])
        if rank == bad:
            down[0] = True
        with registry.prefetch(into=dealt[rank], poll_seconds=POLL_S) as prefetch:
            if rank == bad:
                until(lambda: prefetch.error is not None)
            else:
                ready(prefetch, 1)
            with pytest.raises(StoreUnavailable) as raised:
                prefetch.take() if first else registry.pull(into=dealt[rank])
            assert held(dealt[rank]) == wanted(dealt[rank], model_at(0))
            before = objects_read(stores[rank])
            if rank == bad:
                down[0] = False
                ready(prefetch, 1)
            assert prefetch.ready == 1
            staged = prefetch.take()
            assert staged is not None
            with staged:
                staged.apply()
            return [str(raised.value), rank != bad and objects_read(stores[rank]) > before]

    [(one, again), (other, _)] = on_ranks(broken, serve)
    assert one == other
    assert one.startswith("rank 1: ")
    assert not again
    assert all(held(rank) == wanted(rank, model_at(1)) for rank in dealt)


def test_a_prefetch_that_one_rank_has_closed_is_told_on_all() -> None:
    store, _ = pushed(1)
    dealt = columns()

    def serve(registry: Registry, rank: int) -> Any:
        with registry.prefetch(into=dealt[rank], poll_seconds=POLL_S) as prefetch:
            if rank:
                prefetch.close()
            prefetch.take()

    assert "rank 1: this prefetch of run 'run' was closed" in alike(on_ranks([store] * 2, serve), InvalidArgument)


def test_weights_that_can_not_be_prefetched_into_are_told_on_their_rank_alone() -> None:
    store, _ = pushed(1)
    dealt = columns()

    def serve(registry: Registry, rank: int) -> int:
        if rank:
            with pytest.raises(InvalidModel):
                registry.prefetch(into={"w": "no tensor"})  # type: ignore[dict-item]
        return registry.pull(into=dealt[rank]).version

    assert on_ranks([store] * 2, serve) == [0, 0]


def test_take_waits_until_the_first_rank_has_one_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pulse_registry.pull.prefetch_together._ROUND_S", 0.01)
    store, push = pushed(1)
    stores, dealt = counting(store), columns()

    def serve(registry: Registry, rank: int) -> int:
        registry.pull(into=dealt[rank])
        with registry.prefetch(into=dealt[rank], poll_seconds=POLL_S) as prefetch:
            if rank:
                push()
            staged = prefetch.take(timeout=HANG_S if rank == 0 else 0.0)
            assert staged is not None
            with staged:
                version = staged.apply().version
                staged.undo()
            assert prefetch.take() is None, "what was undone is not offered again"
            registry.pull(into=dealt[rank])
            return version

    assert on_ranks(stores, serve) == [1, 1]
    assert all(held(rank) == wanted(rank, model_at(1)) for rank in dealt)


def test_cells_that_others_change_after_they_were_made_ready_are_found_by_a_check_of_all() -> None:
    store, _ = pushed(2)
    dealt = columns()

    def serve(registry: Registry, rank: int) -> None:
        registry.pull(0, into=dealt[rank])
        with registry.prefetch(into=dealt[rank], poll_seconds=POLL_S) as prefetch:
            ready(prefetch, 1)
            if rank:
                dealt[1]["w"].tensor[...] ^= 1
            registry.pull(1, into=dealt[rank], check="all")

    assert "rank 1: the slices are not those of version 0" in alike(on_ranks([store] * 2, serve), BaseMismatch)
    assert held(dealt[0]) == wanted(dealt[0], model_at(0))


@pytest.mark.slow
@given(
    chain=chains(length=4),
    ranks=st.integers(1, 4),
    share=st.sampled_from([0.3, 1e9]),
    order=st.permutations(range(4)),
    prefetching=st.lists(st.booleans(), min_size=16, max_size=16),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=10)
def test_random_ranks_have_random_versions_ready_and_always_hold_the_same_one(
    chain: Chain, ranks: int, share: float, order: Sequence[int], prefetching: list[bool], seed: int
) -> None:
    states, store = models(chain), DictStore()
    dealt = cut_any(states[0], ranks, seed)
    with small_groups(chain.group_bytes):
        with quick(store, coder="gap", keyframe_share=share) as trainer:
            for step, state in enumerate(states):
                trainer.push(step, state)

        def serve(registry: Registry, rank: int) -> None:
            with ExitStack() as ends:
                prefetch: Prefetch | None = None
                for turn, version in enumerate(order):
                    if prefetching[4 * turn + rank]:
                        prefetch = prefetch or ends.enter_context(
                            registry.prefetch(into=dealt[rank], poll_seconds=POLL_S, partial=True)
                        )
                        prefetch.pin(version)
                        ready(prefetch, version)
                    result = registry.pull(version, into=dealt[rank], partial=True)
                    assert (result.version, result.checked) == (version, "state")
                    assert held(dealt[rank]) == wanted(dealt[rank], states[version])

        assert on_ranks([store] * ranks, serve) == [None] * ranks


@pytest.mark.parametrize("places", [(0, 4, 17), (17, 4, 0), (4, 17, 0)], ids=str)
def test_patches_of_a_group_that_lies_in_two_slices_are_joined_in_any_order_of_these(places: Sequence[int]) -> None:
    states = [{"w": np.arange(1.0, 31.0)} for _ in range(3)]
    for state in states[1:]:
        state["w"][18] = -1.0
    states[2]["w"][20] = -2.0
    ends, store = {0: 4, 4: 17, 17: 30}, DictStore()
    dealt = {"w": [Slice(np.zeros(ends[at] - at), of=(30,), at=(at,)) for at in places]}

    def serve(registry: Registry, _: int) -> None:
        for version in (0, 2):
            registry.pull(version, into=dealt, partial=True)
            assert held(dealt) == wanted(dealt, states[version])

    with small_groups(64):
        with quick(store, coder="gap", keyframe_share=1e9) as trainer:
            for step, state in enumerate(states):
                trainer.push(step, state)
        assert on_ranks([store], serve) == [None]
