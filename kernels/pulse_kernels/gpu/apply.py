"""Reading and writing changed cells through a tiling: gather, step, apply, undo; and copies of whole tilings.

A program serves one tile: its changes are a run of the list, so that their cells lie close together. Stores are values,
never additions: to do one again changes nothing. Addresses come from the tiling; no tensor is moved or made anew.
"""

from __future__ import annotations

import torch

from pulse_kernels.gpu.cells import UNSIGNED, load_rounded, load_words, order, unorder
from pulse_kernels.gpu.changes import Changes, no_cells
from pulse_kernels.gpu.language import jit, tl
from pulse_kernels.gpu.tiling import Tiles, Tiling

RUN = 128
"""Changes that a program moves at a time; a tile with 1 % of its cells changed has 82."""
SEARCHED = 128
"""Tiles whose changes one program looks up."""


@jit
def find_tiles(
    group: tl.tensor,
    first: tl.tensor,
    group_offsets: tl.tensor,
    index: tl.pointer_type,
    tile_offsets: tl.tensor,
    tiles: tl.int32,
    SEARCHED: tl.constexpr,
) -> None:
    """Write where the changes of each tile begin, by bisection among those of its group."""
    tile = tl.program_id(0).to(tl.int64) * SEARCHED + tl.arange(0, SEARCHED)
    some = tile < tiles
    number = tl.load(group + tile, mask=some, other=0).to(tl.int64)
    wanted = tl.load(first + tile, mask=some, other=0)
    low = tl.load(group_offsets + number, mask=some, other=0)
    high = tl.load(group_offsets + number + 1, mask=some, other=0)
    while tl.max(high - low, 0) > 0:
        middle = (low + high) // 2
        active = low < high
        below = active & (tl.load(index + middle, mask=active, other=0) < wanted)
        low = tl.where(below, middle + 1, low)
        high = tl.where(active & ~below, middle, high)
    tl.store(tile_offsets + tile, low, mask=some)


@jit
def gather_cells(
    address: tl.tensor,
    first: tl.tensor,
    tile_offsets: tl.tensor,
    index: tl.pointer_type,
    out: tl.tensor,
    RUN: tl.constexpr,
) -> None:
    """Read the cells at a tile's changes."""
    tile = tl.program_id(0).to(tl.int64)
    end = tl.load(tile_offsets + tile + 1)
    cells = tl.load(address + tile).to(tl.pointer_type(out.dtype.element_ty))
    base = tl.load(first + tile)
    for done in range(tl.load(tile_offsets + tile), end, RUN):
        k = done + tl.arange(0, RUN)
        some = k < end
        offset = tl.load(index + k, mask=some, other=0) - base
        tl.store(out + k, tl.load(cells + offset, mask=some), mask=some)


@jit
def scatter_cells(
    address: tl.tensor,
    first: tl.tensor,
    tile_offsets: tl.tensor,
    index: tl.pointer_type,
    values: tl.pointer_type,
    RUN: tl.constexpr,
) -> None:
    """Write the cells at a tile's changes."""
    tile = tl.program_id(0).to(tl.int64)
    end = tl.load(tile_offsets + tile + 1)
    cells = tl.load(address + tile).to(tl.pointer_type(values.dtype.element_ty))
    base = tl.load(first + tile)
    for done in range(tl.load(tile_offsets + tile), end, RUN):
        k = done + tl.arange(0, RUN)
        some = k < end
        offset = tl.load(index + k, mask=some, other=0) - base
        tl.store(cells + offset, tl.load(values + k, mask=some), mask=some)


@jit
def move_cells(
    group: tl.tensor,
    is_float: tl.tensor,
    tile_offsets: tl.tensor,
    old: tl.tensor,
    distance: tl.tensor,
    out: tl.tensor,
    RUN: tl.constexpr,
    CELL: tl.constexpr,
    BACK: tl.constexpr,
) -> None:
    """Write the patterns that lie ``distance`` after ``old``; with BACK, the distances from ``old`` to ``distance``."""
    tile = tl.program_id(0).to(tl.int64)
    end = tl.load(tile_offsets + tile + 1)
    signed = tl.load(is_float + tl.load(group + tile))
    for done in range(tl.load(tile_offsets + tile), end, RUN):
        k = done + tl.arange(0, RUN)
        some = k < end
        was = tl.load(old + k, mask=some, other=0).to(CELL, bitcast=True)
        step = tl.load(distance + k, mask=some, other=0).to(CELL, bitcast=True)
        at = order(was, signed)
        result = order(step, signed) - at if BACK else unorder(at + step, signed)
        tl.store(out + k, result.to(out.dtype.element_ty, bitcast=True), mask=some)


