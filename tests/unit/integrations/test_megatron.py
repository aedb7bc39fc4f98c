"""Slices of Megatron models against Hugging Face's tensors, of all parallel sizes; and state dicts that are wrong."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pulse_registry import InvalidArgument, InvalidModel, Slice
from pulse_registry.integrations import megatron
from pulse_registry.integrations.megatron import QKV, GateUp
from tests.support.megatron import (
    Array,
    Chunk,
    Config,
    Job,
    ShardedObject,
    ShardedTensor,
    ShardedTensorFactory,
    Wrapped,
    flattened,
)

Found = dict[str, Slice | list[Slice]]


def one_by_one(found: Found) -> list[tuple[str, Slice]]:
    return [(name, one) for name, value in found.items() for one in (value if isinstance(value, list) else [value])]


def place(one: Slice, shape: tuple[int, ...]) -> tuple[slice, ...]:
    assert tuple(one.of) == shape
    if not math.prod(one.tensor.shape):
        return (slice(0, 0),) * len(shape)
    assert not isinstance(one.at, int)
    return tuple(slice(at, at + size) for at, size in zip(one.at, one.tensor.shape, strict=True))


def check(model: dict[str, Array], ranks: list[Found]) -> None:
    """Check that the slices of all ranks are the model's, each cell in one of those that are not replicas."""
    spoken = {name: np.zeros(whole.shape, int) for name, whole in model.items()}
    places = set()
    for found in ranks:
        for name, one in one_by_one(found):
            where = place(one, model[name].shape)
            np.testing.assert_array_equal(np.asarray(one.tensor), model[name][where] if one.tensor.size else one.tensor)
            if (name, str(where)) not in places:
                places.add((name, str(where)))
                spoken[name][where] += 1
    assert all((count == 1).all() for count in spoken.values())


def hugging(job: Job, chunks: Any) -> Found:
    return megatron.slices(chunks, names=megatron.hugging_face(job.config, tied=job.tied), vocab_size=job.vocab)


JOBS = {
    "TP8 with 2 KV heads": Job(heads=8, kv_heads=2, head_dim=4, ffn=16, tp=8, vocab=29),
    "TP4 x PP2 with virtual stages": Job(heads=4, kv_heads=4, layers=4, tp=4, pp=2, vp=2),
    "PP2 with tied embeddings": Job(pp=2, tp=2, tied=True),
    "EP4": Job(experts=8, ep=4, tp=2),
    "EP2 x PP2, numbered layers": Job(experts=4, ep=2, pp=2, numbered=True),
    "one rank": Job(),
}


@pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)
def test_the_slices_of_all_ranks_are_hugging_faces_tensors_each_cell_once(job: Job) -> None:
    check(job.model, [hugging(job, rank.chunks) for rank in job.ranks()])


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    tp = draw(st.integers(1, 6))
    kv_heads, group = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    head_dim, layers, pp = draw(st.integers(1, 3)), draw(st.sampled_from([1, 2])), draw(st.sampled_from([1, 2]))
    while (group + 2) * kv_heads * head_dim % tp or group * kv_heads * head_dim % tp:
        head_dim += 1
    experts = draw(st.sampled_from([0, 2]))
    return Job(
        heads=kv_heads * group,
        kv_heads=kv_heads,
        head_dim=head_dim,
        hidden=draw(st.integers(1, 4)),
        ffn=tp * draw(st.integers(1, 2)),
        layers=layers * pp,
        vocab=draw(st.integers(1, 20)),
        experts=experts,
        tp=tp,
        pp=pp,
        ep=draw(st.sampled_from([1, 2])) if experts else 1,
        tied=draw(st.booleans()),
        numbered=draw(st.booleans()),
    )


@pytest.mark.slow
@given(jobs())
@settings(max_examples=60)
def test_any_parallel_sizes_give_each_cell_once(job: Job) -> None:
    check(job.model, [hugging(job, rank.chunks) for rank in job.ranks()])


@pytest.mark.slow
@given(jobs(), st.integers(1, 5))
@settings(max_examples=40)
def test_runs_of_flattened_shards_give_each_cell_once(job: Job, count: int) -> None:
    ranks = [
        hugging(job, [flattened(chunk.state, number, count) for chunk in rank.chunks])
        for rank in job.ranks()
        for number in range(count)
    ]
    spoken = {name: np.zeros(whole.shape, int) for name, whole in job.model.items()}
    for found in ranks:
        for name, one in one_by_one(found):
            where = place(one, job.model[name].shape)
            assert np.shares_memory(one.tensor, one.tensor.base) or not one.tensor.size  # type: ignore[union-attr]
            np.testing.assert_array_equal(
                np.asarray(one.tensor).reshape(-1), job.model[name][where].reshape(-1) if one.tensor.size else []
            )
            spoken[name][where] = 1
    assert all(count.all() for count in spoken.values())


