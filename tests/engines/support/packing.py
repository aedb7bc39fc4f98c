"""What vLLM does with the weights of linear layers on this CPU."""

from __future__ import annotations

import torch
from vllm import _custom_ops


def packs_linear_layers() -> bool:
    """Whether it packs them and drops the weights, as it does where oneDNN multiplies BF16 on the CPU."""
    try:
        _custom_ops.create_onednn_mm(torch.zeros(64, 64, dtype=torch.bfloat16).t(), 32)
    except RuntimeError:
        return False
    return True
