"""Self-test of the kernels on a device: a push and a pull of a few tiles of cells, before they work on a model."""

from __future__ import annotations

import importlib
import logging
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import numpy as np
import numpy.typing as npt
import torch

from pulse_kernels import CELL_TYPES, Cells, CellType, CoderName, encode_group, get_backend, other_writers
from pulse_kernels.gpu.apply import copy, distance, gather, locate, move, scatter
from pulse_kernels.gpu.coding.decode import decode_changes
from pulse_kernels.gpu.coding.encode import encode_changes
from pulse_kernels.gpu.diff import diff
from pulse_kernels.gpu.digest import digest, digest_sparse
from pulse_kernels.gpu.merge import merge
from pulse_kernels.gpu.tiling import CELL_DTYPES, TILE, Spans, Tiles
from pulse_registry.gpu.stream import DeviceStream
from pulse_registry.process.private_files import make_folder

REST = 64
"""Cells of the last tile; those before it are whole, and read in another way."""
SHARES = (0.002, 0.02)
"""Of the cells of each whole tile, how many change: what is put in order at once, and more than that."""
CODERS: tuple[CoderName, ...] = get_args(CoderName)

FAULTS: dict[torch.device, str | None] = {}
"""Why the kernels do not run, by device; of those that were tried, None where they do."""
_TRYING = threading.Lock()
_logger = logging.getLogger(__name__)


def fault_on(device: torch.device) -> str | None:
    """Say why the kernels do not run on a device, None if they do; tried once a process, and compiled for it.

    Raises:
        torch.OutOfMemoryError: the device is full, which says nothing about the kernels.
    """
    with _TRYING:
        if device not in FAULTS:
            if device.type == "cuda":  # elsewhere nothing is compiled
                look_at_cache()
            try:
                follow_step(device, CELL_TYPES["BF16"])
            except torch.OutOfMemoryError:
                raise
            except Exception as error:  # noqa: BLE001 - the edge to compilers and drivers, which raise anything
                FAULTS[device] = f"its kernels do not run on {device}: {type(error).__name__}: {error}"
            else:
                FAULTS[device] = None
        return FAULTS[device]


def look_at_cache() -> None:
    """Make Triton's folder for compiled kernels for this user alone; warn where others may write one that is there.

    It is for all kernels of the process, so that it stays Triton's, and its user's, to choose.
    """
    folder = Path(importlib.import_module("triton.knobs").cache.dir)
    try:
        make_folder(folder)
        why = other_writers(folder)
    except OSError:
        return  # Triton says so where it matters
    if why is not None:
        _logger.warning(
            "%s: whoever changes the kernels that Triton keeps there runs code as this user; take that right away, or "
            "set TRITON_CACHE_DIR to a folder that is this user's alone",
            why,
        )


def follow_step(device: torch.device, cell_type: CellType, *, rounded: bool = False, whole: bool | None = None) -> None:
    """Follow a step of a few tiles from diff to application, both coders; compare with the reference.

    After it, nothing that a push and a pull launch for cells of this width is compiled, whatever their sizes.

    Args:
        device: to work on.
        cell_type: of the cells.
        rounded: the model holds the cells, which are BF16, as float32 too.
        whole: with whole tiles; by default where kernels are compiled: to interpret them takes half a minute.

    Raises:
        RuntimeError: the kernels run, and give something else. Others: whatever compiling and launching raise.
    """
    stream = DeviceStream(device)
    with stream.work():  # whichever device is the caller's
        _follow(device, cell_type, rounded, device.type == "cuda" if whole is None else whole)
    stream.wait()


def _follow(device: torch.device, cell_type: CellType, rounded: bool, whole: bool) -> None:
    backend = get_backend("reference")
    old, index = _cells(cell_type, SHARES if whole else ())
    new = old.copy()
    new[index] ^= np.array(1 << (cell_type.bits - 1) | 3, cell_type.dtype)
    spans = Spans(*(np.array([number], np.int64) for number in (0, 0, 0, len(old))))
    tiles = Tiles.cut(spans, [0], [cell_type], device)
    cells = [torch.from_numpy(part.view(np.uint8)).to(device).view(CELL_DTYPES[cell_type.width]) for part in (old, new)]
    base, live = (tiles.over([part]) for part in cells)
    changes = diff(live, base)
    worker = torch.zeros_like(cells[0])
    copy(base, tiles.over([worker]))
    same = torch.equal(digest(base) + digest_sparse(changes)[:, 2:] - digest_sparse(changes)[:, :2], digest(live))
    same = same and len(merge(changes, diff(base, live))) == 0
    for coder in CODERS:
        expected = encode_group(backend, coder, cell_type, len(old), index, old[index], new[index], [old])
        same = same and encode_changes(changes, coder, base).data.cpu().numpy().tobytes() == expected
        moves = decode_changes(tiles, coder, [len(index)], [expected], base)
        offsets = locate(tiles, moves.index, moves.group_offsets)
        found = move(tiles, offsets, gather(base, offsets, moves.index), moves.distance)
        same = same and torch.equal(found, changes.new) and torch.equal(distance(changes), moves.distance)
    scatter(tiles.over([worker]), changes)
    same = same and torch.equal(worker, cells[1])
    if rounded:
        wide = tiles.over([cells[1].view(torch.bfloat16).float()])
        copy(wide, tiles.over([worker]))
        same = same and torch.equal(worker, cells[1]) and len(diff(wide, live)) == 0
    if not same:
        raise RuntimeError("they give other results than the reference")


def _cells(cell_type: CellType, shares: Sequence[float]) -> tuple[Cells, npt.NDArray[np.uint32]]:
    """Return cells like weights, most of a few exponents, and where they change; always the same."""
    rng = np.random.default_rng(0)
    count = len(shares) * TILE + REST
    cells = rng.integers(0, 1 << cell_type.bits, count, np.uint64)
    exponent = np.maximum(cell_type.class_mask // 2 - rng.geometric(0.5, count), 0).astype(np.uint64)
    field = np.uint64(cell_type.class_mask << cell_type.class_shift)
    cells = cells & ~field | exponent << np.uint64(cell_type.class_shift)
    places = [number * TILE + rng.choice(TILE, int(share * TILE), False) for number, share in enumerate(shares)]
    last = [count - REST, count - 1]
    return cells.astype(cell_type.dtype), np.sort(np.concatenate([*places, last])).astype(np.uint32)
