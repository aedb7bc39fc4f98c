"""Slices that are pulled equal the slices of the version that is pulled whole, whatever they are and whichever way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulse_registry import Slice
from pulse_registry.weights.slice import parts_of
from tests.support.chains import Chain, chains
from tests.support.groups import small_groups
from tests.support.records import DictStore
from tests.support.registries import quick
from tests.support.slices import cells_of, cut_any, held, untied, wanted


def models(chain: Chain) -> list[dict[str, Any]]:
    """Return the states of a chain as models of raw cells, as NumPy's own unsigned integers."""
    return [{t.name: array for t, array in zip(chain.layout.tensors, state, strict=True)} for state in chain.states]


def check_alone(chain: Chain, ranks: int, share: float, order: list[int], ties: tuple[bool, bool], seed: int) -> None:
    """Pull versions into each rank's slices, each by itself, and compare them with those of the whole.

    Args:
        chain: the versions.
        ranks: how many.
        share: of a keyframe, after which one is pushed.
        order: of the versions.
        ties: whether a tensor has two names; and then, whether they have one memory on a rank.
        seed: of the slices.
    """
    two, one = ties
    states, store = chain.models("z" if two else None), DictStore()
    cut = [rank if one else untied(rank) for rank in cut_any(states[0], ranks, seed)]
    dealt = [rank for rank in cut if cells_of(rank)]
    with small_groups(chain.group_bytes), quick(store, coder="gap", keyframe_share=share) as registry:
        for step, state in enumerate(states):
            registry.push(step, state)
        for version in order:
            for rank in dealt:
                result = registry.pull(version, into=rank, partial=True)
                assert result.version == version
                assert held(rank) == wanted(rank, states[version])
        for rank in dealt:
            assert registry.verify(order[-1], model=rank, partial=True).version == order[-1]


ALONE = {
    "chain": chains(length=4),
    "ranks": st.integers(1, 9),
    "share": st.sampled_from([0.1, 0.5, 1e9]),
    "order": st.permutations(range(4)),
    "ties": st.tuples(st.booleans(), st.booleans()),
    "seed": st.integers(0, 2**32 - 1),
}


def test_slices_of_all_kinds_are_drawn() -> None:
    model = {"a": np.zeros((3, 4, 5), np.uint16), "b": np.zeros((), np.uint8), "c": np.zeros((0, 3), np.uint8)}
    kinds: dict[str, int] = {}
    for seed in range(200):
        dealt = cut_any(model | {"z": model["a"]}, 9, seed)
        found = [list(parts_of("a", rank["a"])) for rank in dealt if isinstance(rank.get("a"), Slice | list)]
        boxes = [part.box for parts in found for part, _ in parts]
        full = [box for box in boxes if box.cells]
        seen = {
            "a whole tensor on several ranks": sum(isinstance(rank.get("a"), np.ndarray) for rank in dealt) > 1,
            "nothing but an empty slice": any(cells_of(rank) == 0 for rank in dealt),
            "an empty slice": len(full) < len(boxes),
            "rows": any(len(box.shape) == 1 and 0 < box.cells < 60 for box in full),
            "columns": any(len(box.shape) == 2 for box in full),
            "a box of three dimensions": any(len(box.shape) == 3 for box in full),
            "a box on several ranks": len(set(full)) < len(full),
            "several slices of a tensor on a rank": any(len(parts) > 1 for parts in found),
            "gaps": any(not tensor.flags.c_contiguous for parts in found for _, tensor in parts if tensor.size),
            "a flat run": any(isinstance(rank.get("a"), Slice) and rank["a"].at == 0 for rank in dealt),
            "two names": all(rank.get("z") is rank.get("a") for rank in dealt),
        }
        for kind, there in seen.items():
            kinds[kind] = kinds.get(kind, 0) + there
    assert all(kinds.values()), kinds


@pytest.mark.slow
@given(**ALONE)
@settings(max_examples=40)
def test_every_rank_holds_its_slices_of_each_version_it_pulls_in_any_order(**drawn: Any) -> None:
    check_alone(**drawn)


@pytest.mark.sweep
@given(**ALONE)
@settings(max_examples=3_000)
def test_many_more_ranks_hold_their_slices(**drawn: Any) -> None:
    check_alone(**drawn)
