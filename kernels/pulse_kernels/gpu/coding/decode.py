"""Decoding of coded groups on the device: only the coded bytes go up, and a few numbers a class and a chunk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from pulse_kernels.errors import CodecError, RankError
from pulse_kernels.format.group import CoderName
from pulse_kernels.format.rans import CHUNK
from pulse_kernels.format.symbols import most_value_symbols
from pulse_kernels.gpu.cells import UNSIGNED
from pulse_kernels.gpu.changes import no_cells
from pulse_kernels.gpu.coding.batches import BATCH, batches, tiles_of, tiling_of
from pulse_kernels.gpu.coding.class_rank import CLASSES, Classing, class_counts
from pulse_kernels.gpu.coding.class_select import class_select
from pulse_kernels.gpu.coding.order import BLOCK
from pulse_kernels.gpu.coding.parse import PADDING, Parsed, heads, join, parse
from pulse_kernels.gpu.coding.pieces import I64, Pieces
from pulse_kernels.gpu.coding.rans_decode import CHUNKS, RUNS, check_runs, decode_chunks, join_chunks
from pulse_kernels.gpu.coding.rans_tables import constants, tables_from_bytes
from pulse_kernels.gpu.coding.symbols import PIECES, WIDE
from pulse_kernels.gpu.tiling import Tiles, Tiling
from pulse_kernels.gpu.transfer import upload

_MESSAGES = (
    "a chunk does not end with its words and a state of 2^16",
    "a distance does not fit the cells",
    "a change needs a table that is empty",
    "a place is past the group's end",
)


@dataclass(frozen=True, slots=True)
class Moves:
    """Decoded changes of all groups, on the device, group by group.

    Attributes:
        index, int32[n]: places in the group, rising strictly.
        distance: from old to new cell, in the order of the dtype; cell-wide, never 0.
        group_offsets, int64[G + 1]: the changes of group g are ``group_offsets[g]`` to ``group_offsets[g + 1]``.
        host_offsets: the same on the host.
    """

    index: torch.Tensor
    distance: torch.Tensor
    group_offsets: torch.Tensor
    host_offsets: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Runs:
    """A patch's classes with changes, on the device; see ``Parsed``. ``piece`` is the chunk in which a run begins."""

    group: torch.Tensor
    kind: torch.Tensor
    gap: torch.Tensor
    end: torch.Tensor
    piece: torch.Tensor


def decode_changes(
    tiles: Tiles,
    coder: CoderName,
    changed: Sequence[int] | I64,
    groups: Sequence[bytes | memoryview],
    base: Tiling | None = None,
    chunk: int = CHUNK,
    batch: int = BATCH,
) -> Moves:
    """Invert ``encode_changes``.

    Args:
        tiles: the cut; says which groups there are.
        coder: ``gap`` or ``class``; the latter needs ``base``.
        changed: changed cells of each group.
        groups: the bytes of each; none where nothing changes.
        base: the old cells, over these tiles; only read.
        chunk: changes of a chunk; what the format says, but in tests.
        batch: the most changes to work on at a time. A batch takes 9 launches with ``class``, 4 with ``gap``, and with
            ``class`` room for 8 bytes and a cell a change beside the result, and 256 bytes a tile.

    Waits for the device once a batch, for the errors. Memory follows from ``changed``, which is at most the cells
    there are, and from the number of tables, which is bounded by the bytes.

    Raises:
        CodecError: the bytes break a rule of the format.
        RankError: (``class``) they don't fit these base cells.
        ValueError: ``class`` without ``base``, or not one entry for each group.
    """
    counts = np.asarray(changed, np.int64)
    if coder == "class" and base is None:
        raise ValueError("the class coder needs the base cells")
    if not len(counts) == len(groups) == tiles.groups:
        raise ValueError(f"{len(counts)} counts and {len(groups)} coded groups for {tiles.groups} groups")
    for group in np.flatnonzero((counts < 0) | (counts > tiles.group_cells))[:1]:
        raise CodecError(f"coded group {group}: {counts[group]} changed cells of {tiles.group_cells[group]}")
    host_offsets = np.concatenate(([0], np.cumsum(counts)))
    parts = list(batches(tiles, host_offsets, batch))
    if len(parts) == 1:
        return _decode(tiles, coder, counts, groups, base, chunk, 0)
    index = torch.empty(int(host_offsets[-1]), dtype=torch.int32, device=tiles.device)
    distance = no_cells(tiles, len(index))
    for part in parts:
        own = tiles_of(tiles, part)
        under = None if base is None else tiling_of(base, own, part)
        moves = _decode(own, coder, counts[part.groups], groups[part.groups], under, chunk, part.groups.start)
        index[part.changes], distance[part.changes] = moves.index, moves.distance
    (group_offsets,) = upload(tiles.device, host_offsets)
    return Moves(index, distance, group_offsets, host_offsets)