@given(jobs())
@settings(max_examples=40)
def test_what_is_written_through_the_slices_is_in_the_parameters(job: Job) -> None:
    for rank in job.ranks(blank=True):
        for name, one in one_by_one(hugging(job, rank.chunks)):
            assert isinstance(one.tensor, np.ndarray)
            if one.tensor.size:
                one.tensor[...] = job.model[name][place(one, job.model[name].shape)]
        for mine, wanted in rank.params:
            np.testing.assert_array_equal(mine, wanted)


def test_without_names_tensors_have_megatrons_with_global_numbers() -> None:
    job = Job(layers=4, tp=2, pp=2, vp=2, experts=2, ep=2)
    names = [set(megatron.slices(rank.chunks)) for rank in job.ranks()]
    last = names[-1]  # stages 1 and 3, expert 1
    assert {name for name in last if "linear_fc2" in name} == {
        f"decoder.layers.{layer}.mlp.experts.experts.1.linear_fc2.weight" for layer in (1, 3)
    }
    assert "embedding.word_embeddings.weight" in names[0] - last
    assert not any("_extra_state" in name for found in names for name in found)
    padded = megatron.slices(next(job.ranks()).chunks)["embedding.word_embeddings.weight"]
    assert isinstance(padded, Slice)
    assert padded.of == (16, job.hidden), "without vocab_size, rows that fill up stay"


def test_with_fewer_kv_heads_than_ranks_a_rank_may_hold_part_of_a_group_and_no_key() -> None:
    job = JOBS["TP8 with 2 KV heads"]
    kinds = []
    for rank in job.ranks():
        found = dict(one_by_one(hugging(job, rank.chunks)))
        sizes = {name: np.size(found[f"model.layers.0.self_attn.{name}_proj.weight"].tensor) for name in "qkv"}
        kinds.append("".join(name for name, size in sizes.items() if size))
    assert kinds == ["q", "q", "qk", "kv"] * 2  # 6 rows a rank of groups of 16 q, 4 k and 4 v


def test_halves_and_experts_under_keys_of_their_own_have_the_same_names() -> None:
    """What ``singleton_local_shards`` makes of a gated MLP and of experts."""
    prefix = "decoder.layers.3.mlp.experts.experts.5.linear_fc1.weight"
    state = {half: tensor(ZEROS.copy(), f"{prefix}_{half}", global_shape=(4, 3)) for half in "wv"}
    found = one_by_one(megatron.slices(state, names=megatron.hugging_face(Job().config)))
    assert [(name, one.of) for name, one in found] == [
        ("model.layers.3.mlp.experts.5.gate_proj.weight", (4, 3)),
        ("model.layers.3.mlp.experts.5.up_proj.weight", (4, 3)),
    ]


def test_models_are_unwrapped_and_state_dicts_are_taken_as_they_are() -> None:
    job = Job()
    (rank,) = job.ranks()
    (chunk,) = rank.chunks
    names = set(megatron.slices(chunk))
    assert set(megatron.slices([Wrapped(Wrapped(chunk))])) == names
    assert set(megatron.slices({"model": chunk.state, "checkpoint_version": 3.0})) == names


def test_names_are_a_functions_or_a_tables_and_a_tensor_that_a_table_lacks_is_named() -> None:
    (rank,) = Job(tied=True).ranks()
    state = {"a": rank.chunks[0].state["embedding.word_embeddings.weight"]}
    assert list(megatron.slices(state, names=str.upper)) == ["EMBEDDING.WORD_EMBEDDINGS.WEIGHT"]
    assert megatron.slices(state, names=lambda name: None) == {}
    with pytest.raises(InvalidModel, match=r"says nothing of tensor 'embedding.word_embeddings.weight': add its name"):
        megatron.slices(state, names={"output_layer.weight": None})


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"a.{n}.b.{n}": "c"}, "no pattern"),
        ({"{first}.word_embeddings.{second}": "c"}, "says nothing"),
        ({"a.{n}": "b.{m}"}, "has a place that its pattern has not: 'm'"),
        ({"a.{n}": GateUp("b.{m}", "c")}, "has a place that its pattern has not: 'm'"),
    ],
)
def test_a_table_that_can_mean_nothing_is_refused(table: Any, said: str) -> None:
    with pytest.raises((InvalidArgument, InvalidModel), match=said):
        megatron.slices({"a": tensor(np.zeros((2, 3)), "a.7")}, names=table)


def tensor(data: Any, key: str = "w", **fields: Any) -> ShardedTensor:
    shape = tuple(data.shape)
    return replace(ShardedTensor(key, data, data.dtype, shape, shape, (0,) * len(shape), None), **fields)


