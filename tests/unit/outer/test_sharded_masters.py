"""Masters that ranks hold: their cells come to the homes of groups, and go back to all holders, bit for bit."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pulse_kernels import get_backend
from pulse_registry.outer.sharded_masters import ShardedMasters
from pulse_registry.peers.local_peers import LocalGroup, LocalPeers, run_ranks
from pulse_registry.weights.cell_space import Geometry
from pulse_registry.weights.model import layout_of, read_model
from tests.support.groups import small_groups
from tests.support.slices import cut_any, held, put, wanted
from tests.support.waiting import NEVER_S

BACKEND = get_backend("reference")


def made(seed: int) -> dict[str, Any]:
    """Return float32 tensors of several small groups, of any bits."""
    rng = np.random.default_rng(seed)
    model = {
        name: rng.integers(0, 2**32, shape, dtype=np.uint32).view(np.float32)
        for name, shape in {"a": (6, 11), "b": (40,), "c": (), "d": (3, 5, 4), "e": (70,), "f": (0, 3)}.items()
    }
    return model | {"tied": model["a"]}


def geometry_of(model: dict[str, Any]) -> Geometry:
    """Return the geometry of the BF16 versions of float32 tensors."""
    return Geometry(layout_of(read_model(model), "bf16"))


def flat(geometry: Geometry, model: dict[str, Any]) -> np.ndarray[Any, Any]:
    return np.concatenate([model[one.name].reshape(-1).view(np.uint32) for one in geometry.layout.tensors])


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), ranks=st.integers(1, 5))
def test_cells_come_to_their_homes_and_go_back_to_all_who_hold_them(seed: int, ranks: int) -> None:
    before, after = made(seed), made(seed + 1)
    dealt = cut_any(before, ranks, seed)
    for rank in dealt:
        put(rank, before)
    with small_groups():
        geometry = geometry_of(before)
        old, new = flat(geometry, before), flat(geometry, after)

        def life(peers: LocalPeers) -> list[int]:
            masters = ShardedMasters(peers, geometry, BACKEND, map)
            for _ in range(2):  # the second time nothing is agreed on anew
                masters.take(read_model(dealt[peers.rank]))
            for group, [found] in masters.cells():
                assert found.view(np.uint32).tolist() == old[group.start : group.start + group.cells].tolist()
            masters.store(lambda group: new[group.start : group.start + group.cells].view(np.float32))
            return masters.numbers

        homes = [future.result() for future in run_ranks(life, LocalGroup(ranks, timeout_s=NEVER_S))]
    assert sorted(number for numbers in homes for number in numbers) == list(range(len(geometry.groups)))
    assert max(map(len, homes)) <= -(-len(geometry.groups) // ranks)
    assert all(a < b for numbers in homes for a, b in pairwise(numbers))
    for rank in dealt:
        assert held(rank) == wanted(rank, after)
