"""Coding of one group: changes of up to 16 MiB of cells as one byte string that is checked and decoded alone.

    offset  size  field (little-endian)
    0       1     K: classes; 0 for ``gap``
    1       1     first class; 0 for ``gap``
    2       2     t: bytes of the tables
    4       5K    a class: changed cells (4), gap parameter (1)
    4+5K    t     tables (``levels``); then a zero byte if this ends at an odd offset
            2n    words of each chunk of 2,048 changes, n of them
                  the chunks' words (``rans``), 2 bytes each

``gap`` counts the cells between changed cells; ``class`` codes class by class of the old cells, counts the cells of the
same class between changed ones, and codes distances outward: as the old cell's magnitude sees them.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from pulse_kernels.cells import Cells, CellType, Index
from pulse_kernels.errors import CodecError
from pulse_kernels.format.gap_tables import parameters_of
from pulse_kernels.format.group_bytes import LAST_CLASS, join, split
from pulse_kernels.protocol import Advanced, Backend, Coded, Lanes
from pulse_kernels.spans import Spans

GROUP_BYTES = 16 * 2**20
"""Cells of one group take at most this many bytes."""
CoderName = Literal["gap", "class"]
_USUAL_CLASSES = 20
"""More of them cost more in tables than they save, on recorded steps."""
_CHANGES_A_CLASS = 256
"""Fewer do not pay for a table."""


def encode_group(
    backend: Backend,
    coder: CoderName,
    cell_type: CellType,
    cells: int,
    index: Index,
    old: Cells,
    new: Cells,
    base: Spans | None = None,
) -> bytes:
    """Code the changes of a group of ``cells`` cells.

    Args:
        backend: computes.
        coder: ``gap`` or ``class``; the latter needs ``base``.
        cell_type: of all cells of the group.
        cells: number of cells, at most GROUP_BYTES / width.
        index: uint32, strictly increasing positions below ``cells``, not empty.
        old: the changed cells as they were.
        new: as they are now, each another pattern than before.
        base: all cells of the group; those at ``index`` may be old or new ones.

    Returns:
        The same bytes for the same arguments, on every backend.
    """
    if coder == "gap":
        counts = np.array([len(index)], dtype=np.uint32)
        parts = backend.encode_changes(cell_type, index, None, counts, None, old, new)
        return join(Coded(0, counts, None, *parts))
    if base is None:
        raise ValueError("the class coder needs the base cells")
    first, counts = choose_classes(backend.count_classes(old, cell_type))
    ranks, kinds, populations = backend.class_ranks(base, index, old, cell_type, first, len(counts))
    parameters = parameters_of(counts, populations)
    parts = backend.encode_changes(cell_type, ranks, kinds, counts, parameters, old, new)
    return join(Coded(first, counts, parameters, *parts))


def decode_group(
    backend: Backend,
    coder: CoderName,
    cell_type: CellType,
    cells: int,
    changed: int,
    data: bytes | memoryview,
    base: list[Cells] | None = None,
) -> tuple[Index, Cells]:
    """Invert ``encode_group``: return (index, distance), the distance from old to new in the order of the dtype.

    Memory is bounded by ``changed``, which must be at most ``cells``, before anything is allocated.

    Raises:
        CodecError: the bytes break a rule of the format.
        RankError: (``class``) they don't fit these base cells.
    """
    coded = _split(coder, cell_type, cells, changed, data)
    if coder == "gap":
        return backend.decode_changes(coded, cell_type, cells)
    if base is None:
        raise ValueError("the class coder needs the base cells")
    index, distance, _ = _selected(backend, coded, cell_type, cells, base)
    return index, distance


def move_group(
    backend: Backend, cell_type: CellType, cells: Cells, changed: int, data: bytes | memoryview, start: int
) -> tuple[Lanes, Lanes]:
    """Move the cells of a group, in place, by its changes that are coded by ``gap``, as they are decoded.

    Returns:
        The sums of h over the changed cells before and after; ``start`` is the flat index of the first cell.

    Raises:
        CodecError: the bytes break a rule of the format; some cells are moved.
    """
    return backend.move_coded(_split("gap", cell_type, len(cells), changed, data), cells, cell_type, start)


def step_group(
    backend: Backend,
    coder: CoderName,
    cell_type: CellType,
    cells: int,
    changed: int,
    data: bytes | memoryview,
    base: Spans,
    start: int,
) -> Advanced:
    """Return what the changes of a group make of its cells, which are only read and looked at once each.

    Args:
        backend: computes.
        coder: of the group.
        cell_type: of all cells.
        cells: how many of them.
        changed: how many changes there are.
        data: the coded group.
        base: the cells, all of them.
        start: the flat index of the first cell.

    Returns:
        Index, old and new cells, and the sums of h over the old and over the new ones.

    Raises:
        CodecError, RankError: as ``decode_group``.
    """
    coded = _split(coder, cell_type, cells, changed, data)
    if coder == "gap":
        return backend.step_coded(coded, base, cell_type, start)
    index, distance, old = _selected(backend, coded, cell_type, cells, base)
    new = backend.move(old, distance, cell_type)
    return index, old, new, *backend.digest_changes(index, old, new, start)


def _selected(
    backend: Backend, coded: Coded, cell_type: CellType, cells: int, base: Spans
) -> tuple[Index, Cells, Cells]:
    """Decode changes that are coded by ``class``: return (index, distance, old)."""
    ranks, steps = backend.decode_changes(coded, cell_type, cells)
    index, source, old = backend.class_select(base, coded.counts, ranks, cell_type, coded.first, len(coded.counts))
    return index, backend.inward(old, source, steps, cell_type), old


def _split(coder: CoderName, cell_type: CellType, cells: int, changed: int, data: bytes | memoryview) -> Coded:
    if not 0 < changed <= cells <= GROUP_BYTES // cell_type.width:
        raise CodecError(f"{changed} changed cells of {cells} is not possible in a group")
    return split(coder == "class", changed, data)


def choose_classes(found: Index) -> tuple[int, Index]:
    """Return (first class, changed cells of each class) from the number of changed cells of each class value.

    As many classes as pay for their tables, and the window of them that holds the most changed cells; cells of lower
    and higher values belong to its first and last class.
    """
    (present,) = found.nonzero()
    spread = int(present[-1] - present[0]) + 1
    sums = np.zeros(LAST_CLASS + 2, np.int64)
    found.cumsum(out=sums[1:])
    classes = min(_USUAL_CLASSES, 1 + int(sums[-1]) // _CHANGES_A_CLASS, spread)
    first = int((sums[classes:] - sums[: LAST_CLASS + 2 - classes]).argmax())
    edges = sums[first : first + classes + 1]
    edges[0], edges[-1] = 0, sums[-1]
    return first, (edges[1:] - edges[:-1]).astype(np.uint32)
