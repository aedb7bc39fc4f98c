"""Compiling the kernels before they are wanted: each is launched once, in every way, on a few cells."""

from __future__ import annotations

import numpy as np
import torch

from pulse_kernels.cells import CellType
from pulse_kernels.group import CoderName
from pulse_kernels.triton import apply
from pulse_kernels.triton.changes import Changes, no_cells
from pulse_kernels.triton.codes_decode import decode_changes
from pulse_kernels.triton.codes_encode import encode_changes
from pulse_kernels.triton.diff import diff
from pulse_kernels.triton.digest import digest, digest_sparse
from pulse_kernels.triton.merge import merge
from pulse_kernels.triton.sheet import Sheet, Spans, Tiles

_CELLS = 4
_CODERS: tuple[CoderName, ...] = ("gap", "class")


def warm_up(device: torch.device, cell_type: CellType, *, rounded: bool = False) -> None:
    """Compile what a push and a pull launch for cells of a type's width, or load it from Triton's cache.

    No later launch compiles anything, whatever the sizes.

    Args:
        device: compiled for, and worked on.
        cell_type: of the cells.
        rounded: the model holds them as float32 too.
    """
    one = np.zeros(1, np.int64)
    tiles = Tiles.cut(Spans(one, one, one, one + _CELLS), [0], [cell_type], device)
    base, live = no_cells(tiles, _CELLS).zero_(), no_cells(tiles, _CELLS).zero_()
    live[1] = 1
    old, new = tiles.over([base]), tiles.over([live])
    _follow(old, _changes(old, new))
    if rounded:
        wide = tiles.over([torch.ones(_CELLS, dtype=torch.float32, device=device)])
        apply.copy(wide, old)
        diff(wide, new)


def _changes(old: Sheet, new: Sheet) -> Changes:
    """Do what a push does; return the changes."""
    apply.copy(old, old)
    digest(old)
    changes = diff(new, old)
    digest_sparse(changes)
    return changes


def _follow(base: Sheet, changes: Changes) -> None:
    """Code the changes and do what a pull of them does, with both coders."""
    tiles, counts = base.tiles, np.diff(changes.host_offsets)
    steps = []
    for coder in _CODERS:
        data = encode_changes(changes, coder, base).data.cpu().numpy().tobytes()
        moves = decode_changes(tiles, coder, counts, [data], base)
        offsets = apply.locate(tiles, moves.index, moves.group_offsets)
        old = apply.gather(base, offsets, moves.index)
        new = apply.move(tiles, offsets, old, moves.distance)
        steps.append(Changes(tiles, moves.index, old, new, offsets, moves.group_offsets, moves.host_offsets))
    merge(*steps)
    apply.scatter(base, changes)
    apply.undo(base, changes)
