"""State digest on the device: of whole tilings in one memory pass, and of changes alone (see ``digest_tables``).

The sum over a group is linear, so it can be taken the other way round: for each of the 1,024 places of a block, first
the sum over blocks of multiplier * limb, and at the end of the tile one product with the place's coefficient. So a cell
costs two multiply-adds a limb and lane, and no coefficient is loaded in the loop. Sums are mod 2**64: in any order, the
same.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch

from pulse_kernels.format.digest import BLOCK, GOLDEN, LANE_SEEDS, MASK64, coefficients
from pulse_kernels.gpu.cells import UNSIGNED
from pulse_kernels.gpu.changes import Changes
from pulse_kernels.gpu.language import constant, jit, tl
from pulse_kernels.gpu.tiling import Tiling

RUN = 128
"""Changes that a program looks at a time."""

_BLOCK = constant(BLOCK)
_GOLDEN = constant(GOLDEN)
_SEED_0, _SEED_1 = (constant(seed) for seed in LANE_SEEDS)


@jit
def mix64(x: tl.tensor) -> Any:
    """See ``digest_tables.mix64``; on uint64."""
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return x ^ (x >> 31)


@jit
def multiplier(number: tl.tensor, SEED: tl.constexpr) -> Any:
    """See ``digest_tables.multiplier``; of uint64 block-limb numbers."""
    return mix64((number + 1) * _GOLDEN + SEED) | 1


@jit
def add_block(low: tl.tensor, high: tl.tensor, limb: tl.tensor, scale: tl.tensor) -> Any:
    """Add limb (uint32, below 2**16) times scale (uint64) to sums whose upper halves gather apart: 32-bit products."""
    low += limb.to(tl.uint64) * (scale & 0xFFFFFFFF)
    high += limb * (scale >> 32).to(tl.uint32)
    return low, high


@jit
def digest_tiles(
    address: tl.tensor,
    count: tl.tensor,
    group: tl.tensor,
    flat: tl.tensor,
    table: tl.tensor,
    sums: tl.tensor,
    TILE: tl.constexpr,
    CELL: tl.constexpr,
    LIMBS: tl.constexpr,
) -> None:
    """Add a tile's sums of h to its group's."""
    tile = tl.program_id(0).to(tl.int64)
    cells = tl.load(count + tile)
    begin = tl.load(flat + tile)
    source = tl.load(address + tile)
    number = tl.load(group + tile).to(tl.int64)
    skipped = (begin % _BLOCK).to(tl.int32)
    place = tl.arange(0, _BLOCK)
    low_0, low_1 = tl.zeros([_BLOCK], tl.uint64), tl.zeros([_BLOCK], tl.uint64)
    high_0, high_1 = tl.zeros([_BLOCK], tl.uint32), tl.zeros([_BLOCK], tl.uint32)
    if (cells == TILE) & (skipped == 0) & (source % 16 == 0) & (TILE >= _BLOCK):
        pointer = tl.multiple_of(source.to(tl.pointer_type(CELL)), 16)
        for step in tl.static_range(TILE // _BLOCK):
            values = tl.load(pointer + step * _BLOCK + place)
            for limb in tl.static_range(LIMBS):
                part = (values >> (16 * limb)).to(tl.uint32) & 0xFFFF
                k = ((begin // _BLOCK + step) * 4 + limb).to(tl.uint64)
                low_0, high_0 = add_block(low_0, high_0, part, multiplier(k, _SEED_0))
                low_1, high_1 = add_block(low_1, high_1, part, multiplier(k, _SEED_1))
    else:
        for step in range((skipped + cells + _BLOCK - 1) // _BLOCK):
            offset = step * _BLOCK - skipped + place
            inside = (offset >= 0) & (offset < cells)
            values = tl.load(source.to(tl.pointer_type(CELL)) + offset, mask=inside, other=0)
            for limb in tl.static_range(LIMBS):
                part = (values >> (16 * limb)).to(tl.uint32) & 0xFFFF
                k = ((begin // _BLOCK + step) * 4 + limb).to(tl.uint64)
                low_0, high_0 = add_block(low_0, high_0, part, multiplier(k, _SEED_0))
                low_1, high_1 = add_block(low_1, high_1, part, multiplier(k, _SEED_1))
    scale_0 = tl.load(table + place).to(tl.uint32, bitcast=True).to(tl.uint64)
    scale_1 = tl.load(table + _BLOCK + place).to(tl.uint32, bitcast=True).to(tl.uint64)
    total_0 = (low_0 + (high_0.to(tl.uint64) << 32)) * scale_0
    total_1 = (low_1 + (high_1.to(tl.uint64) << 32)) * scale_1
    tl.atomic_add(sums + number * 2, tl.sum(total_0, 0).to(tl.int64, bitcast=True), sem="relaxed")
    tl.atomic_add(sums + number * 2 + 1, tl.sum(total_1, 0).to(tl.int64, bitcast=True), sem="relaxed")


@jit
def digest_changed(
    group: tl.tensor,
    starts: tl.tensor,
    tile_offsets: tl.tensor,
    index: tl.pointer_type,
    old: tl.pointer_type,
    new: tl.pointer_type,
    table: tl.tensor,
    sums: tl.tensor,
    RUN: tl.constexpr,
    CELL: tl.constexpr,
    LIMBS: tl.constexpr,
) -> None:
    """Add the sums of h over the old and over the new cells of a tile's changes to its group's."""
    tile = tl.program_id(0).to(tl.int64)
    begin = tl.load(tile_offsets + tile)
    end = tl.load(tile_offsets + tile + 1)
    if begin < end:
        number = tl.load(group + tile).to(tl.int64)
        start = tl.load(starts + number)
        zeros = tl.zeros([RUN], tl.uint64)
        old_0, old_1, new_0, new_1 = zeros, zeros, zeros, zeros
        for done in range(begin, end, RUN):
            k = done + tl.arange(0, RUN)
            some = k < end
            flat = start + tl.load(index + k, mask=some, other=0)
            was = tl.load(old + k, mask=some, other=0).to(CELL, bitcast=True)
            now = tl.load(new + k, mask=some, other=0).to(CELL, bitcast=True)
            place = (flat % _BLOCK).to(tl.int32)
            scale_0 = tl.load(table + place, mask=some, other=0).to(tl.uint32, bitcast=True).to(tl.uint64)
            scale_1 = tl.load(table + _BLOCK + place, mask=some, other=0).to(tl.uint32, bitcast=True).to(tl.uint64)
            for limb in tl.static_range(LIMBS):
                block = ((flat // _BLOCK) * 4 + limb).to(tl.uint64)
                weight_0 = multiplier(block, _SEED_0) * scale_0
                weight_1 = multiplier(block, _SEED_1) * scale_1
                old_0 += weight_0 * ((was >> (16 * limb)).to(tl.uint64) & 0xFFFF)
                old_1 += weight_1 * ((was >> (16 * limb)).to(tl.uint64) & 0xFFFF)
                new_0 += weight_0 * ((now >> (16 * limb)).to(tl.uint64) & 0xFFFF)
                new_1 += weight_1 * ((now >> (16 * limb)).to(tl.uint64) & 0xFFFF)
        target = sums + number * 4
        tl.atomic_add(target, tl.sum(old_0, 0).to(tl.int64, bitcast=True), sem="relaxed")
        tl.atomic_add(target + 1, tl.sum(old_1, 0).to(tl.int64, bitcast=True), sem="relaxed")
        tl.atomic_add(target + 2, tl.sum(new_0, 0).to(tl.int64, bitcast=True), sem="relaxed")
        tl.atomic_add(target + 3, tl.sum(new_1, 0).to(tl.int64, bitcast=True), sem="relaxed")


def digest(tiling: Tiling) -> torch.Tensor:
    """Return the two lanes of each group's sum of h, int64[G, 2] on the device; see ``as_lanes``."""
    tiles = tiling.tiles
    sums = torch.zeros(tiles.groups, 2, dtype=torch.int64, device=tiles.device)
    if len(tiles):
        digest_tiles[(len(tiles),)](
            *(tiling.address, tiles.count, tiles.group, tiles.flat, _table(tiles.device), sums),
            TILE=tiles.tile,
            CELL=UNSIGNED[tiles.width],
            LIMBS=max(1, tiles.width // 2),
            num_warps=4,
        )
    return sums


def digest_sparse(changes: Changes) -> torch.Tensor:
    """Return each group's sums of h over its old and over its new changed cells: int64[G, 4], two lanes each."""
    tiles = changes.tiles
    sums = torch.zeros(tiles.groups, 4, dtype=torch.int64, device=tiles.device)
    if len(changes):
        digest_changed[(len(tiles),)](
            *(tiles.group, tiles.starts, changes.tile_offsets, changes.index, changes.old, changes.new),
            *(_table(tiles.device), sums),
            RUN=RUN,
            CELL=UNSIGNED[tiles.width],
            LIMBS=max(1, tiles.width // 2),
            num_warps=1,
        )
    return sums


def as_lanes(sums: torch.Tensor) -> list[list[int]]:
    """Copy sums to the host: a list a group, of integers mod 2**64. Waits for the device."""
    return [[int(lane) & MASK64 for lane in row] for row in sums.tolist()]


@functools.cache
def _table(device: torch.device) -> torch.Tensor:
    both = np.concatenate([coefficients(lane) for lane in (0, 1)]).view(np.int32)
    return torch.from_numpy(both).to(device)
