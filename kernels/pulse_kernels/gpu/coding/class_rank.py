"""Ranks of changed cells among the cells of their class, for all groups at once.

A tile's cells are counted by class (one pass over the base), the counts are summed up over the tiles of a group, and
then only tiles with changes are read again, for the ranks within them. Within a tile, rows of ``ROW`` cells are counted
first: a changed cell's rank is then what lies before its tile, before its row, and before it in the row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from pulse_kernels.gpu.cells import UNSIGNED, bits_set
from pulse_kernels.gpu.changes import Changes
from pulse_kernels.gpu.coding.class_rows import (
    ROW,
    before_bit,
    bit_of,
    class_planes,
    class_table,
    count_in,
    of_class,
    planes_at,
)
from pulse_kernels.gpu.language import jit, tl
from pulse_kernels.gpu.tiling import Tiles, Tiling
from pulse_kernels.gpu.transfer import upload

CLASSES = 32
"""Room for classes in the tables on the device: the format's most."""
ITEMS = 128
"""Changes whose rows a program looks at together: one a thread."""
WARPS = 4
"""Of a program that takes on a tile: one row a thread."""
SCAN = 64
"""Rows of counts that are summed up at a time."""


@jit
def count_classes(
    address: tl.tensor,
    count: tl.tensor,
    group: tl.tensor,
    classing: tl.tensor,
    counts: tl.tensor,
    ROWS: tl.constexpr,
    CELL: tl.constexpr,
) -> None:
    """Write a tile's cells by class."""
    tile = tl.program_id(0).to(tl.int64)
    own = classing + tl.load(group + tile) * 4
    p0, p1, p2, p3, p4, known = class_planes(tl.load(address + tile), tl.load(count + tile), own, ROWS, CELL)
    words = tl.sum(class_table(p0, p1, p2, p3, p4, known), 1)
    at = counts + tile * 32 + tl.arange(0, 16)
    tl.store(at, (words & 0xFFFF).to(tl.int32))
    tl.store(at + 16, (words >> 16).to(tl.int32))


@jit
def scan_counts(
    counts: tl.tensor,
    offsets: tl.tensor,
    totals: tl.tensor,
    starts: tl.tensor,
    SCAN: tl.constexpr,
) -> None:
    """Replace the counts of a group's rows by the sums of those before them; write the totals, and their sums."""
    group = tl.program_id(0).to(tl.int64)
    end = tl.load(offsets + group + 1)
    kind = tl.arange(0, 32)
    carry = tl.zeros((32,), tl.int32)
    for begin in range(tl.load(offsets + group), end, SCAN):
        row = begin + tl.arange(0, SCAN)
        at = counts + row[:, None] * 32 + kind[None, :]
        block = tl.load(at, mask=row[:, None] < end, other=0)
        tl.store(at, tl.cumsum(block, 0) - block + carry[None, :], mask=row[:, None] < end)
        carry += tl.sum(block, 0)
    tl.store(totals + group * 32 + kind, carry)
    tl.store(starts + group * 32 + kind, tl.cumsum(carry, 0) - carry)


@jit
def rank_changes(
    address: tl.tensor,
    count: tl.tensor,
    group: tl.tensor,
    first: tl.tensor,
    classing: tl.tensor,
    counts: tl.tensor,
    tile_offsets: tl.tensor,
    index: tl.pointer_type,
    ranks: tl.tensor,
    ROWS: tl.constexpr,
    CELL: tl.constexpr,
    ITEMS: tl.constexpr,
) -> None:
    """Write ``class << 24 | rank`` of a tile's changes."""
    tile = tl.program_id(0).to(tl.int64)
    begin = tl.load(tile_offsets + tile)
    total = (tl.load(tile_offsets + tile + 1) - begin).to(tl.int32)
    if total > 0:
        own = classing + tl.load(group + tile) * 4
        p0, p1, p2, p3, p4, known = class_planes(tl.load(address + tile), tl.load(count + tile), own, ROWS, CELL)
        counted = class_table(p0, p1, p2, p3, p4, known)
        before = tl.reshape(tl.cumsum(counted, 1) - counted, (16 * ROWS,))
        start = tl.load(first + tile)
        for done in range(0, total, ITEMS):
            k = done + tl.arange(0, ITEMS)
            some = k < total
            place = tl.where(some, tl.load(index + begin + k, mask=some, other=0) - start, 0)
            row, half, bit = place // 64, (place // 32) % 2, place % 32
            q0, q1, q2 = planes_at(p0, row), planes_at(p1, row), planes_at(p2, row)
            q3, q4 = planes_at(p3, row), planes_at(p4, row)
            kind = bit_of(q0, half, bit) | (bit_of(q1, half, bit) << 1) | (bit_of(q2, half, bit) << 2)
            kind = kind | (bit_of(q3, half, bit) << 3) | (bit_of(q4, half, bit) << 4)
            alike = of_class(kind, q0, q1, q2, q3, q4) & before_bit(half, bit)
            near = tl.sum(bits_set(alike), 0).to(tl.int32)
            passed = count_in(tl.gather(before, (kind & 15) * ROWS + row, 0), kind)
            rank = tl.load(counts + tile * 32 + kind, mask=some, other=0) + passed + near
            tl.store(ranks + begin + k, (kind << 24) | rank, mask=some)


