"""Pieces: runs of at most so many changes of one group, one piece for each GPU program."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from pulse_kernels.gpu.transfer import upload

I64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Pieces:
    """A cut of every group's changes; the tensors are on the device.

    Attributes:
        group, int64[n]: the piece's group.
        start, int64[n]: its first change, among those of all groups.
        count, int64[n]: its changes, at least one.
        offsets, int64[G + 1]: the pieces of group g are ``offsets[g]`` to ``offsets[g + 1]``.
        longest: the most changes of a piece.
        host_group, host_start, host_offsets: the same on the host.
    """

    group: torch.Tensor
    start: torch.Tensor
    count: torch.Tensor
    offsets: torch.Tensor
    longest: int
    host_group: I64
    host_start: I64
    host_offsets: I64

    def __len__(self) -> int:
        """Return how many pieces."""
        return len(self.host_group)

    @classmethod
    def cut(cls, changes: I64, size: int, device: torch.device) -> Pieces:
        """Cut the changes ``changes[g]`` to ``changes[g + 1]`` of each group g into pieces of ``size``, and a rest."""
        counts = np.diff(changes)
        each = -(-counts // size)
        offsets = np.concatenate(([0], np.cumsum(each)))
        group = np.repeat(np.arange(len(counts)), each)
        start = changes[group] + (np.arange(len(group)) - offsets[group]) * size
        count = np.minimum(changes[group + 1] - start, size)
        there = upload(device, group, start, count, offsets)
        longest = int(count.max(initial=0))
        return cls(there[0], there[1], there[2], there[3], longest, group, start, offsets)
