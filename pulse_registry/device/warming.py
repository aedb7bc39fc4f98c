"""Making the kernels for a model ready before its first push or pull."""

from __future__ import annotations

from collections.abc import Collection

import torch

from pulse_kernels import CELL_TYPES
from pulse_kernels.triton.warm import warm_up as warm_up_kernels
from pulse_registry.device.lane import Lane
from pulse_schemas import Dtype


def warm_up(dtypes: Collection[Dtype], device: torch.device) -> None:
    """Compile the kernels for tensors of these dtypes; those of F32 may be published as they are, or as BF16."""
    widths = {CELL_TYPES[dtype].width: CELL_TYPES[dtype] for dtype in sorted(dtypes)}
    if "F32" in dtypes:
        widths[CELL_TYPES["BF16"].width] = CELL_TYPES["BF16"]
    lane = Lane(device)
    with lane.work():
        for width, cell_type in sorted(widths.items()):
            warm_up_kernels(device, cell_type, rounded=width == CELL_TYPES["BF16"].width and "F32" in dtypes)
    lane.wait()
