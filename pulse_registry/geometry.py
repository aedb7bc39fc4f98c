"""Where each tensor of a layout lies in the flat cell space, and how that space is cut into groups.

Groups are fixed by the layout alone: the cells of one dtype, in layout order, are cut every 16 MiB. So the groups of
all patches of a layout line up, and merging, inverting and partial reading go group by group.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pulse_kernels import CELL_TYPES, GROUP_BYTES, CellType
from pulse_schemas import Layout


@dataclass(frozen=True, slots=True)
class Span:
    """Cells ``start`` to ``stop`` of the layout's tensor number ``tensor``."""

    tensor: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Group:
    """``cells`` consecutive cells of one dtype from flat index ``start`` on, as the spans of tensors that they are."""

    number: int
    start: int
    cells: int
    cell_type: CellType
    spans: tuple[Span, ...]


class Geometry:
    """Offsets and groups of a layout.

    Attributes:
        layout: what it was made from.
        sizes: cells of each tensor.
        cells, nbytes: totals.
        groups: all groups, in flat order; each holds at least one cell.
        id: the layout's id.
    """

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.id = layout.id
        self.sizes = [math.prod(tensor.shape) for tensor in layout.tensors]
        self.cells = sum(self.sizes)
        self.nbytes = sum(map(self.tensor_bytes, range(len(self.sizes))))
        self.groups = _groups(layout, self.sizes)

    def tensor_bytes(self, number: int) -> int:
        """Return the size of one tensor."""
        return self.sizes[number] * CELL_TYPES[self.layout.tensors[number].dtype].width


def _groups(layout: Layout, sizes: list[int]) -> tuple[Group, ...]:
    groups: list[Group] = []
    flat = 0
    spans: list[Span] = []
    held = 0
    dtype = layout.tensors[0].dtype

    def close() -> None:
        nonlocal held
        if held:
            groups.append(Group(len(groups), flat - held, held, CELL_TYPES[dtype], tuple(spans)))
        spans.clear()
        held = 0

    for number, (tensor, size) in enumerate(zip(layout.tensors, sizes, strict=True)):
        if tensor.dtype != dtype:
            close()
            dtype = tensor.dtype
        capacity = GROUP_BYTES // CELL_TYPES[dtype].width
        done = 0
        while done < size:
            take = min(size - done, capacity - held)
            spans.append(Span(number, done, done + take))
            done, held, flat = done + take, held + take, flat + take
            if held == capacity:
                close()
    close()
    return tuple(groups)