ZEROS = np.zeros((2, 3), np.uint16)
WRONG = {
    "outside of the tensor": (tensor(ZEROS, global_offset=(1, 0)), "contradicts itself: cells"),
    "fewer dimensions": (tensor(ZEROS, global_shape=(2,)), "contradicts itself"),
    "data of another shape": (tensor(ZEROS, local_shape=(1, 3)), r"data of \[2, 3\] cells for a shard of \[1, 3\]"),
    "no data": (replace(tensor(ZEROS), data=None), "has no data"),
    "a run that is too long": (
        replace(tensor(ZEROS), data=ZEROS[0], flattened_range=slice(4, 7)),
        r"data of \[3\] cells for slice\(4, 7, None\) of a flattened shard",
    ),
    "a plain tensor": (ZEROS, "'x' of the sharded state dict is plain"),
    "optimizer state": (tensor(ZEROS, "optimizer.state.exp_avg.w"), "state of an optimizer"),
    "a copy": (
        ShardedTensorFactory("w", ZEROS, lambda key, data, *_: [tensor(data.copy(), key)]),
        "is a copy of its parameter",
    ),
}


@pytest.mark.parametrize(("value", "said"), WRONG.values(), ids=WRONG)
def test_what_contradicts_itself_or_is_no_shard_is_refused_by_name(value: Any, said: str) -> None:
    with pytest.raises(InvalidModel, match=said):
        megatron.slices(Chunk({"x": value}))


def test_no_model_is_refused() -> None:
    with pytest.raises(InvalidModel, match=r"a int has no sharded_state_dict"):
        megatron.slices([3])  # type: ignore[list-item]


def test_rules_that_do_not_fit_the_tensor_are_refused() -> None:
    qkv = QKV("q", "k", "v", heads=2, kv_heads=1, head_dim=1)
    with pytest.raises(InvalidModel, match=r"tensor 'w': the fused tensor of 'q', 'k' and 'v' has 2 rows, and 2 heads"):
        megatron.slices({"x": tensor(ZEROS)}, names={"w": qkv})
    with pytest.raises(InvalidModel, match=r"has no rows, and its rule"):
        megatron.slices({"x": tensor(np.zeros(()))}, names={"w": qkv})
    with pytest.raises(InvalidModel, match=r"has 3 rows: no two halves"):
        megatron.slices({"x": tensor(np.zeros((3, 2)))}, names={"w": GateUp("g", "u")})
    with pytest.raises(InvalidModel, match=r"no ShardedTensorFactory tells its gate"):
        megatron.slices({"x": tensor(ZEROS, global_shape=(4, 3))}, names={"w": GateUp("g", "u")})
    with pytest.raises(InvalidModel, match=r"has 2 rows, and a vocabulary of 3"):
        megatron.slices({"x": tensor(ZEROS, allow_shape_mismatch=True)}, vocab_size=3)
    with pytest.raises(InvalidArgument, match="a multiple of KV heads"):
        QKV("q", "k", "v", heads=3, kv_heads=2, head_dim=1)


@pytest.mark.parametrize(
    "config",
    [
        Config(4, 2, 2, layernorm_zero_centered_gamma=True),
        Config(4, 2, 2, gated_linear_unit=False),
        Config(4, 2, None),
        SimpleNamespace(num_attention_heads=4, num_query_groups=2, kv_channels=2, multi_latent_attention=True),
    ],
)
def test_the_table_of_hugging_face_is_not_for_models_with_other_tensors(config: Any) -> None:
    with pytest.raises(InvalidArgument):
        megatron.hugging_face(config)


def test_one_place_may_be_held_twice_in_one_memory_and_not_in_two() -> None:
    both = {"a": tensor(ZEROS, "a"), "b": tensor(ZEROS, "b")}
    assert list(megatron.slices(both, names=lambda name: "same")) == ["same"]
    both["b"] = tensor(ZEROS.copy(), "b")
    with pytest.raises(InvalidModel, match=r"part of tensor 'same' at \(0, 0\) twice, in different memory"):
        megatron.slices(both, names=lambda name: "same")


def test_axes_that_the_key_has_no_place_for_stay() -> None:
    found = megatron.slices({"x": tensor(ZEROS, global_shape=(5, 2, 3), global_offset=(4, 0, 0), prepend_axis_num=1)})
    one = found["w"]
    assert isinstance(one, Slice)
    assert (one.of, one.at, one.tensor.shape) == ((5, 2, 3), (4, 0, 0), (1, 2, 3))


def test_torchs_parameters_are_views_without_gradients() -> None:
    weight = torch.nn.Parameter(torch.zeros(4, 3))
    found = megatron.slices(
        {"x": tensor(weight), "y": ShardedObject("e", b"", (1,), (0,))}, names={"w": GateUp("g", "u")}
    )
    up = found["u"]
    assert isinstance(up, Slice)
    assert isinstance(up.tensor, torch.Tensor)
    up.tensor.fill_(1)
    assert weight.sum() == 6

    def halves(key: str, data: Any, *_: Any) -> list[ShardedTensor]:
        return [
            tensor(half, key, global_shape=(8, 3), global_offset=(at, 0))
            for half, at in zip(torch.chunk(data, 2), (2, 6), strict=True)
        ]

    built = megatron.slices({"x": ShardedTensorFactory("w", weight, halves)}, names={"w": GateUp("g", "u")})
    assert {name: (one.of, one.at) for name, one in one_by_one(built)} == {"g": ((4, 3), (2, 0)), "u": ((4, 3), (2, 0))}