@jit
def copy_tiles(
    source: tl.tensor,
    wide: tl.tensor,
    target: tl.tensor,
    count: tl.tensor,
    TILE: tl.constexpr,
    CELL: tl.constexpr,
    PER_WORD: tl.constexpr,
    ROUNDED: tl.constexpr,
) -> None:
    """Copy a tile, rounding float32 memory to BF16."""
    tile = tl.program_id(0).to(tl.int64)
    cells = tl.load(count + tile)
    address, to = tl.load(source + tile), tl.load(target + tile)
    if ROUNDED:
        if tl.load(wide + tile) != 0:
            words = load_rounded(address, cells, TILE)
        else:
            words = load_words(address, cells, TILE, CELL, PER_WORD)
    else:
        words = load_words(address, cells, TILE, CELL, PER_WORD)
    word = tl.arange(0, TILE // PER_WORD)
    if (cells == TILE) & (to % 8 == 0):
        tl.store(to.to(tl.pointer_type(tl.uint64)) + word, words)
    else:
        for slot in tl.static_range(PER_WORD):
            offset = word * PER_WORD + slot
            part = (words >> (slot * (64 // PER_WORD))).to(CELL)
            tl.store(to.to(tl.pointer_type(CELL)) + offset, part, mask=offset < cells)


def locate(tiles: Tiles, index: torch.Tensor, group_offsets: torch.Tensor) -> torch.Tensor:
    """Return where the changes of each tile begin: int64[T + 1]; indices rise strictly within each group."""
    offsets = torch.empty(len(tiles) + 1, dtype=torch.int64, device=tiles.device)
    offsets[-1] = group_offsets[-1]
    if len(tiles):
        find_tiles[(-(-len(tiles) // SEARCHED),)](
            *(tiles.group, tiles.first, group_offsets, index, offsets, len(tiles)), SEARCHED=SEARCHED, num_warps=4
        )
    return offsets


def gather(tiling: Tiling, tile_offsets: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Return the cells at ``index``, which lies within the groups (its reader has checked that)."""
    out = no_cells(tiling.tiles, len(index))
    if len(index):
        gather_cells[(len(tiling.tiles),)](
            tiling.address, tiling.tiles.first, tile_offsets, index, out, RUN=RUN, num_warps=1
        )
    return out


def move(tiles: Tiles, tile_offsets: torch.Tensor, old: torch.Tensor, distance: torch.Tensor) -> torch.Tensor:
    """Return the patterns that lie ``distance`` after ``old`` in the order of each group's dtype."""
    return _moved(tiles, tile_offsets, old, distance, back=False)


def distance(changes: Changes) -> torch.Tensor:
    """Return order(new) - order(old) of each change, mod 2**bits."""
    return _moved(changes.tiles, changes.tile_offsets, changes.old, changes.new, back=True)


def scatter(tiling: Tiling, changes: Changes) -> None:
    """Store the new cells: one launch on the current stream, no allocation, no wait."""
    _store(tiling, changes, changes.new)


def undo(tiling: Tiling, changes: Changes) -> None:
    """Store the old cells, as ``scatter`` does the new ones."""
    _store(tiling, changes, changes.old)


def copy(source: Tiling, target: Tiling) -> None:
    """Copy all cells, rounding where the source's memory is float32."""
    tiles = target.tiles
    if len(tiles):
        copy_tiles[(len(tiles),)](
            *(source.address, source.wide, target.address, tiles.count),
            TILE=tiles.tile,
            CELL=UNSIGNED[tiles.width],
            PER_WORD=8 // tiles.width,
            ROUNDED=source.any_wide,
            num_warps=8,
        )


def _moved(
    tiles: Tiles, tile_offsets: torch.Tensor, old: torch.Tensor, other: torch.Tensor, *, back: bool
) -> torch.Tensor:
    out = torch.empty_like(old)
    if len(old):
        move_cells[(len(tiles),)](
            *(tiles.group, tiles.is_float, tile_offsets, old, other, out),
            RUN=RUN,
            CELL=UNSIGNED[tiles.width],
            BACK=back,
            num_warps=1,
        )
    return out


def _store(tiling: Tiling, changes: Changes, values: torch.Tensor) -> None:
    if len(changes):
        scatter_cells[(len(tiling.tiles),)](
            *(tiling.address, tiling.tiles.first, changes.tile_offsets, changes.index, values), RUN=RUN, num_warps=1
        )
