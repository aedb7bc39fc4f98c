"""A toy for tests: a random Llama of 0.1 M parameters that reads and writes bytes. What it says is noise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pulse_registry.demo.sums import Sum

END = 0
"""Token that ends a text; token n + 1 is byte n."""


class ByteCodec:
    """One token a byte."""

    def encode(self, task: Sum) -> list[int]:
        """Return the prompt that asks for a sum."""
        return [byte + 1 for byte in f"{task.first}+{task.second}=".encode()]

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of a completion, without its end mark."""
        return bytes(token - 1 for token in tokens if token != END).decode("latin-1")


def toy_config() -> dict[str, Any]:
    """Return the architecture: a Llama with tied embeddings, as the demo's real model has."""
    return {
        "model_type": "llama",
        "vocab_size": 257,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "tie_word_embeddings": True,
        "bos_token_id": END,
        "eos_token_id": END,
        "pad_token_id": END,
    }
