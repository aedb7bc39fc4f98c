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

from pulse_kernels.gpu.cells import UNSIGNED, load_tile
from pulse_kernels.gpu.changes import Changes
from pulse_kernels.gpu.language import jit, tl
from pulse_kernels.gpu.tiling import Tiles, Tiling
from pulse_kernels.gpu.transfer import upload

CLASSES = 32
"""Room for classes in the tables on the device: the format's most."""
ROW = 32
"""Cells of a row: what is looked at for each change. Shorter rows make a tile's table dear, longer ones the look."""
ITEMS = 128
"""Changes whose rows a program looks at together."""
WARPS = 8
"""Of a program that takes on a tile, or a piece to sort."""
SCAN = 64
"""Rows of counts that are summed up at a time."""


@jit
def class_of(cells: tl.tensor, shift: tl.tensor, mask: tl.tensor, first: tl.tensor, last: tl.tensor) -> Any:
    """Return the class of unsigned patterns, int32 from 0 on."""
    exponent = ((cells >> shift) & mask).to(tl.int32)
    return tl.minimum(tl.maximum(exponent, first), last) - first


@jit
def one_in(kind: tl.tensor) -> Any:
    """Return words that count one of a class: uint64 of four counts, of classes ``4 w`` to ``4 w + 3`` in word w."""
    return tl.full(kind.shape, 1, tl.uint64) << (16 * (kind & 3)).to(tl.uint64)


@jit
def count_in(word: tl.tensor, kind: tl.tensor) -> Any:
    """Return a class's count in the word that has it: int32, below 2**16."""
    return ((word >> (16 * (kind & 3)).to(tl.uint64)) & 0xFFFF).to(tl.int32)


@jit
def row_counts(kind: tl.tensor, ROWS: tl.constexpr, ROW: tl.constexpr) -> Any:
    """Count classes by row of ROW cells: words (see ``one_in``) [8, ROWS] of ``kind`` [ROWS * ROW].

    Within a row counts fit bytes, and are added as such, in registers. A histogram of so many bins is unrolled by
    older releases of Triton.
    """
    rows = tl.reshape(kind, (ROWS, ROW))
    one = tl.full(rows.shape, 1, tl.uint32) << (8 * (rows & 3)).to(tl.uint32)
    word = tl.arange(0, 8)[:, None]
    found = tl.zeros((8, ROWS), tl.uint32)
    for four in tl.static_range(8):
        counts = tl.sum(tl.where((rows >> 2) == four, one, 0), 1)
        found = tl.where(word == four, counts[None, :], found)
    wide = found.to(tl.uint64)
    wide = (wide | (wide << 16)) & 0x0000FFFF0000FFFF
    return (wide | (wide << 8)) & 0x00FF00FF00FF00FF


@jit
def count_before(table: tl.tensor, row: tl.tensor, kind: tl.tensor, ROWS: tl.constexpr) -> Any:
    """Return the counts of classes in rows of a table of words [8 * ROWS], which ends up in shared memory."""
    return count_in(tl.gather(table, (kind >> 2) * ROWS + row, 0), kind)


@jit
def count_kinds_of(kind: tl.tensor, unused: tl.tensor) -> Any:
    """Count classes: int32 [32], but for ``unused`` items, which say 0."""
    return tl.histogram(kind, 32) - tl.where(tl.arange(0, 32) == 0, unused, 0)


@jit
def tile_kinds(
    address: tl.tensor,
    cells: tl.tensor,
    classing: tl.tensor,
    TILE: tl.constexpr,
    CELL: tl.constexpr,
) -> Any:
    """Return the class of each cell of a tile, by its group's row of ``classing``; 0 past the tile's end."""
    shift, mask, low, high = tl.load(classing), tl.load(classing + 1), tl.load(classing + 2), tl.load(classing + 3)
    found = class_of(load_tile(address, cells, TILE, CELL), shift, mask, low, high)
    return tl.where(tl.arange(0, TILE) < cells, found, 0)


@jit
def count_classes(
    address: tl.tensor,
    count: tl.tensor,
    group: tl.tensor,
    classing: tl.tensor,
    counts: tl.tensor,
    TILE: tl.constexpr,
    CELL: tl.constexpr,
) -> None:
    """Write a tile's cells by class."""
    tile = tl.program_id(0).to(tl.int64)
    owner = tl.load(group + tile)
    cells = tl.load(count + tile)
    kind = tile_kinds(tl.load(address + tile), cells, classing + owner * 4, TILE, CELL)
    tl.store(counts + tile * 32 + tl.arange(0, 32), count_kinds_of(kind, TILE - cells))


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
    TILE: tl.constexpr,
    CELL: tl.constexpr,
    ROW: tl.constexpr,
    ITEMS: tl.constexpr,
) -> None:
    """Write ``class << 24 | rank`` of a tile's changes; ``counts`` are those of the tiles before it."""
    ROWS: tl.constexpr = TILE // ROW
    tile = tl.program_id(0).to(tl.int64)
    begin = tl.load(tile_offsets + tile)
    total = tl.load(tile_offsets + tile + 1) - begin
    if total > 0:
        start, cells, own = tl.load(address + tile), tl.load(count + tile), classing + tl.load(group + tile) * 4
        rows = row_counts(tile_kinds(start, cells, own, TILE, CELL), ROWS, ROW)
        before = tl.reshape(tl.cumsum(rows, 1) - rows, (8 * ROWS,))
        shift, mask, low, high = tl.load(own), tl.load(own + 1), tl.load(own + 2), tl.load(own + 3)
        pointer = start.to(tl.pointer_type(CELL))
        column = tl.arange(0, ROW)[None, :]
        for done in range(0, total, ITEMS):
            k = done + tl.arange(0, ITEMS)
            some = k < total
            place = tl.load(index + begin + k, mask=some, other=0) - tl.load(first + tile)
            place = tl.where(some, place, 0)
            row = place // ROW
            near_place = row[:, None] * ROW + column
            near = tl.load(pointer + near_place, mask=near_place < cells, other=0)
            kind = class_of(tl.load(pointer + place, mask=some, other=0), shift, mask, low, high)
            alike = (class_of(near, shift, mask, low, high) == kind[:, None]) & (near_place < place[:, None])
            rank = (
                tl.load(counts + tile * 32 + kind)
                + count_before(before, row, kind, ROWS)
                + tl.sum(alike.to(tl.int32), 1)
            )
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


def row_of(tiles: Tiles) -> int:
    """Return the cells of a row of these tiles.

    Raises:
        ValueError: the tiles are too small, or so large that a count does not fit 16 bits.
    """
    if tiles.tile < 16:
        raise ValueError(f"tiles of {tiles.tile} cells are too small to count classes in: 16 at least")
    if tiles.tile >= 2**16:
        raise ValueError(f"tiles of {tiles.tile} cells are too large to count classes in: 2^15 at most")
    return min(ROW, tiles.tile)


def class_counts(base: Tiling, classing: Classing) -> ClassCounts:
    """Count the base's cells by class; one pass over them."""
    tiles = base.tiles
    before = torch.empty((len(tiles), CLASSES), dtype=torch.int32, device=tiles.device)
    if len(tiles):
        count_classes[(len(tiles),)](
            *(base.address, tiles.count, tiles.group, classing.table, before),
            TILE=tiles.tile,
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
            TILE=tiles.tile,
            CELL=UNSIGNED[tiles.width],
            ROW=row_of(tiles),
            ITEMS=ITEMS,
            num_warps=WARPS,
        )
    return ranks
