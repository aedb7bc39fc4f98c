"""Ranks with a host copy follow patches that are decoded from whole groups, all of them or none, as a whole model does.

What they hold is compared with the slices of a whole model, over random chains, slices, coders, nodes and ways.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulse_registry import BaseMismatch, CorruptObject, InvalidArgument, NotFound, Registry, Slice
from pulse_registry.errors import PulseError, StoreUnavailable
from pulse_registry.peers.local_peers import LocalGroup, LocalPeers
from pulse_registry.process import node_memory
from pulse_registry.pull import host_copy
from pulse_registry.pull.host_copy import HostCopy
from pulse_registry.store import Store
from pulse_registry.testing import FaultStore
from pulse_registry.testing.fault import Fault
from tests.support.chains import Chain, chains
from tests.support.groups import small_groups
from tests.support.ranks import alike, outcomes
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
            assert isinstance(result, list) and all(result), result


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


@given(**WAYS)
@settings(max_examples=25)
def test_ranks_hold_their_slices_of_each_version_whatever_its_coder(**drawn: Any) -> None:
    check_with_copies(**drawn)


@pytest.mark.sweep
@given(**WAYS)
@settings(max_examples=2_000)
def test_many_more_ranks_hold_their_slices_whatever_the_coder(**drawn: Any) -> None:
    check_with_copies(**drawn)
