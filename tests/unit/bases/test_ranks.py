"""Ranks that push together begin with a base together: one of them shares it, and what is wrong is wrong on all."""

from __future__ import annotations

import numpy as np

from pulse_registry.errors import LayoutMismatch
from tests.support.bases import LENDER, base_files, broken_promises, lend, opened, state_of, tuned
from tests.support.ranks import alike, on_ranks
from tests.support.records import DictStore
from tests.support.registries import RUN, bits, garbage
from tests.support.slices import cut_any, put

RANKS = 3


def test_ranks_store_what_one_process_would_have_stored() -> None:
    store = DictStore()
    model = tuned(lend(store), 1)
    dealt = cut_any(model, RANKS, 0)
    for rank in dealt:
        put(rank, model)
    options = {"base": LENDER, "keyframe_share": 1e9}
    results = on_ranks([store] * RANKS, lambda registry, rank: registry.push(7, dealt[rank]), **options)
    assert [(result.version, result.kind) for result in results] == [(1, "patch")] * RANKS
    assert [*state_of(store, RUN).bases.values()] == [None]
    assert len(base_files(store)) == 2
    assert broken_promises(store) == []
    into = garbage(model)
    with opened(store, RUN) as registry:
        registry.pull(into=into)
    assert bits(into) == bits(model)


def test_other_tensors_are_refused_on_all_ranks_and_nothing_is_written() -> None:
    store = DictStore()
    model = lend(store) | {"head.weight": np.zeros((2, 2), np.float32)}
    before = store.objects.copy()
    dealt = cut_any(model, RANKS, 0)
    errors = on_ranks([store] * RANKS, lambda registry, rank: registry.push(7, dealt[rank]), base=LENDER)
    assert "'head.weight' is new" in alike(errors, LayoutMismatch)
    assert store.objects == before
