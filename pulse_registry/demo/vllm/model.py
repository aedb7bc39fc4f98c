"""The model that training begins with, as a Hugging Face folder in BF16: what a GGUF file holds, and its tokenizer.

``python -m pulse_registry.demo.vllm.model MODEL FOLDER`` writes it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from pulse_registry.demo.policy import ChatCodec, empty_model, load_policy
from pulse_registry.demo.source import locate


def write_model(model: str, folder: Path) -> None:
    """Write the folder: what ``from_pretrained`` loads; ``model`` is a folder, a file or a package."""
    found = load_policy(locate(model), seed=0)
    assert isinstance(found.codec, ChatCodec)
    clean = empty_model(found.config, torch.bfloat16)  # one from a GGUF file refuses save_pretrained
    clean.load_state_dict(found.model.state_dict())
    clean.save_pretrained(folder)
    found.codec.tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    write_model(sys.argv[1], Path(sys.argv[2]))
