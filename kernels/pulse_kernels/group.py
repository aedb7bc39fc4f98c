"""Coding of one group: changes of up to 16 MiB of cells as one byte string that is checked and decoded alone.

    offset  size  field (little-endian)
    0       2     runs: number of entries in the run table: 1 for ``gap``, the classes present for ``class``
    2       2     zero
    4       4     bytes of the gap token frame
    8       4     bytes of the magnitude token frame
    12      4     bytes of the raw bits
    16      6     a run: class (1 byte; 0 for ``gap``), shift (1), changed cells (4); classes strictly increase
    16+6r         gap tokens, magnitude tokens (a zstd frame each, content size declared), raw bits

``gap`` counts the cells between changed cells; ``class`` counts the cells of the same class between them, run by run.
"""

from __future__ import annotations

import struct
from typing import Literal

import numpy as np
import zstandard

from pulse_kernels.backend import Backend
from pulse_kernels.cells import Cells, CellType, Index
from pulse_kernels.errors import CodecError
from pulse_kernels.streams import Streams

GROUP_BYTES = 16 * 2**20
"""Cells of one group take at most this many bytes."""
CoderName = Literal["gap", "class"]
_HEAD = struct.Struct("<HHIII")
_RUN = np.dtype([("kind", "u1"), ("shift", "u1"), ("count", "<u4")])
_MAX_SHIFT = 24
_LEVEL = 1


def encode_group(
    backend: Backend,
    coder: CoderName,
    cell_type: CellType,
    cells: int,
    index: Index,
    distance: Cells,
    base: list[Cells] | None = None,
) -> bytes:
    """Code the changes of a group of ``cells`` cells.

    Args:
        backend: computes.
        coder: ``gap`` or ``class``; the latter needs ``base``.
        cell_type: of all cells of the group.
        cells: number of cells, at most GROUP_BYTES / width.
        index: uint32, strictly increasing positions below ``cells``, not empty.
        distance: cell-wide, none zero.
        base: the old cells, in spans that lie end to end.

    Returns:
        The same bytes for the same arguments and the same release of zstd, on every backend.
    """
    if coder == "gap":
        places, counts = index, np.array([len(index)], dtype=np.uint32)
        kinds, population = np.zeros(1, dtype=np.uint8), np.array([cells], dtype=np.uint32)
    else:
        if base is None:
            raise ValueError("the class coder needs the base cells")
        ranks, kind, populations = backend.class_ranks(base, index, cell_type)
        by_class = np.argsort(kind, kind="stable")
        places, distance = ranks[by_class], distance[by_class]
        every = np.bincount(kind, minlength=256).astype(np.uint32)
        kinds = np.flatnonzero(every).astype(np.uint8)
        counts, population = every[kinds], populations[kinds]
    gaps = _gaps(places, counts)
    shifts = np.array([_shift(int(p), int(c)) for p, c in zip(population, counts, strict=True)], dtype=np.uint8)
    streams = backend.pack(gaps, distance, counts, shifts)
    runs = np.empty(len(kinds), dtype=_RUN)
    runs["kind"], runs["shift"], runs["count"] = kinds, shifts, counts
    compressor = zstandard.ZstdCompressor(level=_LEVEL)
    gap_frame = compressor.compress(streams.gap_tokens.data)
    magnitude_frame = compressor.compress(streams.magnitude_tokens.data)
    head = _HEAD.pack(len(runs), 0, len(gap_frame), len(magnitude_frame), len(streams.bits))
    return b"".join((head, runs.tobytes(), gap_frame, magnitude_frame, streams.bits.tobytes()))


def decode_group(
    backend: Backend,
    coder: CoderName,
    cell_type: CellType,
    cells: int,
    changed: int,
    data: bytes | memoryview,
    base: list[Cells] | None = None,
) -> tuple[Index, Cells]:
    """Invert ``encode_group``: return (index, distance).

    Memory is bounded by ``changed``, which must be at most ``cells``, before anything is allocated.

    Raises:
        CodecError: the bytes break a rule of the format.
        RankError: (``class``) they don't fit these base cells.
    """
    if not 0 < changed <= cells <= GROUP_BYTES // cell_type.width:
        raise CodecError(f"{changed} changed cells of {cells} is not possible in a group")
    data = memoryview(data)
    if len(data) < _HEAD.size:
        raise CodecError("the group is shorter than its head")
    n_runs, zero, *sizes = _HEAD.unpack_from(data)
    at = _HEAD.size + n_runs * _RUN.itemsize
    if zero or not 0 < n_runs <= (256 if coder == "class" else 1) or at + sum(sizes) != len(data):
        raise CodecError("the group's head does not fit its size")
    runs = np.frombuffer(data[_HEAD.size : at], dtype=_RUN)
    counts, shifts = np.ascontiguousarray(runs["count"], np.uint32), np.ascontiguousarray(runs["shift"])
    kinds = runs["kind"].astype(np.int64)
    if int(counts.sum(dtype=np.uint64)) != changed or not counts.all() or int(shifts.max()) > _MAX_SHIFT:
        raise CodecError("the run table does not add up to the group's changed cells")
    if (np.diff(kinds) <= 0).any() or (coder == "gap" and kinds[0] != 0):
        raise CodecError("the classes of the run table are not in order")
    frames = []
    for size in sizes:
        frames.append(data[at : at + size])
        at += size
    streams = Streams(
        _tokens(frames[0], changed), _tokens(frames[1], changed), np.frombuffer(frames[2], dtype=np.uint8)
    )
    places, distance = backend.unpack(streams, counts, shifts, cell_type, cells)
    if coder == "gap":
        return places, distance
    if base is None:
        raise ValueError("the class coder needs the base cells")
    every = np.zeros(256, dtype=np.uint32)
    every[kinds] = counts
    index, source = backend.class_select(base, every, places, cell_type)
    return index, distance[source]


def _gaps(places: Index, counts: Index) -> Index:
    gaps = np.empty_like(places)
    np.subtract(places[1:], places[:-1] + np.uint32(1), out=gaps[1:])
    starts = np.cumsum(counts, dtype=np.int64) - counts
    gaps[starts] = places[starts]
    return gaps


def _shift(population: int, count: int) -> int:
    # The gaps are about geometric with this mean: their high parts then spread over some 24 tokens.
    return max(0, (population // count).bit_length() - 4)


def _tokens(frame: memoryview, count: int) -> Cells:
    try:
        parameters = zstandard.get_frame_parameters(frame)
        if parameters.content_size != count:
            raise CodecError(f"a frame declares {parameters.content_size} tokens for {count} changed cells")
        tokens = zstandard.ZstdDecompressor().decompress(frame, max_output_size=count, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise CodecError(f"zstd: {error}") from error
    if len(tokens) != count:
        raise CodecError(f"a frame holds {len(tokens)} tokens for {count} changed cells")
    return np.frombuffer(tokens, dtype=np.uint8)