def _decode(
    tiles: Tiles,
    coder: CoderName,
    counts: I64,
    groups: Sequence[bytes | memoryview],
    base: Tiling | None,
    chunk: int,
    first: int,
) -> Moves:
    """Decode a batch, whose first group is number ``first``."""
    host_offsets = np.concatenate(([0], np.cumsum(counts)))
    by_class = coder == "class" and base is not None and bool(host_offsets[-1])
    # The device counts the base's classes while the host puts the coded bytes together, and takes them apart.
    classing = Classing.of(tiles, *heads(groups)) if by_class else None
    known = class_counts(base, classing) if base is not None and classing is not None else None
    pinned = tiles.device.type == "cuda"
    joined = torch.empty(sum(map(len, groups)) + PADDING, dtype=torch.uint8, pin_memory=pinned)
    offsets = join(groups, joined.numpy())
    most = most_value_symbols(tiles.types[0]) if tiles.groups else 0
    parsed = parse(joined.numpy(), offsets, counts, coder == "class", most, chunk, first)
    (group_offsets,) = upload(tiles.device, host_offsets)
    if not host_offsets[-1]:
        empty = torch.empty(0, dtype=torch.int32, device=tiles.device)
        return Moves(empty, no_cells(tiles, 0), group_offsets, host_offsets)
    data = joined.to(tiles.device, non_blocking=True)
    chunks = Pieces.cut(host_offsets, chunk, tiles.device)
    runs = _runs(parsed, chunks, host_offsets, chunk, tiles.device)
    errors = torch.zeros(tiles.groups, dtype=torch.int32, device=tiles.device)
    places, steps = _entropy(tiles, parsed, data, chunks, runs, errors, coder == "gap")
    (cells,) = upload(tiles.device, tiles.group_cells)
    if base is None or classing is None or known is None:
        _check(runs, cells, cells, places, errors, False)
        _raise(errors, first)
        return Moves(places, steps, group_offsets, host_offsets)
    _check(runs, cells, known.population, places, errors, True)
    begin, end = upload(tiles.device, *_class_bounds(parsed, host_offsets))
    index, distance = class_select(base, classing, known, begin, end, group_offsets, places, steps)
    _raise(errors, first)
    return Moves(index, distance, group_offsets, host_offsets)


def _runs(parsed: Parsed, chunks: Pieces, host_offsets: I64, chunk: int, device: torch.device) -> _Runs:
    begin = np.concatenate(([0], parsed.run_end[:-1]))
    piece = chunks.host_offsets[parsed.run_group] + (begin - host_offsets[parsed.run_group]) // chunk
    return _Runs(*upload(device, parsed.run_group, parsed.run_kind, parsed.run_gap, parsed.run_end, piece))


def _class_bounds(parsed: Parsed, host_offsets: I64) -> tuple[I64, I64]:
    """Return where the changes of each class begin and end, [G, 32] each, empty for a class without any."""
    counts = np.zeros((len(parsed.first), CLASSES), np.int64)
    counts[parsed.run_group, parsed.run_kind] = np.diff(parsed.run_end, prepend=0)
    end = np.cumsum(counts, 1) + host_offsets[:-1, None]
    return end - counts, end


def _entropy(
    tiles: Tiles,
    parsed: Parsed,
    data: torch.Tensor,
    chunks: Pieces,
    runs: _Runs,
    errors: torch.Tensor,
    contexts: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Decode all chunks: return (places, steps) in coding order."""
    device, known = tiles.device, constants(tiles.device)
    first_run = np.searchsorted(parsed.run_end, chunks.host_start, side="right")
    table_at, words_at, words_end, piece_run = upload(
        device, parsed.table_at, parsed.words_at, parsed.words_end, first_run
    )
    tables, slots = tables_from_bytes(data, table_at)
    count = int(parsed.run_end[-1])
    places, steps = torch.empty(count, dtype=torch.int32, device=device), no_cells(tiles, count)
    sums = torch.zeros(len(chunks) + 1, dtype=torch.int64, device=device)
    decode_chunks[(-(-len(chunks) // CHUNKS),)](
        *(data.view(torch.int16), chunks.group, chunks.start, chunks.count, words_at, words_end),
        *(piece_run, runs.end, runs.gap, *((tables, slots) if contexts else (known.gap_tables, known.gap_slots))),
        *(tables, slots, places, steps, sums[1:], errors, len(chunks), chunks.longest),
        CONTEXTS=contexts,
        CELL=UNSIGNED[tiles.width],
        WIDE=WIDE[tiles.width],
        PIECES=PIECES[tiles.width],
        CHUNKS=CHUNKS,
        num_warps=1,
    )
    torch.cumsum(sums, 0, out=sums)
    join_chunks[(len(chunks),)](
        *(chunks.start, chunks.count, piece_run, runs.piece, runs.end, sums, places), BLOCK=BLOCK
    )
    return places, steps


def _check(
    runs: _Runs,
    cells: torch.Tensor,
    population: torch.Tensor,
    places: torch.Tensor,
    errors: torch.Tensor,
    ranked: bool,
) -> None:
    check_runs[(-(-len(runs.group) // RUNS),)](
        *(runs.group, runs.kind, runs.end, cells, population, places, errors, len(runs.group)),
        RANKED=ranked,
        RUNS=RUNS,
    )


def _raise(errors: torch.Tensor, first: int) -> None:
    """Raise the error of the first group that has one."""
    found = errors.cpu().numpy()
    for group in np.flatnonzero(found)[:1]:
        bits = int(found[group])
        for bit, message in enumerate(_MESSAGES):
            if bits >> bit & 1:
                raise CodecError(f"coded group {first + group}: {message}")
        raise RankError(
            f"coded group {first + group}: a rank is past the cells of its class; these are not its base cells"
        )
