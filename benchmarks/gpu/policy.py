"""A policy on a device, before and after a step: BF16 tensors shaped like a Llama's, made on the device itself.

The new state is the old one plus noise below a cell's resolution, rounded again, as FP32 masters give it: small weights
change far more often than large ones, nearly always to a neighbour.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from pulse_kernels import CELL_TYPES, GROUP_BYTES
from pulse_kernels.gpu.tiling import TILE, Spans, Tiles, Tiling

LAYER = (58_720_256, 58_720_256, 58_720_256, 16_777_216, 16_777_216, 4_194_304, 4_194_304, 4096, 4096)
"""Cells of one layer's tensors, as in a Llama of 8 billion."""
BF16 = CELL_TYPES["BF16"]
_CHUNK = 1 << 26
_SCALE = 0.02
_SAMPLE = 1 << 20


@dataclass(frozen=True, slots=True)
class Policy:
    """Two states of one policy on a device.

    Attributes:
        old, new: cells, int16, one tensor a tensor.
        tiles: their cut.
        seed: of the cells.
    """

    old: list[torch.Tensor]
    new: list[torch.Tensor]
    tiles: Tiles
    seed: int

    @property
    def cells(self) -> int:
        """Cells of one state."""
        return sum(len(tensor) for tensor in self.new)

    @property
    def device(self) -> torch.device:
        """Where they are."""
        return self.new[0].device

    def tilings(self) -> tuple[Tiling, Tiling]:
        """Return (old, new)."""
        return self.tiles.over(self.old), self.tiles.over(self.new)


def sizes_of(cells: int) -> list[int]:
    """Return the tensors' cells: whole layers, or smaller ones where there are too few cells for two, and a rest."""
    shrink = max(1, -(-2 * sum(LAYER) // cells))
    layer = [max(1, size // shrink) for size in LAYER]
    sizes, left, at = [], cells, 0
    while left:
        sizes.append(min(left, layer[at % len(layer)]))
        left -= sizes[-1]
        at += 1
    return sizes


def needed_bytes(cells: int) -> int:
    """Return the device memory that a measurement needs: both states, scratch of a diff, one tensor's staging."""
    return int(2 * 2 * cells + 0.02 * cells * 20 + 0.02 * cells * 16 + 2**30)


def make_policy(
    cells: int, share: float, device: str, seed: int, *, group: int = GROUP_BYTES // BF16.width, tile: int = TILE
) -> Policy:
    """Make both states.

    Args:
        cells: of one state.
        share: of them that change, roughly.
        device: where.
        seed: of the cells; the same one gives the same cells on the same kind of device.
        group: cells of a group, at most.
        tile: cells of a tile, at most.
    """
    generator = torch.Generator(device).manual_seed(seed)
    sizes = sizes_of(cells)
    step = _step_for(share, device, seed)
    old = [torch.empty(size, dtype=torch.int16, device=device) for size in sizes]
    new = [torch.empty_like(tensor) for tensor in old]
    for before, after in zip(old, new, strict=True):
        for at in range(0, len(before), _CHUNK):
            was, now = _states(min(_CHUNK, len(before) - at), step, generator)
            before[at : at + _CHUNK], after[at : at + _CHUNK] = was, now
    return Policy(old, new, _tiles(sizes, group, tile, device), seed)


def _states(count: int, step: float, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cells before and after; the master of each lies anywhere within what rounds to it."""
    kind = {"generator": generator, "device": generator.device}
    weights = torch.randn(count, **kind).mul_(_SCALE).to(torch.bfloat16)  # type: ignore[call-overload]
    exponent = (weights.view(torch.int16) & 0x7F80).view(torch.bfloat16)
    masters = (torch.rand(count, **kind) - 0.5).mul_(exponent.float() * 2.0**-7)  # type: ignore[call-overload]
    masters += weights.float()
    masters += torch.randn(count, **kind).mul_(step)  # type: ignore[call-overload]
    return weights.view(torch.int16), masters.to(torch.bfloat16).view(torch.int16)


def _step_for(share: float, device: str, seed: int) -> float:
    """Return the size of a step that changes about ``share`` of the cells: by bisection on a sample."""
    low, high = 0.0, _SCALE
    for _ in range(32):  # a small step: 2^-16 of the scale is a third of one that changes a hundredth
        middle = (low + high) / 2
        was, now = _states(_SAMPLE, middle, torch.Generator(device).manual_seed(seed))
        low, high = (middle, high) if float((was != now).float().mean()) < share else (low, middle)
    return high


def _tiles(sizes: list[int], group: int, tile: int, device: str) -> Tiles:
    """Cut the flat cell space at the ends of groups and tensors."""
    spans = list(_spans(sizes, group))
    columns = (np.array(column, dtype=np.int64) for column in zip(*spans, strict=True))
    starts = list(range(0, sum(sizes), group))
    return Tiles.cut(Spans(*columns), starts, [BF16] * len(starts), device, tile)


def _spans(sizes: list[int], group: int) -> Iterator[tuple[int, int, int, int]]:
    flat = 0
    for number, size in enumerate(sizes):
        at = 0
        while at < size:
            count = min(size - at, group - flat % group)
            yield flat // group, number, at, count
            at, flat = at + count, flat + count
