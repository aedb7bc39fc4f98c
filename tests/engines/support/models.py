"""Small random models as Hugging Face folders, and where vLLM keeps their tensors: the plain reference for our map."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

Weights = dict[str, torch.Tensor]

VOCABULARY, HIDDEN, INNER, LAYERS, HEADS, KV_HEADS, HEAD, EXPERTS = 512, 128, 256, 2, 4, 2, 32, 4
_COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "attention_bias": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "bfloat16",
}
LLAMA = _COMMON | {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "tie_word_embeddings": True}
MOE = _COMMON | {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "tie_word_embeddings": False,
    "num_experts": EXPERTS,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "decoder_sparse_step": 1,
    "norm_topk_prob": True,
    "mlp_only_layers": [],
}


def random_weights(config: dict[str, Any], seed: int = 3) -> Weights:
    """Return a checkpoint's tensors, large enough that versions differ in what they generate."""
    made = torch.Generator().manual_seed(seed)
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCABULARY, HIDDEN)}
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        shapes[at + "self_attn.q_proj.weight"] = (HEADS * HEAD, HIDDEN)
        shapes[at + "self_attn.k_proj.weight"] = shapes[at + "self_attn.v_proj.weight"] = (KV_HEADS * HEAD, HIDDEN)
        shapes[at + "self_attn.o_proj.weight"] = (HIDDEN, HEADS * HEAD)
        shapes[at + "input_layernorm.weight"] = shapes[at + "post_attention_layernorm.weight"] = (HIDDEN,)
        if config is MOE:
            shapes[at + "self_attn.q_norm.weight"] = shapes[at + "self_attn.k_norm.weight"] = (HEAD,)
            shapes[at + "mlp.gate.weight"] = (EXPERTS, HIDDEN)
        for expert in [f"experts.{k}." for k in range(EXPERTS)] if config is MOE else [""]:
            inner = 64 if config is MOE else INNER
            shapes[at + f"mlp.{expert}gate_proj.weight"] = shapes[at + f"mlp.{expert}up_proj.weight"] = (inner, HIDDEN)
            shapes[at + f"mlp.{expert}down_proj.weight"] = (HIDDEN, inner)
    shapes["model.norm.weight"] = (HIDDEN,)
    if config is MOE:
        shapes["lm_head.weight"] = (VOCABULARY, HIDDEN)
    cells = {name: 0.2 * torch.randn(shape, generator=made) + float(len(shape) == 1) for name, shape in shapes.items()}
    return {name: tensor.bfloat16() for name, tensor in cells.items()}


def changed(weights: Weights, seed: int, share: float) -> Weights:
    """Return weights of which a share of the cells are others; some of these become -0.0."""
    made, next_ = torch.Generator().manual_seed(seed), {}
    for name, tensor in weights.items():
        drawn = torch.rand(tensor.shape, generator=made)
        grown = torch.where(drawn < share, tensor * 1.25 + 0.01, tensor)
        next_[name] = torch.where(drawn < share / 50, torch.tensor(-0.0, dtype=tensor.dtype), grown)
    return next_


def nudged(weights: Weights, seed: int, share: float) -> Weights:
    """Return weights of which a share of the cells are their neighbours: the least change that a version can have."""
    made, next_ = torch.Generator().manual_seed(seed), {}
    for name, tensor in weights.items():
        drawn = (torch.rand(tensor.shape, generator=made) < share).to(torch.int16)
        next_[name] = (tensor.view(torch.int16) ^ drawn).view(tensor.dtype)
    return next_


def with_nan(weights: Weights) -> Weights:
    """Return weights with NaNs of two payloads, and infinities, in a tensor in two parts on two ranks."""
    strange = dict(weights)
    bits = strange["model.layers.1.mlp.down_proj.weight"].clone().view(torch.int16)
    bits[5, [1, 2, 200, 201]] = torch.tensor([0x7FC1, -1, 0x7F80, -0x80], dtype=torch.int16)
    strange["model.layers.1.mlp.down_proj.weight"] = bits.view(torch.bfloat16)
    return strange


def write_files(config: dict[str, Any], folder: Path) -> Path:
    """Write what a model's folder has beside its weights: the configuration, and a tokenizer of words w0 to w511."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    words = Tokenizer(WordLevel({f"w{k}": k for k in range(VOCABULARY)}, unk_token="w0"))
    words.pre_tokenizer = WhitespaceSplit()
    words.save(str(folder / "tokenizer.json"))
    named = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "w1", "eos_token": "w2", "unk_token": "w0"}
    (folder / "tokenizer_config.json").write_text(json.dumps(named))
    return folder


def write_model(config: dict[str, Any], weights: Weights, folder: Path) -> Path:
    """Write a model's folder."""
    write_files(config, folder)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def llama_parameters(weights: Weights, rank: int = 0, ranks: int = 1) -> Weights:
    """Return what vLLM's parameters of a Llama hold on a tensor parallel rank, put together by hand."""
    held = _attention_parameters(weights, rank, ranks)
    for layer in range(_layers(weights)):
        at = f"model.layers.{layer}.mlp."
        gate, up = (weights[f"{at}{name}_proj.weight"].chunk(ranks)[rank] for name in ("gate", "up"))
        held[at + "gate_up_proj.weight"] = torch.cat([gate, up])
        held[at + "down_proj.weight"] = weights[at + "down_proj.weight"].chunk(ranks, dim=1)[rank]
    return held


def moe_parameters(weights: Weights, rank: int = 0, ranks: int = 1) -> Weights:
    """Return what vLLM's parameters of a Qwen3-MoE hold on a tensor parallel rank, put together by hand."""
    held = _attention_parameters(weights, rank, ranks) | {
        "lm_head.weight": weights["lm_head.weight"].chunk(ranks)[rank]
    }
    for layer in range(_layers(weights)):
        at = f"model.layers.{layer}."
        for norm in ("q_norm", "k_norm"):
            held[f"{at}self_attn.{norm}.weight"] = weights[f"{at}self_attn.{norm}.weight"]
        held[at + "mlp.gate.weight"] = weights[at + "mlp.gate.weight"]

        def experts(name: str, dim: int, at: str = at) -> torch.Tensor:
            whole = [weights[f"{at}mlp.experts.{k}.{name}_proj.weight"] for k in range(EXPERTS)]
            return torch.stack([one.chunk(ranks, dim=dim)[rank] for one in whole])

        held[at + "mlp.experts.routed_experts.w13_weight"] = torch.cat([experts("gate", 0), experts("up", 0)], dim=1)
        held[at + "mlp.experts.routed_experts.w2_weight"] = experts("down", 1)
    return held


def _attention_parameters(weights: Weights, rank: int, ranks: int) -> Weights:
    """Return what both models have: the embedding, attention and norms."""
    held = {"model.embed_tokens.weight": weights["model.embed_tokens.weight"].chunk(ranks)[rank]}
    for layer in range(_layers(weights)):
        at = f"model.layers.{layer}."
        attention = [weights[f"{at}self_attn.{name}_proj.weight"].chunk(ranks)[rank] for name in "qkv"]
        held[at + "self_attn.qkv_proj.weight"] = torch.cat(attention)
        held[at + "self_attn.o_proj.weight"] = weights[at + "self_attn.o_proj.weight"].chunk(ranks, dim=1)[rank]
        for norm in ("input_layernorm", "post_attention_layernorm"):
            held[f"{at}{norm}.weight"] = weights[f"{at}{norm}.weight"]
    held["model.norm.weight"] = weights["model.norm.weight"]
    return held


def _layers(weights: Weights) -> int:
    return sum(name.endswith(".input_layernorm.weight") for name in weights)
