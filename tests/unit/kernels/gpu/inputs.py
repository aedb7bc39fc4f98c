"""Small models for kernel tests: tensors of odd sizes in small groups and tiles, and what is expected of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from pulse_kernels import CELL_TYPES, Cells, CellType, Index, get_backend
from pulse_kernels.gpu.changes import Changes
from pulse_kernels.gpu.tiling import CELL_DTYPES, Spans, Tiles, Tiling
from tests.unit.kernels.inputs import random_cells

REFERENCE = get_backend("reference")
TILE = 256
SIZES = (1, 255, 257, 400, 3)
"""Cells of the tensors; with groups of 500 some are cut, and tiles begin at odd places."""
GROUP = 500
FLAT = 5_000_000_003
"""Flat index of the first cell: past 2**32, so that 32-bit arithmetic shows; inside a block of the digest."""


@dataclass(frozen=True)
class Policy:
    """Cells as one flat array on the host, and how they are cut."""

    cell_type: CellType
    sizes: tuple[int, ...]
    tiles: Tiles
    cells: Cells

    def tensors(self, cells: Cells | None = None, shift: int = 0) -> list[torch.Tensor]:
        """Return the tensors on the device, each beginning ``shift`` cells into its memory."""
        flat = self.cells if cells is None else cells
        ends = np.cumsum(self.sizes)
        tensors = []
        for end, size in zip(ends, self.sizes, strict=True):
            memory = torch.zeros(size + shift, dtype=CELL_DTYPES[self.cell_type.width], device=self.tiles.device)
            memory[shift:] = to_device(flat[end - size : end], self.tiles.device)
            tensors.append(memory[shift:])
        return tensors

    def tiling(self, cells: Cells | None = None, shift: int = 0) -> Tiling:
        """Lay the tiles over new tensors of these cells."""
        return self.tiles.over(self.tensors(cells, shift))

    def groups(self, cells: Cells) -> list[Cells]:
        """Cut flat cells by group."""
        return np.split(cells, np.cumsum(self.tiles.group_cells)[:-1])

    def starts(self) -> list[int]:
        """Return the flat index of each group."""
        return [int(start) for start in self.tiles.starts.tolist()]


def policy(
    device: str,
    name: str = "BF16",
    sizes: Sequence[int] = SIZES,
    *,
    group: int = GROUP,
    tile: int = TILE,
    flat: int = FLAT,
    seed: int = 0,
) -> Policy:
    """Make a model of one dtype, its groups cut every ``group`` cells."""
    cell_type = CELL_TYPES[name]
    total = sum(sizes)
    edges = np.unique(np.concatenate([np.arange(0, total + group, group).clip(max=total), np.cumsum([0, *sizes])]))
    tensor = np.searchsorted(np.cumsum(sizes), edges[:-1], side="right")
    spans = Spans(
        group=edges[:-1] // group,
        tensor=tensor,
        start=edges[:-1] - (np.cumsum(sizes) - sizes)[tensor],
        cells=np.diff(edges),
    )
    count = -(-total // group)
    tiles = Tiles.cut(spans, [flat + k * group for k in range(count)], [cell_type] * count, device, tile)
    return Policy(cell_type, tuple(sizes), tiles, random_cells(cell_type.width, total, seed))


def to_device(cells: Cells, device: torch.device | str) -> torch.Tensor:
    """Return cells as the device's tensors hold them."""
    return torch.from_numpy(cells.view(f"i{cells.itemsize}" if cells.itemsize > 1 else "u1").copy()).to(device)


def to_host(tensor: torch.Tensor) -> Cells:
    """Return a tensor's cells."""
    return tensor.cpu().numpy().view(f"u{tensor.element_size()}")


def flat_cells(tensors: Sequence[torch.Tensor]) -> Cells:
    """Return the cells of tensors, one after the other."""
    return np.concatenate([to_host(tensor) for tensor in tensors])


def by_group(changes: Changes) -> list[tuple[Index, Cells, Cells]]:
    """Return (index, old, new) of each group, as the reference's ``diff`` does."""
    cuts = changes.host_offsets[1:-1]
    parts = [np.split(to_host(part), cuts) for part in (changes.index, changes.old, changes.new)]
    return list(zip(*parts, strict=True))


def changed_at(cells: Cells, places: Sequence[int] | np.ndarray, seed: int = 1) -> Cells:
    """Return a copy that differs at ``places`` and nowhere else."""
    new = cells.copy()
    where = np.asarray(places, dtype=np.int64)
    flips = np.random.default_rng(seed).integers(1, 1 << min(63, 8 * cells.itemsize), len(where), dtype=np.uint64)
    flips = np.where(flips.astype(cells.dtype) == 0, 1, flips)
    new[where] ^= flips.astype(cells.dtype)
    return new


def places_of(kind: str, size: int) -> np.ndarray:
    """Return places to change, by name of the pattern; see ``PATTERNS``."""
    every = np.arange(size)
    ends = (every % TILE < 2) | (every % TILE >= TILE - 2)
    chosen = {
        "none": every < 0,
        "the first": every == 0,
        "the last": every == size - 1,
        "all": every >= 0,
        "ends of tiles": ends,
        "a run": (every >= TILE - 70) & (every < TILE + 130),
        "few": np.random.default_rng(7).random(size) < 0.01,
        "many": np.random.default_rng(8).random(size) < 0.4,
    }
    return np.flatnonzero(chosen[kind])


PATTERNS = ("none", "the first", "the last", "all", "ends of tiles", "a run", "few", "many")
