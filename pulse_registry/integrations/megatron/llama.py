"""Names of Hugging Face for Megatron's dense and sparse decoders of the Llama family."""

from __future__ import annotations

from typing import Protocol

from pulse_registry.errors import InvalidArgument
from pulse_registry.integrations.megatron.fused import QKV, GateUp
from pulse_registry.integrations.megatron.names import Target

_OTHER = {
    "layernorm_zero_centered_gamma": (True, "stores norm weights less 1, and Hugging Face does not"),
    "attention_output_gate": (True, "has gates among the rows of linear_qkv"),
    "multi_latent_attention": (True, "has other projections than q, k and v"),
    "gated_linear_unit": (False, "has no gate in linear_fc1"),
}


class TransformerConfig(Protocol):
    """What is read of Megatron's TransformerConfig."""

    num_attention_heads: int
    num_query_groups: int | None
    kv_channels: int | None


def hugging_face(config: TransformerConfig, *, tied: bool = False) -> dict[str, Target]:
    """Return the table of names for Llama, Qwen2, Qwen3, their mixtures of experts, and models that are named alike.

    It maps names and places alone; values are as Megatron has them. For a model with other tensors, add lines to it:
    ``hugging_face(config) | {"decoder.layers.{layer}.mlp.router.expert_bias": None}``.

    Args:
        config: of the model: ``model.config``.
        tied: the output layer is the embedding, so that a rank which holds both in memory of their own, or the last
            stage of a pipeline, gives it under the embedding's name.

    Raises:
        InvalidArgument: the config says that the tensors are others than those.
    """
    for name, (value, why) in _OTHER.items():
        if getattr(config, name, not value) is value:
            raise InvalidArgument(f"a Megatron model with {name}={value} {why}: write a table of names for it")
    heads, head_dim = config.num_attention_heads, config.kv_channels
    if head_dim is None:
        raise InvalidArgument("the config has no kv_channels: rows of a head")
    layer, ours = "decoder.layers.{layer}", "model.layers.{layer}"
    attention, mlp = f"{layer}.self_attention", f"{layer}.mlp"
    expert = f"{mlp}.experts.experts.{{expert}}"
    table: dict[str, Target] = {
        "embedding.word_embeddings.weight": "model.embed_tokens.weight",
        "decoder.final_layernorm.weight": "model.norm.weight",
        "output_layer.weight": "model.embed_tokens.weight" if tied else "lm_head.weight",
        f"{layer}.input_layernorm.weight": f"{ours}.input_layernorm.weight",
        f"{attention}.linear_qkv.layer_norm_weight": f"{ours}.input_layernorm.weight",
        f"{layer}.pre_mlp_layernorm.weight": f"{ours}.post_attention_layernorm.weight",
        f"{mlp}.linear_fc1.layer_norm_weight": f"{ours}.post_attention_layernorm.weight",
        f"{attention}.q_layernorm.weight": f"{ours}.self_attn.q_norm.weight",
        f"{attention}.k_layernorm.weight": f"{ours}.self_attn.k_norm.weight",
        f"{mlp}.router.weight": f"{ours}.mlp.gate.weight",
    }
    for kind in ("weight", "bias"):
        q, k, v = (f"{ours}.self_attn.{name}_proj.{kind}" for name in "qkv")
        table[f"{attention}.linear_qkv.{kind}"] = QKV(q, k, v, heads, config.num_query_groups or heads, head_dim)
        table[f"{attention}.linear_proj.{kind}"] = f"{ours}.self_attn.o_proj.{kind}"
        for theirs, mine in ((mlp, f"{ours}.mlp"), (expert, f"{ours}.mlp.experts.{{expert}}")):
            gate, up = f"{mine}.gate_proj.{kind}", f"{mine}.up_proj.{kind}"
            table[f"{theirs}.linear_fc1.{kind}"] = GateUp(gate, up)
            table[f"{theirs}.linear_fc1.{kind}_w"], table[f"{theirs}.linear_fc1.{kind}_v"] = gate, up
            table[f"{theirs}.linear_fc2.{kind}"] = f"{mine}.down_proj.{kind}"
    return table
