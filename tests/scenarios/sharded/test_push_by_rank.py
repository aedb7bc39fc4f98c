"""What ranks push together is, byte for byte, what one process with the whole model would have stored."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulse_registry import PushResult, Registry
from pulse_registry.peers.local_peers import LocalGroup, LocalPeers, run_ranks
from pulse_registry.store import Store
from tests.support.chains import Chain, chains
from tests.support.groups import small_groups
from tests.support.parts import small_parts
from tests.support.records import DictStore
from tests.support.registries import quick
from tests.support.slices import cut_any, put

pytestmark = pytest.mark.slow

Work = Callable[[Registry, int], Any]


def on_ranks(store: Store, ranks: int, work: Work, **options: Any) -> list[Any]:
    """Return what each rank's work gives with a registry of its own: a result, or the error that it raised."""

    def life(peers: LocalPeers) -> Any:
        with quick(store, peers=peers, **options) as registry:
            return work(registry, peers.rank)

    found = run_ranks(life, LocalGroup(ranks))
    return [future.exception() or future.result() for future in found]


def objects(store: DictStore) -> dict[str, bytes]:
    """Return all objects but the log, by keys without write ids, and without what names them."""
    found = {}
    for key, data in store.objects.items():
        if "/objects/" in key or "/layouts/" in key:
            found[re.sub(r"-[0-9a-f]{32}", "", key)] = bytes(data)
    return found


def told(result: PushResult) -> tuple[Any, ...]:
    return result.version, result.step, result.kind, result.changed, result.cells, result.nbytes, result.digest


@given(
    chain=chains(length=4),
    ranks=st.integers(1, 9),
    tied=st.booleans(),
    coder=st.sampled_from(["gap", "class", "auto"]),
    keyframes=st.sampled_from([{"keyframe_share": 1e9}, {"keyframe_every": 2}, {"keyframe_coding": "exponents"}]),
    part_groups=st.sampled_from([1, 2, 64]),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=40)
def test_ranks_store_the_objects_that_one_process_stores(
    chain: Chain, ranks: int, tied: bool, coder: str, keyframes: dict[str, Any], part_groups: int, seed: int
) -> None:
    states, alone, together = chain.models("z" if tied else None), DictStore(), DictStore()
    dealt = cut_any(states[0], ranks, seed)
    options = {"coder": coder} | keyframes
    with small_groups(chain.group_bytes), small_parts(part_groups):
        with quick(alone, **options) as registry:
            wanted = [told(registry.push(step, state)) for step, state in enumerate(states)]

        def push(registry: Registry, rank: int) -> list[tuple[Any, ...]]:
            found = []
            for step, state in enumerate(states):
                put(dealt[rank], state)
                found.append(told(registry.push(step, dealt[rank])))
            return found

        assert on_ranks(together, ranks, push, **options) == [wanted] * ranks
        assert objects(together) == objects(alone)
        with quick(together) as registry:
            for version, state in enumerate(states):
                into = {name: np.zeros_like(array) for name, array in state.items()}
                registry.pull(version, into=into)
                assert all(into[name].tobytes() == state[name].tobytes() for name in state)
