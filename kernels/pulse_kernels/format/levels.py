"""Coding of the levels of one group: small integers at some of its cells, as one byte string that is decoded alone.

It is the ``class`` coding of a group (``format.group``), whose classes are those of the BF16 weights that all members
of a round hold, and whose values are the levels, as distances from 0 of I16 cells.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from pulse_kernels.cells import CELL_TYPES, Cells, Index
from pulse_kernels.errors import CodecError
from pulse_kernels.format.gap_tables import parameters_of
from pulse_kernels.format.group import GROUP_BYTES, choose_classes
from pulse_kernels.format.group_bytes import join, split
from pulse_kernels.protocol import Backend, Coded, Levels

_WEIGHT: Final = CELL_TYPES["BF16"]
_LEVEL: Final = CELL_TYPES["I16"]


def encode_levels(backend: Backend, weights: list[Cells], index: Index, levels: Levels) -> bytes:
    """Code the levels of a group.

    Args:
        backend: computes.
        weights: uint16, the group's BF16 weights, all of them, in spans that lie end to end.
        index: uint32, strictly increasing positions among them, not empty.
        levels: int16, none of them 0.

    Returns:
        The same bytes for the same arguments, on every backend.
    """
    first, counts = choose_classes(backend.count_classes(backend.gather_spans(weights, index), _WEIGHT))
    ranks, kinds, populations = backend.class_ranks(weights, index, _WEIGHT, first, len(counts))
    parameters = parameters_of(counts, populations)
    new = levels.view(np.uint16)
    parts = backend.encode_changes(_LEVEL, ranks, kinds, counts, parameters, np.zeros_like(new), new)
    return join(Coded(first, counts, parameters, *parts))


def decode_levels(backend: Backend, weights: list[Cells], count: int, data: bytes | memoryview) -> tuple[Index, Levels]:
    """Invert ``encode_levels``: return (index, levels).

    Args:
        backend: computes.
        weights: as they were when the levels were coded.
        count: how many levels there are; memory is bounded by it before anything is allocated.
        data: the coded group.

    Raises:
        CodecError: the bytes break a rule of the format.
        RankError: they don't fit these weights.
    """
    cells = sum(map(len, weights))
    if not 0 < count <= cells <= GROUP_BYTES // _WEIGHT.width:
        raise CodecError(f"{count} levels of {cells} cells are not possible in a group")
    coded = split(True, count, data)
    places, steps = backend.decode_changes(coded, _LEVEL, cells)
    index, source, _ = backend.class_select(weights, coded.counts, places, _WEIGHT, coded.first, len(coded.counts))
    return index, steps[source].view(np.int16)
