"""Ranks of Megatron jobs pull versions that were pushed under Hugging Face's names into their own parameters."""

from __future__ import annotations

import numpy as np
import pytest

from pulse_registry.integrations import megatron
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
