"""Layers and kinds, by the names that models give their tensors."""

from __future__ import annotations

import pytest

from pulse_registry.stats.tensor_names import in_order, kind_of, layer_of


@pytest.mark.parametrize(
    ("name", "layer", "kind"),
    [
        ("model.embed_tokens.weight", "model.embed_tokens", "embedding"),
        ("model.layers.12.self_attn.q_proj.weight", "model.layers.12", "attention"),
        ("model.layers.12.self_attn.q_norm.weight", "model.layers.12", "norm"),
        ("model.layers.2.post_attention_layernorm.weight", "model.layers.2", "norm"),
        ("model.layers.2.mlp.gate_proj.weight", "model.layers.2", "mlp"),
        ("model.layers.2.mlp.gate.weight", "model.layers.2", "experts"),
        ("model.layers.2.mlp.experts.17.up_proj.weight", "model.layers.2", "experts"),
        ("model.layers.2.block_sparse_moe.experts.0.w1.weight", "model.layers.2", "experts"),
        ("model.layers.2.self_attn.o_proj.lora_A.weight", "model.layers.2", "attention"),
        ("transformer.h.0.attn.c_attn.weight", "transformer.h.0", "attention"),
        ("transformer.h.0.mlp.c_fc.weight", "transformer.h.0", "mlp"),
        ("transformer.h.0.ln_1.bias", "transformer.h.0", "norm"),
        ("transformer.ln_f.weight", "transformer.ln_f", "norm"),
        ("transformer.wte.weight", "transformer.wte", "embedding"),
        ("layers.3.attention.wq.weight", "layers.3", "attention"),
        ("layers.3.feed_forward.w2.weight", "layers.3", "mlp"),
        ("encoder.layer.1.intermediate.dense.weight", "encoder.layer.1", "mlp"),
        ("visual.blocks.4.attn.qkv.weight", "visual.blocks.4", "attention"),
        ("lm_head.weight", "lm_head", "embedding"),
        ("w", "w", "other"),
        ("0.weight", "0", "other"),
    ],
)
def test_a_name_says_layer_and_kind(name: str, layer: str, kind: str) -> None:
    assert (layer_of(name), kind_of(name)) == (layer, kind)


def test_layers_come_in_the_order_of_their_numbers() -> None:
    layers = ["lm_head", "model.embed_tokens", "model.layers.0", "model.layers.2", "model.layers.10", "model.norm"]
    assert in_order(set(layers)) == layers
