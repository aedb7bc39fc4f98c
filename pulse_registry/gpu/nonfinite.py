"""Finding new cells that are NaN or infinite among changes on a device, where they are."""

from __future__ import annotations

from itertools import groupby

import torch

from pulse_kernels.gpu.changes import Changes
from pulse_kernels.nonfinite import NONFINITE_FROM, magnitude_mask


def first_nonfinite(changes: Changes) -> int | None:
    """Return the flat index of the first new cell that is NaN or infinite, None if there is none. Waits for it."""
    types, host = changes.tiles.types, changes.host_offsets
    first = 0
    for cell_type, run in groupby(types):
        last = first + len(list(run))
        begin, end = int(host[first]), int(host[last])
        first = last
        least = NONFINITE_FROM.get(cell_type.name)
        if least is None or begin == end:
            continue
        wrong = torch.nonzero((changes.new[begin:end] & magnitude_mask(cell_type)) >= least)[:1].flatten().tolist()
        if wrong:
            at = begin + wrong[0]
            group = int((host <= at).sum()) - 1
            return int(changes.tiles.starts[group]) + int(changes.index[at])
    return None
