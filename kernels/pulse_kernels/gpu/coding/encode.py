"""Coding of changes on the device: the finished bytes of all groups, equal to ``encode_group``'s of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from pulse_kernels.format.group import CoderName
from pulse_kernels.format.rans import CHUNK
from pulse_kernels.gpu.cells import UNSIGNED
from pulse_kernels.gpu.changes import Changes, no_cells, offsets_of
from pulse_kernels.gpu.coding.batches import BATCH, batches, changes_of, tiles_of, tiling_of
from pulse_kernels.gpu.coding.class_rank import CLASSES, Classing, class_counts, class_ranks, scan
from pulse_kernels.gpu.coding.layout import SCAN, choose_parameters, lay_out, write_heads
from pulse_kernels.gpu.coding.order import (
    BLOCK,
    CLASS_TABLES,
    WARPS,
    choose_classes,
    count_contexts,
    count_exponents,
    count_kinds,
    sort_changes,
)
from pulse_kernels.gpu.coding.pieces import Pieces
from pulse_kernels.gpu.coding.rans_encode import CHUNKS, encode_chunks
from pulse_kernels.gpu.coding.rans_tables import SYMBOLS, MadeTables, constants, tables_from_counts
from pulse_kernels.gpu.coding.symbols import PIECES, WIDE
from pulse_kernels.gpu.tiling import Tiles, Tiling

GAP_TABLES = 6
"""Tables of a group with ``gap``."""


@dataclass(frozen=True, slots=True)
class CodedGroups:
    """Coded groups end to end.

    Attributes:
        data: uint8, on the device.
        offsets: int64 [G + 1], on the host: the bytes of group g are ``offsets[g]`` to ``offsets[g + 1]``; none where
            nothing changes.
    """

    data: torch.Tensor
    offsets: npt.NDArray[np.int64]

    def size(self, group: int) -> int:
        """Return the bytes of a group."""
        return int(self.offsets[group + 1] - self.offsets[group])


@dataclass(frozen=True, slots=True)
class _Ordered:
    """Changes in coding order and their tables, on the device.

    Attributes:
        places, int32[n]: ``class << 24 | place``.
        steps: cell-wide distances, for ``class`` outward ones.
        made: tables of all groups: CLASS_TABLES a group for ``class``, by class, GAP_TABLES for ``gap``.
        classing: of the groups; for ``gap`` not read.
        changed, parameters: int32 [G, 32], changed cells and gap parameter of each class; for ``gap`` not read.
    """

    places: torch.Tensor
    steps: torch.Tensor
    made: MadeTables
    classing: torch.Tensor
    changed: torch.Tensor
    parameters: torch.Tensor


def encode_changes(
    changes: Changes,
    coder: CoderName,
    base: Tiling | None = None,
    chunk: int = CHUNK,
    batch: int = BATCH,
) -> CodedGroups:
    """Code the changes of all groups.

    Args:
        changes: old and new cells differ everywhere.
        coder: ``gap`` or ``class``; the latter needs ``base``.
        base: the old cells, over the tiles of the changes.
        chunk: changes of a chunk; what the format says, but in tests.
        batch: the most changes to work on at a time. A batch takes 14 launches with ``class``, 6 with ``gap``, and some
            fills; and room for 4 bytes and a cell a change, with ``class`` 8 and a cell, and 128 bytes a tile.

    Waits for the device once a batch, for the number of bytes.

    Raises:
        ValueError: ``class`` without ``base``.
    """
    if coder == "class" and base is None:
        raise ValueError("the class coder needs the base cells")
    coded = []
    for part in batches(changes.tiles, changes.host_offsets, batch):
        tiles = tiles_of(changes.tiles, part)
        some = changes_of(changes, tiles, part)
        if coder == "gap" or base is None:
            ordered = _as_they_lie(some, chunk)
        else:
            ordered = _by_class(some, tiling_of(base, tiles, part))
        coded.append(_write(ordered, some, coder == "gap", chunk))
    if len(coded) == 1:
        return coded[0]
    sizes = np.concatenate([np.diff(groups.offsets) for groups in coded])
    return CodedGroups(torch.cat([groups.data for groups in coded]), np.concatenate(([0], np.cumsum(sizes))))


def _shapes(tiles: Tiles) -> dict[str, Any]:
    return {"CELL": UNSIGNED[tiles.width], "WIDE": WIDE[tiles.width]}


def _by_class(changes: Changes, base: Tiling) -> _Ordered:
    tiles, device, groups = changes.tiles, changes.tiles.device, changes.tiles.groups
    pieces = Pieces.cut(changes.host_offsets, BLOCK, device)
    cut = (pieces.group, pieces.start, pieces.count)
    nothing = np.zeros(groups, np.int64)
    classing = Classing.of(tiles, nothing, nothing)
    exponents = torch.zeros((groups, SYMBOLS), dtype=torch.int32, device=device)
    if len(pieces):
        count_exponents[(len(pieces),)](
            changes.old, *cut, classing.table, exponents, CELL=UNSIGNED[tiles.width], BLOCK=BLOCK
        )
    if groups:
        choose_classes[(groups,)](exponents, classing.table, TABLES=CLASS_TABLES)
    counts = class_counts(base, classing)
    ranks = class_ranks(base, changes, classing, counts)
    before = torch.empty((len(pieces), CLASSES), dtype=torch.int32, device=device)
    if len(pieces):
        count_kinds[(len(pieces),)](ranks, pieces.start, pieces.count, before, BLOCK=BLOCK)
    changed, starts = scan(before, pieces.offsets)
    places, steps = torch.empty_like(ranks), no_cells(tiles, len(changes))
    symbols = torch.zeros((groups * CLASS_TABLES, SYMBOLS), dtype=torch.int32, device=device)
    if len(pieces):
        sort_changes[(len(pieces),)](
            *(ranks, changes.old, changes.new, *cut, changes.group_offsets, tiles.is_float),
            *(starts, before, places, steps, symbols),
            **_shapes(tiles),
            TABLES=CLASS_TABLES,
            BLOCK=BLOCK,
            num_warps=WARPS,
        )
    parameters = torch.empty_like(changed)
    if groups:
        choose_parameters[(groups,)](changed, counts.population, constants(device).odds, parameters)
    return _Ordered(places, steps, tables_from_counts(symbols), classing.table, changed, parameters)


def _as_they_lie(changes: Changes, chunk: int) -> _Ordered:
    tiles, device = changes.tiles, changes.tiles.device
    pieces = Pieces.cut(changes.host_offsets, BLOCK, device)
    steps = no_cells(tiles, len(changes))
    symbols = torch.zeros((tiles.groups * GAP_TABLES, SYMBOLS), dtype=torch.int32, device=device)
    if len(pieces):
        count_contexts[(len(pieces),)](
            *(changes.index, changes.old, changes.new, pieces.group, pieces.start, pieces.count),
            *(changes.group_offsets, tiles.is_float, steps, symbols, chunk),
            **_shapes(tiles),
            BLOCK=BLOCK,
        )
    unread = symbols
    return _Ordered(changes.index, steps, tables_from_counts(symbols), unread, unread, unread)


def _write(ordered: _Ordered, changes: Changes, contexts: bool, chunk: int) -> CodedGroups:
    tiles, device, groups = changes.tiles, changes.tiles.device, changes.tiles.groups
    made, tables = ordered.made, GAP_TABLES if contexts else CLASS_TABLES
    chunks = Pieces.cut(changes.host_offsets, chunk, device)
    sizes = torch.empty(len(chunks), dtype=torch.int32, device=device)
    words_at = torch.empty(len(chunks), dtype=torch.int64, device=device)
    table_at = torch.empty(groups * tables, dtype=torch.int32, device=device)
    table_bytes = torch.empty(groups, dtype=torch.int32, device=device)
    group_words, group_bytes = (torch.empty(groups, dtype=torch.int64, device=device) for _ in range(2))

    def run(group_at: torch.Tensor, words: torch.Tensor, write: bool) -> None:
        if len(chunks):
            encode_chunks[(-(-len(chunks) // CHUNKS),)](
                *(ordered.places, ordered.steps, chunks.group, chunks.start, chunks.count, chunks.offsets),
                *(changes.group_offsets, ordered.parameters),
                *(made.tables if contexts else constants(device).gap_tables, made.tables),
                *(sizes, words_at, group_at, group_words, words, len(chunks), chunks.longest),
                **_shapes(tiles),
                CONTEXTS=contexts,
                WRITE=write,
                PIECES=PIECES[tiles.width],
                TABLES=tables,
                CHUNKS=CHUNKS,
                num_warps=1,
            )

    run(group_words, sizes, False)
    if not groups:
        return CodedGroups(torch.empty(0, dtype=torch.uint8, device=device), np.zeros(1, np.int64))
    lay_out[(groups,)](
        *(ordered.classing, made.ends, sizes, chunks.offsets, words_at, table_at, table_bytes),
        *(group_words, group_bytes),
        CONTEXTS=contexts,
        TABLES=tables,
        SCAN=SCAN,
    )
    group_at = offsets_of(group_bytes)
    offsets = group_at.cpu().numpy()
    data = torch.empty(int(offsets[-1]), dtype=torch.uint8, device=device)
    write_heads[(groups, tables)](
        *(ordered.classing, ordered.changed, ordered.parameters, made.ends, made.levels, table_at, table_bytes),
        *(chunks.offsets, group_at, data),
        CONTEXTS=contexts,
        TABLES=tables,
    )
    run(group_at, data.view(torch.int16), True)
    return CodedGroups(data, offsets)
