"""Which tensors of a worker's weights differ from those of a version that is at hand."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from pulse_registry.pull.destination import Destination

_CELLS = 1 << 22
"""Cells that are compared at a time."""


def differing(held: Destination, wanted: Destination) -> Iterator[str]:
    """Yield the names of the tensors, of one layout, that are not the same bits in both; in the order of the layout."""
    for number, tensor in enumerate(held.geometry.layout.tensors):
        cells = math.prod(tensor.shape)
        parts = (slice(at, min(at + _CELLS, cells)) for at in range(0, cells, _CELLS))
        if not all(np.array_equal(held.cells(number, part), wanted.cells(number, part)) for part in parts):
            yield tensor.name