@dataclass(frozen=True, slots=True)
class Classing:
    """How each group's cells are classed: int32 [G, 4] on the device: shift, mask, first and last class."""

    table: torch.Tensor

    @classmethod
    def of(cls, tiles: Tiles, first: npt.NDArray[Any], classes: npt.NDArray[Any]) -> Classing:
        """Return it for groups whose classes are ``classes[g]`` from ``first[g]`` on."""
        table = np.zeros((tiles.groups, 4), np.int64)
        table[:, :2] = [(t.class_shift, t.class_mask) for t in tiles.types]
        table[:, 2] = first
        table[:, 3] = first + classes - 1
        (there,) = upload(tiles.device, table)
        return cls(there.view(-1, 4).to(torch.int32))


@dataclass(frozen=True, slots=True)
class ClassCounts:
    """Cells by class.

    Attributes:
        before, int32 [T, 32]: cells of each class in the tiles of the group before each tile.
        population, int32 [G, 32]: in the group.
    """

    before: torch.Tensor
    population: torch.Tensor


def scan(counts: torch.Tensor, offsets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Sum [n, 32] counts up within groups, in place, exclusive; return (totals, exclusive sums of totals), [G, 32]."""
    groups = len(offsets) - 1
    totals = torch.empty((groups, CLASSES), dtype=torch.int32, device=counts.device)
    starts = torch.empty_like(totals)
    if groups:
        scan_counts[(groups,)](counts, offsets, totals, starts, SCAN=SCAN)
    return totals, starts


def rows_of(tiles: Tiles) -> int:
    """Return the rows of ROW cells of a tile.

    Raises:
        ValueError: the tiles are so large that a count does not fit 16 bits.
    """
    if tiles.tile >= 2**16:
        raise ValueError(f"tiles of {tiles.tile} cells are too large to count classes in: 2^15 at most")
    return max(1, tiles.tile // ROW)


def class_counts(base: Tiling, classing: Classing) -> ClassCounts:
    """Count the base's cells by class; one pass over them."""
    tiles = base.tiles
    before = torch.empty((len(tiles), CLASSES), dtype=torch.int32, device=tiles.device)
    if len(tiles):
        count_classes[(len(tiles),)](
            *(base.address, tiles.count, tiles.group, classing.table, before),
            ROWS=rows_of(tiles),
            CELL=UNSIGNED[tiles.width],
            num_warps=WARPS,
        )
    return ClassCounts(before, scan(before, tiles.offsets)[0])


def class_ranks(base: Tiling, changes: Changes, classing: Classing, counts: ClassCounts) -> torch.Tensor:
    """Return ``class << 24 | rank`` of each change, int32, in the changes' order.

    Args:
        base: the old cells.
        changes: over the same tiles.
        classing: of the groups.
        counts: ``class_counts`` of the same.
    """
    tiles = base.tiles
    ranks = torch.empty(len(changes), dtype=torch.int32, device=tiles.device)
    if len(tiles) and len(changes):
        rank_changes[(len(tiles),)](
            *(base.address, tiles.count, tiles.group, tiles.first, classing.table, counts.before),
            *(changes.tile_offsets, changes.index, ranks),
            ROWS=rows_of(tiles),
            CELL=UNSIGNED[tiles.width],
            ITEMS=ITEMS,
            num_warps=WARPS,
        )
    return ranks
