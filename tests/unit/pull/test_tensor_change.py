"""Changes of staged versions by tensor: kept in a copy of one's own, they make it the version, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulse_registry import InvalidArgument, Staged
from tests.support.chains import Chain, chains
from tests.support.groups import small_groups
from tests.support.records import DictStore
from tests.support.registries import copy_of, quick
from tests.support.slices import cells_of, cut, held, wanted

Model = dict[str, Any]


def models(chain: Chain) -> list[Model]:
    """Return the states of a chain as models of raw cells."""
    return [{t.name: array for t, array in zip(chain.layout.tensors, state, strict=True)} for state in chain.states]


def follow(mirror: Model, staged: Staged) -> set[tuple[str, int]]:
    """Write what a staged version changes to a copy; check the old cells, and return which were written."""
    written: set[tuple[str, int]] = set()
    for change in staged.changes():
        cells = mirror[change.name].reshape(-1)
        assert change.at.dtype == np.int64
        assert (np.diff(change.at) > 0).all()
        assert np.array_equal(cells[change.at], change.old)
        assert (change.old != change.new).all()
        places = {(change.name, at) for at in change.at.tolist()}
        assert not places & written
        written |= places
        cells[change.at] = change.new
    return written


@pytest.mark.slow
@given(chain=chains(length=4), order=st.permutations(range(4)), share=st.sampled_from([0.1, 1e9]))
@settings(max_examples=40)
def test_a_copy_that_keeps_all_changes_is_the_version(chain: Chain, order: list[int], share: float) -> None:
    states = models(chain)
    with small_groups(chain.group_bytes), quick(DictStore(), keyframe_share=share) as registry:
        for step, state in enumerate(states):
            registry.push(step, state)
        live = copy_of(states[order[0]])
        registry.verify(order[0], model=live)
        mirror = copy_of(live)
        for version in order:
            with registry.stage(version, into=live) as staged:
                if staged.whole:
                    with pytest.raises(InvalidArgument, match=f"version {version} replaces all cells"):
                        staged.changes()
                    mirror = copy_of(states[version])
                else:
                    assert len(follow(mirror, staged)) == staged.changed
                staged.apply()
            assert all(np.array_equal(mirror[name], whole) for name, whole in states[version].items())


@pytest.mark.slow
@given(chain=chains(length=3), ranks=st.integers(1, 4), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=40)
def test_a_rank_tells_changes_of_its_slices_by_places_in_whole_tensors(chain: Chain, ranks: int, seed: int) -> None:
    states = models(chain)
    dealt = [rank for rank in cut(states[0], ranks, seed) if cells_of(rank)]
    with small_groups(chain.group_bytes), quick(DictStore(), coder="gap", keyframe_share=1e9) as registry:
        for step, state in enumerate(states):
            registry.push(step, state)
        for rank in dealt:
            registry.pull(0, into=rank, partial=True)
        for rank in dealt:
            mirror = copy_of(states[0])
            with registry.stage(2, into=rank, partial=True) as staged:
                assert not staged.whole
                assert len(follow(mirror, staged)) == staged.changed
                staged.apply()
            assert held(rank) == wanted(rank, mirror) == wanted(rank, states[2])


def test_what_was_discarded_tells_no_changes() -> None:
    with quick(DictStore()) as registry:
        model = {"w": np.zeros(8, np.float32)}
        registry.push(0, model)
        staged = registry.stage(0, into={"w": np.ones(8, np.float32)})
        assert staged.whole or list(staged.changes())
        staged.discard()
        with pytest.raises(InvalidArgument, match="was discarded"):
            staged.changes()
