"""The model that is trained, with its tokenizer; and the empty copy of it that a worker pulls weights into."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pulse_registry.demo.source import Source
from pulse_registry.demo.sums import EXAMPLE, Sum

_SYSTEM = "You add numbers."


class Codec(Protocol):
    """Text to tokens and back."""

    def encode(self, task: Sum) -> list[int]:
        """Return the prompt that asks for a sum."""

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of a completion, without its end mark."""


@dataclass(frozen=True, slots=True)
class Policy:
    """A causal language model with FP32 weights, and what workers need to make one like it.

    Attributes:
        model: of transformers.
        codec: its tokens.
        config: of the architecture, as JSON values; ``empty_model`` takes it.
    """

    model: Any
    codec: Codec
    config: Mapping[str, Any]


def load_policy(source: Source, seed: int) -> Policy:
    """Load a model and its tokenizer, offline, with FP32 weights."""
    transformers = quiet_transformers()
    import torch

    if source.kind == "tiny":
        from pulse_registry.demo.toy import ByteCodec, toy_config

        torch.manual_seed(seed)
        config = toy_config()
        return Policy(empty_model(config, torch.float32), ByteCodec(), config)
    where = {"gguf_file": source.gguf} if source.gguf is not None else {}
    model = transformers.AutoModelForCausalLM.from_pretrained(source.folder, dtype=torch.float32, **where)
    tokenizer = transformers.AutoTokenizer.from_pretrained(source.folder, **where)
    config = model.config.to_diff_dict()
    for name in ("quantization_config", "_name_or_path", "_model_name_or_path"):  # of the file it came from
        config.pop(name, None)
    return Policy(model, ChatCodec(tokenizer), config)


def empty_model(config: Mapping[str, Any], dtype: Any) -> Any:
    """Make a model of an architecture; its weights mean nothing until they are pulled."""
    transformers = quiet_transformers()
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**config), dtype=dtype)
    return model.eval()


def quiet_transformers() -> Any:
    """Import transformers, offline and without progress bars."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    import transformers

    transformers.utils.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    return transformers


class ChatCodec:
    """A Hugging Face tokenizer, and a prompt with one worked example: small models need it to answer at all."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    def text(self, task: Sum) -> str:
        """Return the prompt that asks for a sum, in the model's chat format where it has one."""
        if self.tokenizer.chat_template is None:
            return f"{EXAMPLE.question}\n{EXAMPLE.reply}\n\n{task.question}\n"
        turns = [
            {"role": "system", "content": _SYSTEM},
            {"role": "user", "content": EXAMPLE.question},
            {"role": "assistant", "content": EXAMPLE.reply},
            {"role": "user", "content": task.question},
        ]
        text: str = self.tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        return text

    def encode(self, task: Sum) -> list[int]:
        """Return the prompt's tokens."""
        tokens: list[int] = self.tokenizer(self.text(task), add_special_tokens=False)["input_ids"]
        return tokens

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of a completion, without its end mark."""
        text: str = self.tokenizer.decode(tokens, skip_special_tokens=True)
        return text
