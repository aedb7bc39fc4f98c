"""Ranks of Megatron jobs push and pull Hugging Face's tensors from and into their own fused parameters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pulse_registry import InvalidModel, Registry, Slice
from pulse_registry.integrations import megatron
from tests.scenarios.sharded.test_push_by_rank import objects, on_ranks
from tests.support.groups import small_groups
from tests.support.megatron import Job
from tests.support.records import DictStore
from tests.support.registries import quick

JOBS = {
    "TP8 with 2 KV heads": Job(heads=8, kv_heads=2, head_dim=4, ffn=16, tp=8, vocab=29),
    "TP2 x PP2 with virtual stages": Job(layers=4, tp=2, pp=2, vp=2),
    "EP2 x TP2, tied": Job(experts=4, ep=2, tp=2, tied=True),
}


@pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)
def test_each_ranks_fused_parameters_follow_from_version_to_version(job: Job) -> None:
    store, rng = DictStore(), np.random.default_rng(7)
    table = megatron.hugging_face(job.config, tied=job.tied)
    with small_groups(256), quick(store, coder="gap", keyframe_share=1e9) as registry:
        ranks = list(job.ranks(blank=True))
        for step in range(3):
            registry.push(step, job.model)
            for rank, wanted in zip(ranks, job.ranks(), strict=True):
                into = megatron.slices(rank.chunks, names=table, vocab_size=job.vocab)
                assert registry.pull(step, into=into, partial=True).version == step
                for (mine, _), (_, cells) in zip(rank.params, wanted.params, strict=True):
                    np.testing.assert_array_equal(mine, cells)
            for cells in job.model.values():
                cells[rng.random(cells.shape) < 0.1] ^= 1


@pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)
def test_ranks_store_what_one_process_with_hugging_faces_model_stores(job: Job) -> None:
    alone, together = DictStore(), DictStore()
    ranks, rng = list(job.ranks()), np.random.default_rng(7)
    table = megatron.hugging_face(job.config, tied=job.tied)
    states = [job.model, {name: cells ^ (rng.random(cells.shape) < 0.1) for name, cells in job.model.items()}]
    with small_groups(256), quick(alone) as registry:
        for step, state in enumerate(states):
            registry.push(step, state)

        def push(registry: Registry, number: int) -> list[str]:
            mine = megatron.slices(ranks[number].chunks, names=table, vocab_size=job.vocab)
            found = [registry.push(0, mine).digest]
            for name, value in mine.items():
                for one in value if isinstance(value, list) else [value]:
                    put(one, states[1][name])
            return [*found, registry.push(1, mine).digest]

        wanted = [version.digest for version in registry.versions()]
        assert on_ranks(together, len(ranks), push) == [wanted] * len(ranks)
        assert objects(together) == objects(alone)


def put(one: Slice, whole: Any) -> None:
    if not isinstance(one.at, int) and isinstance(one.tensor, np.ndarray):
        where = tuple(slice(at, at + size) for at, size in zip(one.at, one.tensor.shape, strict=True))
        one.tensor[...] = whole[where] if one.tensor.size else one.tensor


def test_stages_that_count_their_layers_from_0_are_refused_where_something_else_is_expected(tmp_path: Path) -> None:
    job = Job(pp=2, layers=2)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": dict.fromkeys(job.model, "model.safetensors")}))
    table, ranks, store = megatron.hugging_face(job.config), list(job.ranks()), DictStore()

    def push(registry: Registry, number: int) -> Any:
        mine = megatron.slices(ranks[number].chunks, names=table, vocab_size=job.vocab)
        own = {name.replace("layers.1.", "layers.0.") if number else name: one for name, one in mine.items()}
        for name in own:  # equal, as fresh norms are, so that they look like replicas
            if "layers.0." in name:
                own[name] = np.zeros(job.model[name].shape, np.uint16)
        return registry.push(0, own)

    for failure in on_ranks(store, 2, push, expect=index):
        assert isinstance(failure, InvalidModel)
        assert "12 missing: 'model.layers.1." in str(failure)
    assert store.objects == {}
    assert all(not isinstance(found, Exception) for found in on_ranks(DictStore(), 2, push)), "nothing else tells"
