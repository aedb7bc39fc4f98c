"""A small random Llama, a tokenizer of its own, and what the trainers of TRL ask for: nothing is downloaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, TrainerCallback

WORDS = [f"w{n}" for n in range(60)]


def tokenizer() -> PreTrainedTokenizerFast:
    vocabulary = {word: number for number, word in enumerate(("<pad>", "<eos>", "<unk>", "<bos>", *WORDS))}
    plain = Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))
    plain.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=plain, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>", bos_token="<bos>"
    )


def llama(seed: int = 0, dtype: torch.dtype = torch.float32) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=64,
        max_position_embeddings=64,
        tie_word_embeddings=True,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=3,
    )
    return LlamaForCausalLM(config).to(dtype)


def prompts(count: int = 16) -> Dataset:
    return Dataset.from_dict({"prompt": [f"w{n} w{n + 1}" for n in range(count)]})


def reward(completions: list[str], **_: Any) -> list[float]:
    """Like words of high numbers, of which no two completions have the same sum."""
    return [float(sum(int(word[1:]) for word in text.split() if word[1:].isdigit())) for text in completions]


def rounded(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().to(torch.bfloat16, copy=True) for name, tensor in tensors.items()}


def differing(found: Mapping[str, torch.Tensor], wanted: Mapping[str, torch.Tensor]) -> list[str]:
    """Return the names of tensors whose bits are others, or that only one of the two has."""
    return [
        name
        for name in sorted(found.keys() | wanted.keys())
        if name not in found
        or name not in wanted
        or not torch.equal(found[name].view(torch.int16), wanted[name].view(torch.int16))
    ]


class Seen(TrainerCallback):  # type: ignore[misc]
    """Keeps what the policy was at each step, by ``look``."""

    def __init__(self, look: Any = None) -> None:
        self.at: dict[int, dict[str, torch.Tensor]] = {}
        self._look = look or (lambda model: rounded(model.state_dict()))

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.at[state.global_step] = self._look(kwargs["model"])

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.at[state.global_step] = self._look(kwargs["model"])
