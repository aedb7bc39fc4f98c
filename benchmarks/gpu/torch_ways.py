"""What one does with torch alone, tensor by tensor: ``nonzero``, indexed stores, and dense staging masked by NaN."""

from __future__ import annotations

from collections.abc import Sequence

import torch

Sparse = list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]
"""For each tensor: int64 indices, old and new cells."""


def copy_bandwidth(tensors: Sequence[torch.Tensor], scratch: torch.Tensor) -> None:
    """Copy every tensor to the same place: as many bytes read and written as a diff reads."""
    for tensor in tensors:
        scratch[: len(tensor)].copy_(tensor)


def nonzero(old: Sequence[torch.Tensor], new: Sequence[torch.Tensor]) -> Sparse:
    """Find and gather what differs."""
    found = []
    for before, after in zip(old, new, strict=True):
        index = (before != after).nonzero().squeeze(1)
        found.append((index, before[index], after[index]))
    return found


def index_put(tensors: Sequence[torch.Tensor], sparse: Sparse) -> None:
    """Store the new cells with ``index_put_``."""
    for tensor, (index, _, new) in zip(tensors, sparse, strict=True):
        tensor.index_put_((index,), new)


def index_copy(tensors: Sequence[torch.Tensor], sparse: Sparse) -> None:
    """Store the new cells with ``index_copy_``."""
    for tensor, (index, _, new) in zip(tensors, sparse, strict=True):
        tensor.index_copy_(0, index, new)


def put_back(tensors: Sequence[torch.Tensor], sparse: Sparse) -> None:
    """Store the old cells."""
    for tensor, (index, old, _) in zip(tensors, sparse, strict=True):
        tensor[index] = old


def stage(tensor: torch.Tensor, sparse: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Return a dense BF16 tensor that is NaN where nothing changes."""
    index, _, new = sparse
    staged = torch.full_like(tensor.view(torch.bfloat16), float("nan"))
    staged.view(torch.int16)[index] = new
    return staged


def apply_staged(tensor: torch.Tensor, staged: torch.Tensor) -> None:
    """Take over what is not NaN."""
    weights = tensor.view(torch.bfloat16)
    torch.where(staged.isnan(), weights, staged, out=weights)
