"""Sharded state dicts of Megatron-LM jobs, in plain NumPy: what each rank of a job of any parallel sizes returns.

The classes have the documented fields of Megatron's own, and the keys, offsets and factories are those of its GPTModel.
The whole model is Hugging Face's, fused here by whole-array operations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


@dataclass
class ShardedTensor:
    key: str
    data: Any
    dtype: Any
    local_shape: tuple[int, ...]
    global_shape: tuple[int, ...]
    global_offset: tuple[int, ...]
    axis_fragmentations: tuple[int, ...] | None
    replica_id: int | tuple[int, ...] = 0
    prepend_axis_num: int = 0
    allow_shape_mismatch: bool = False
    flattened_range: slice | None = None


@dataclass
class ShardedObject:
    key: str
    data: object
    global_shape: tuple[int, ...]
    global_offset: tuple[int, ...]
    replica_id: int | tuple[int, ...] = 0


@dataclass
class ShardedTensorFactory:
    key: str
    data: Any
    build_fn: Callable[[str, Any, Any, slice | None], Any]
    replica_id: int | tuple[int, ...] = 0
    flattened_range: slice | None = None

    def build(self) -> Any:
        return self.build_fn(self.key, self.data, self.replica_id, self.flattened_range)


@dataclass
class Config:
    """The fields that are read of a TransformerConfig."""

    num_attention_heads: int
    num_query_groups: int | None
    kv_channels: int | None
    gated_linear_unit: bool = True
    layernorm_zero_centered_gamma: bool = False


@dataclass
class Chunk:
    """A model chunk."""

    state: dict[str, Any] = field(default_factory=dict)

    def sharded_state_dict(self) -> dict[str, Any]:
        return self.state


@dataclass
class Wrapped:
    """What DDP and the like are: the model is in an attribute."""

    module: Any


@dataclass
class Rank:
    """A rank: its chunks, and what each of its parameters holds once the whole model is there."""

    chunks: list[Chunk]
    params: list[tuple[Array, Array]]


@dataclass
class Job:
    """A job of a decoder; ``numbered``: layers have numbers in keys, and are no axis (``non_homogeneous_layers``)."""

    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 2
    hidden: int = 6
    ffn: int = 8
    layers: int = 2
    vocab: int = 13
    experts: int = 0
    tp: int = 1
    pp: int = 1
    vp: int = 1
    ep: int = 1
    tied: bool = False
    numbered: bool = False

    def __post_init__(self) -> None:
        rng = np.random.default_rng(math.prod((self.heads, self.layers, self.hidden)))
        self.model: dict[str, Array] = {}

        def new(name: str, *shape: int) -> None:
            self.model[name] = rng.integers(0, 1 << 16, shape, dtype=np.uint16)

        for name in ["model.embed_tokens.weight"] + ["lm_head.weight"] * (not self.tied):
            new(name, self.vocab, self.hidden)
        new("model.norm.weight", self.hidden)
        for layer in range(self.layers):
            at = f"model.layers.{layer}"
            for name in ("input_layernorm", "post_attention_layernorm"):
                new(f"{at}.{name}.weight", self.hidden)
            for name, heads in (("q", self.heads), ("k", self.kv_heads), ("v", self.kv_heads)):
                new(f"{at}.self_attn.{name}_proj.weight", heads * self.head_dim, self.hidden)
                new(f"{at}.self_attn.{name}_proj.bias", heads * self.head_dim)
            new(f"{at}.self_attn.o_proj.weight", self.hidden, self.heads * self.head_dim)
            if self.experts:
                new(f"{at}.mlp.gate.weight", self.experts, self.hidden)
            for mlp in [f"mlp.experts.{expert}" for expert in range(self.experts)] or ["mlp"]:
                for name in ("gate", "up"):
                    new(f"{at}.{mlp}.{name}_proj.weight", self.ffn, self.hidden)
                new(f"{at}.{mlp}.down_proj.weight", self.hidden, self.ffn)

    @property
    def config(self) -> Config:
        return Config(self.heads, self.kv_heads, self.head_dim)

    def ranks(self, *, blank: bool = False) -> Iterator[Rank]:
        """Yield the ranks; ``blank``: their parameters are zeros."""
        for pp in range(self.pp):
            for ep in range(self.ep):
                for tp in range(self.tp):
                    yield _RankBuilder(self, tp, pp, ep, blank).build()


@dataclass
class _RankBuilder:
    job: Job
    tp: int
    pp: int
    ep: int
    blank: bool
    params: list[tuple[Array, Array]] = field(default_factory=list)

    def build(self) -> Rank:
        job = self.job
        stages = [self.pp + job.pp * virtual for virtual in range(job.vp)]
        chunks = [self.chunk(stage, first=stage == 0, last=stage == job.pp * job.vp - 1) for stage in stages]
        return Rank(chunks, self.params)

    def chunk(self, stage: int, *, first: bool, last: bool) -> Chunk:
        job, state = self.job, {}
        embedding = job.model["model.embed_tokens.weight"]
        if first:
            state["embedding.word_embeddings.weight"] = self.vocabulary("embedding.word_embeddings.weight", embedding)
        count = job.layers // (job.pp * job.vp)
        for local in range(count):
            state |= self.layer(f"decoder.layers.{local}.", stage * count + local)
        if last:
            norm = self.param(job.model["model.norm.weight"])
            state["decoder.final_layernorm.weight"] = self.tensor("decoder.final_layernorm.weight", norm, ())
            if not job.tied:
                state["output_layer.weight"] = self.vocabulary("output_layer.weight", job.model["lm_head.weight"])
            elif not first:  # a replica under the embedding's key, in memory of its own
                state["output_layer.weight"] = self.vocabulary("embedding.word_embeddings.weight", embedding)
        return Chunk(state)

    def layer(self, prefix: str, layer: int) -> dict[str, Any]:
        job, at = self.job, f"model.layers.{layer}"
        sharded = f"decoder.layers.{layer}." if job.numbered else "decoder.layers."
        axes = () if job.numbered else ((layer, job.layers),)
        state: dict[str, Any] = {}

        def put(name: str, whole: Array, axis: int | None = None) -> None:
            data = self.param(whole if axis is None else np.split(whole, job.tp, axis)[self.tp])
            state[prefix + name] = self.tensor(sharded + name, data, axes, axis)

        for kind in ("weight", "bias"):
            q, k, v = (job.model[f"{at}.self_attn.{name}_proj.{kind}"] for name in "qkv")
            groups = [part.reshape(job.kv_heads, -1, *part.shape[1:]) for part in (q, k, v)]
            put(f"self_attention.linear_qkv.{kind}", np.concatenate(groups, 1).reshape(-1, *q.shape[1:]), 0)
        put("self_attention.linear_qkv.layer_norm_weight", job.model[f"{at}.input_layernorm.weight"])
        put("self_attention.linear_proj.weight", job.model[f"{at}.self_attn.o_proj.weight"], 1)
        key = f"{sharded}self_attention._extra_state"
        state[f"{prefix}self_attention._extra_state"] = ShardedObject(key, None, (1,), (0,))
        norm = "pre_mlp_layernorm.weight" if job.experts else "mlp.linear_fc1.layer_norm_weight"
        put(norm, job.model[f"{at}.post_attention_layernorm.weight"])
        if not job.experts:
            return state | self.mlp(f"{prefix}mlp.", f"{sharded}mlp.", f"{at}.mlp", axes)
        put("mlp.router.weight", job.model[f"{at}.mlp.gate.weight"])
        held = job.experts // job.ep
        for local in range(held):
            expert = self.ep * held + local
            mine = f"{prefix}mlp.experts.local_experts.{local}."
            theirs, all_axes = f"{sharded}mlp.experts.experts.", (*axes, (expert, job.experts))
            state |= self.mlp(mine, theirs, f"{at}.mlp.experts.{expert}", all_axes)
        return state

    def mlp(self, prefix: str, sharded: str, at: str, axes: tuple[tuple[int, int], ...]) -> dict[str, Any]:
        job = self.job
        gate, up, down = (job.model[f"{at}.{name}_proj.weight"] for name in ("gate", "up", "down"))
        mine = np.concatenate([np.split(whole, job.tp)[self.tp] for whole in (gate, up)])
        rows = 2 * job.ffn

        def build(key: str, data: Array, replica: Any, flattened: slice | None) -> list[ShardedTensor]:
            halves = np.split(data, 2)
            starts = (self.tp * rows // 2 // job.tp, rows // 2 + self.tp * rows // 2 // job.tp)
            return [
                self.tensor(key, half, axes, start=start, rows=rows) for half, start in zip(halves, starts, strict=True)
            ]

        fc1 = ShardedTensorFactory(f"{sharded}linear_fc1.weight", self.param(mine), build)
        fc2 = self.tensor(f"{sharded}linear_fc2.weight", self.param(np.split(down, job.tp, 1)[self.tp]), axes, axis=1)
        return {f"{prefix}linear_fc1.weight": fc1, f"{prefix}linear_fc2.weight": fc2}

    def vocabulary(self, key: str, whole: Array) -> ShardedTensor:
        """Shard a vocabulary, filled up to a multiple of 4 rows a rank."""
        padded = -(-len(whole) // (4 * self.job.tp)) * 4 * self.job.tp
        full = np.concatenate([whole, np.full((padded - len(whole), whole.shape[1]), 7, whole.dtype)])
        data = self.param(np.split(full, self.job.tp)[self.tp])
        if self.blank:  # what a pull leaves alone
            start = max(len(whole) - self.tp * len(data), 0)
            data[start:] = 7
        found = self.tensor(key, data, (), 0)
        found.allow_shape_mismatch = True
        return found

    def tensor(
        self,
        key: str,
        data: Array,
        axes: tuple[tuple[int, int], ...],
        axis: int | None = None,
        *,
        start: int | None = None,
        rows: int | None = None,
    ) -> ShardedTensor:
        shape, at = list(data.shape), [0] * data.ndim
        if axis is not None:
            shape[axis] *= self.job.tp
            at[axis] = self.tp * data.shape[axis]
        if start is not None and rows is not None:
            shape[0], at[0] = rows, start
        return ShardedTensor(
            key,
            data,
            data.dtype,
            tuple(data.shape),
            (*(size for _, size in axes), *shape),
            (*(number for number, _ in axes), *at),
            None,
            replica_id=(0, 0, 0),
            prepend_axis_num=len(axes),
        )

    def param(self, cells: Array) -> Array:
        mine = np.zeros_like(cells) if self.blank else np.array(cells)
        self.params.append((mine, np.array(cells)))
        return mine


def flattened(state: dict[str, Any], number: int, count: int) -> dict[str, Any]:
    """Return a state dict of which a rank keeps only its run of each flattened shard: one of so many ranks."""

    def run_of(tensor: ShardedTensor) -> ShardedTensor:
        cells = tensor.data.reshape(-1)
        size = -(-len(cells) // count)
        start, stop = min(number * size, len(cells)), min((number + 1) * size, len(cells))
        return replace(tensor, data=cells[start:stop], flattened_range=slice(start, stop))

    found: dict[str, Any] = {}
    for key, value in state.items():
        if isinstance(value, ShardedTensorFactory):
            halves = [run_of(half) for half in value.build()]
            found[key] = replace(value, build_fn=lambda *_, halves=halves: halves)
        elif isinstance(value, ShardedTensor):
            found[key] = run_of(value)
    return found
