"""Warm-up: compile the kernels for a model before its first push or pull."""

from __future__ import annotations

from collections.abc import Collection

import torch

from pulse_kernels import CELL_TYPES
from pulse_registry.gpu.trial import follow_step
from pulse_schemas import Dtype


def warm_up(dtypes: Collection[Dtype], device: torch.device) -> None:
    """Compile the kernels for tensors of these dtypes; those of F32 may be published as they are, or as BF16.

    Raises:
        RuntimeError: they give wrong results. Others: whatever compiling and launching raise.
    """
    bf16 = CELL_TYPES["BF16"]
    widths = {CELL_TYPES[dtype].width: CELL_TYPES[dtype] for dtype in sorted(dtypes)}
    if "F32" in dtypes:
        widths[bf16.width] = bf16
    for _, cell_type in sorted(widths.items()):
        follow_step(device, cell_type, rounded="F32" in dtypes and cell_type is bf16)
