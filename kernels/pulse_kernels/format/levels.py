"""Coding of what is sent of one group: levels at some of its cells, as one byte string that is decoded alone.

It is the ``class`` coding of a group (``format.group``), whose classes are those of the BF16 weights that all members
of a round hold, and whose values are the levels, as distances from 0 of I16 cells. Float32 values, where these are
sent, are distances from 0 of F32 cells.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from pulse_kernels.cells import CELL_TYPES, Cells, Index
from pulse_kernels.errors import CodecError
from pulse_kernels.format.gap_tables import parameters_of
from pulse_kernels.format.group import GROUP_BYTES, choose_classes
from pulse_kernels.format.group_bytes import join, split
from pulse_kernels.protocol import Backend, Coded, Floats, Levels, Totals

_WEIGHT: Final = CELL_TYPES["BF16"]
_LEVEL: Final = np.dtype(np.int16)
_CELLS: Final = {
    _LEVEL: CELL_TYPES["I16"],
    np.dtype(np.int32): CELL_TYPES["I32"],
    np.dtype(np.int64): CELL_TYPES["I64"],
    np.dtype(np.float32): CELL_TYPES["F32"],
}
Sendable = Levels | Floats | Totals | npt.NDArray[np.int32]
"""Levels of one member, totals of a round, in as many bits as they take, or float32 values."""


def encode_levels(backend: Backend, weights: list[Cells], index: Index, old: Cells, levels: Sendable) -> bytes:
    """Code the levels, or the values, of a group.

    Args:
        backend: computes.
        weights: uint16, the group's BF16 weights, all of them, in spans that lie end to end.
        index: uint32, strictly increasing positions among them, not empty.
        old: the weights there.
        levels: int16, int32, int64 or float32, none of them 0.

    Returns:
        The same bytes for the same arguments, on every backend.
    """
    first, counts = choose_classes(backend.count_classes(old, _WEIGHT))
    ranks, kinds, populations = backend.class_ranks(weights, index, old, _WEIGHT, first, len(counts))
    parameters = parameters_of(counts, populations)
    cell_type = _CELLS[levels.dtype]
    new = levels.view(cell_type.dtype)
    parts = backend.encode_changes(cell_type, ranks, kinds, counts, parameters, np.zeros_like(new), new)
    return join(Coded(first, counts, parameters, *parts))


def decode_levels(
    backend: Backend, weights: list[Cells], count: int, data: bytes | memoryview, dtype: np.dtype[Any] = _LEVEL
) -> tuple[Index, Cells, Sendable]:
    """Invert ``encode_levels``: return (index, old, levels).

    Args:
        backend: computes.
        weights: as they were when the levels were coded.
        count: how many levels there are; memory is bounded by it before anything is allocated.
        data: the coded group.
        dtype: of what was coded: int16, int32, int64 or float32.

    Raises:
        CodecError: the bytes break a rule of the format.
        RankError: they don't fit these weights.
    """
    cells = sum(map(len, weights))
    if not 0 < count <= cells <= GROUP_BYTES // _WEIGHT.width:
        raise CodecError(f"{count} levels of {cells} cells are not possible in a group")
    coded = split(True, count, data)
    cell_type = _CELLS[dtype]
    places, steps = backend.decode_changes(coded, cell_type, cells)
    index, source, old = backend.class_select(weights, coded.counts, places, _WEIGHT, coded.first, len(coded.counts))
    distance = backend.gather(steps, source)
    return index, old, backend.move(np.zeros_like(distance), distance, cell_type).view(dtype)
