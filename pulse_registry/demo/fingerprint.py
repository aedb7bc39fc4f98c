"""The judge of bit equality: SHA-256 over BF16 cells, with torch and hashlib alone; the library has no part in it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pulse_registry.demo.slices import slice_of

if TYPE_CHECKING:
    from hashlib import _Hash


def fingerprint(model: Any) -> str:
    """Return the SHA-256 of a module's state, or of tensors by name; see ``fingerprints``."""
    return fingerprints(model)[0]


def fingerprints(model: Any, ranks: int = 0) -> tuple[str, ...]:
    """Return the SHA-256 of a module's state, and of what each of so many ranks of the sharded worker holds of it.

    By names in order; floating tensors are rounded to BF16. Of an FSDP2 module it is a collective: one tensor at a
    time is gathered, for this check alone. No push gathers anything.
    """
    from torch.distributed.tensor import DTensor

    digests = [hashlib.sha256() for _ in range(1 + ranks)]
    for name, tensor in sorted((model if isinstance(model, Mapping) else model.state_dict()).items()):
        cells = _rounded(tensor.detach())
        if isinstance(cells, DTensor):
            cells = cells.full_tensor()
        _add(digests[0], name, cells)
        for rank, digest in enumerate(digests[1:]):
            _add(digest, name, cells[slice_of(name, tuple(cells.shape), rank, ranks)])
    return tuple(digest.hexdigest() for digest in digests)


def _rounded(tensor: Any) -> Any:
    import torch

    return tensor.to(torch.bfloat16) if tensor.is_floating_point() else tensor


def _add(digest: _Hash, name: str, cells: Any) -> None:
    import torch

    digest.update(f"{name} {cells.dtype} {tuple(cells.shape)}\n".encode())
    digest.update(cells.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
