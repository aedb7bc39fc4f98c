"""Changes on the device: what a diff finds and a patch says, for all groups of a cell width at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from pulse_kernels.gpu.tiling import CELL_DTYPES, Tiles


@dataclass(frozen=True, slots=True)
class Changes:
    """Old and new cells at places that rise strictly within each group, group by group.

    Attributes:
        tiles: the cut that the places refer to.
        index, int32[n]: places in their group.
        old, new: cells there.
        tile_offsets, int64[T + 1]: the changes of tile t are ``tile_offsets[t]`` to ``tile_offsets[t + 1]``.
        group_offsets, int64[G + 1]: the same by group.
        host_offsets: ``group_offsets`` on the host.
    """

    tiles: Tiles
    index: torch.Tensor
    old: torch.Tensor
    new: torch.Tensor
    tile_offsets: torch.Tensor
    group_offsets: torch.Tensor
    host_offsets: npt.NDArray[np.int64]

    def __len__(self) -> int:
        """Return how many cells change."""
        return int(self.host_offsets[-1])

    @property
    def nbytes(self) -> int:
        """Bytes of device memory."""
        return sum(tensor.nbytes for tensor in self.tensors)

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """Device tensors of the changes, without those of the tiles."""
        return self.index, self.old, self.new, self.tile_offsets, self.group_offsets


def no_cells(tiles: Tiles, count: int) -> torch.Tensor:
    """Return room for ``count`` cells of the tiles' width."""
    return torch.empty(count, dtype=CELL_DTYPES[tiles.width], device=tiles.device)


def offsets_of(counts: torch.Tensor) -> torch.Tensor:
    """Return where each of the runs begins, and the end of the last: int64[len(counts) + 1]."""
    offsets = torch.zeros(len(counts) + 1, dtype=torch.int64, device=counts.device)
    torch.cumsum(counts, 0, out=offsets[1:])
    return offsets
