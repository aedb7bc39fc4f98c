"""Slices that are pulled equal the slices of the version that is pulled whole, whatever they are and whichever way."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from pulse_registry.weights.digest import Digest
from tests.support.chains import Chain, chains
from tests.support.groups import small_groups
from tests.support.records import DictStore
from tests.support.registries import quick
from tests.support.slices import cells_of, cut, held, wanted


def models(chain: Chain) -> list[dict[str, Any]]:
    """Return the states of a chain as models of raw cells, as NumPy's own unsigned integers."""
    return [{t.name: array for t, array in zip(chain.layout.tensors, state, strict=True)} for state in chain.states]


@given(
    chain=chains(length=4),
    ranks=st.integers(1, 4),
    coder=st.just("gap"),
    share=st.sampled_from([0.1, 0.5, 1e9]),
    order=st.permutations(range(4)),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=60)
def test_every_rank_holds_its_slices_of_each_version_it_pulls_in_any_order(
    chain: Chain, ranks: int, coder: str, share: float, order: list[int], seed: int
) -> None:
    states, store = models(chain), DictStore()
    dealt = [rank for rank in cut(states[0], ranks, seed) if cells_of(rank)]
    with small_groups(chain.group_bytes), quick(store, coder=coder, keyframe_share=share) as registry:
        for step, state in enumerate(states):
            registry.push(step, state)
        digests = [Digest.parse(version.digest) for version in registry.versions()]
        for version in order:
            for rank in dealt:
                result = registry.pull(version, into=rank, partial=True)
                assert result.version == version
                assert held(rank) == wanted(rank, states[version])
        for rank in dealt:
            assert registry.verify(order[-1], model=rank, partial=True).version == order[-1]
        assert len(digests) == len(states)
