"""The numba backend: compiled loops that release the GIL, one specialization a cell width, cached on disk."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from pulse_kernels import numba_streams
from pulse_kernels.cells import Cells, CellType, Index
from pulse_kernels.digest_tables import LANE_SEEDS, coefficients
from pulse_kernels.errors import CodecError, RankError
from pulse_kernels.numba_compile import compile_all, compiled
from pulse_kernels.streams import Streams

_SCRATCH = 1 << 16
_SEEDS = np.array(LANE_SEEDS, dtype=np.uint64)
_FAULTS = {
    numba_streams.TOO_FAR: "a position is past the end of the span",
    numba_streams.BAD_DISTANCE: "a distance does not fit the cell's width",
    numba_streams.BAD_TOKEN: "a token is not valid",
    numba_streams.OUT_OF_BITS: "the raw bits end too early",
    numba_streams.BITS_LEFT: "raw bits are left over, or the padding is not zero",
}


class NumbaBackend:
    """Implements ``Backend`` with numba."""

    name = "numba"

    def __init__(self) -> None:
        self._scratch = threading.local()

    def _scratch_for(self, dtype: np.dtype[Any]) -> tuple[Index, Cells, Cells]:
        """Return this thread's output buffers of ``diff``: fresh ones a call would cost page faults."""
        buffers: tuple[Index, Cells, Cells] | None = getattr(self._scratch, dtype.name, None)
        if buffers is None:
            buffers = np.empty(_SCRATCH, np.uint32), np.empty(_SCRATCH, dtype), np.empty(_SCRATCH, dtype)
            setattr(self._scratch, dtype.name, buffers)
        return buffers

    def warm_up(self, width: int) -> None:
        """Compile or load every loop for cells of ``width`` bytes, so that no later call waits for the compiler."""
        compile_all(width)

    def diff(self, live: Cells, base: Cells) -> tuple[Index, Cells, Cells]:
        """See ``Backend.diff``."""
        return self._differences(compiled("diff", base.itemsize), live, base)

    def diff_f32(self, live: Cells, base: Cells) -> tuple[Index, Cells, Cells]:
        """See ``Backend.diff_f32``."""
        return self._differences(compiled("diff_f32", 2), live, base)

    def _differences(self, run: Callable[..., Any], live: Cells, base: Cells) -> tuple[Index, Cells, Cells]:
        buffers = self._scratch_for(base.dtype)
        done, parts = 0, []
        while True:
            found, done = run(live, base, done, *buffers)
            parts.append([buffer[:found].copy() for buffer in buffers])
            if done >= len(base):
                break
        index, old, new = parts[0] if len(parts) == 1 else map(np.concatenate, zip(*parts, strict=True))
        return index, old, new

    def cast_f32(self, live: Cells, out: Cells) -> None:
        """See ``Backend.cast_f32``."""
        compiled("cast_f32", 2)(live, out)

    def gather(self, cells: Cells, index: Index) -> Cells:
        """See ``Backend.gather``."""
        _check_index(cells, index)
        out = np.empty(len(index), dtype=cells.dtype)
        compiled("gather", cells.itemsize)(cells, index, out)
        return out

    def scatter(self, cells: Cells, index: Index, values: Cells) -> None:
        """See ``Backend.scatter``."""
        _check_index(cells, index)
        compiled("scatter", cells.itemsize)(cells, index, values)

    def distance(self, old: Cells, new: Cells, cell_type: CellType) -> Cells:
        """See ``Backend.distance``."""
        out = np.empty_like(old)
        compiled("distance", old.itemsize)(old, new, *_order_masks(cell_type), out)
        return out

    def move(self, old: Cells, distance: Cells, cell_type: CellType) -> Cells:
        """See ``Backend.move``."""
        out = np.empty_like(old)
        compiled("move", old.itemsize)(old, distance, *_order_masks(cell_type), out)
        return out

    def merge(self, first: tuple[Index, Cells], second: tuple[Index, Cells]) -> tuple[Index, Cells]:
        """See ``Backend.merge``."""
        total = len(first[0]) + len(second[0])
        index, step = np.empty(total, np.uint32), np.empty(total, first[1].dtype)
        length = compiled("merge", step.itemsize)(*first, *second, index, step)
        return index[:length].copy(), step[:length].copy()

    def union(self, first: Index, second: Index) -> Index:
        """See ``Backend.union``."""
        index = np.empty(len(first) + len(second), np.uint32)
        return index[: compiled("union", 4)(first, second, index)].copy()

    def locate(self, among: Index, index: Index) -> Index:
        """See ``Backend.locate``."""
        place = np.empty(len(index), np.uint32)
        compiled("locate", 4)(among, index, place)
        return place

    def digest(self, cells: Cells, start: int) -> tuple[int, int]:
        """See ``Backend.digest``."""
        lanes = np.zeros(2, dtype=np.uint64)
        compiled("digest", cells.itemsize)(
            cells, start, max(1, cells.itemsize // 2), _SEEDS, coefficients(0), coefficients(1), lanes
        )
        return int(lanes[0]), int(lanes[1])

    def digest_sparse(self, index: Index, values: Cells, start: int) -> tuple[int, int]:
        """See ``Backend.digest_sparse``."""
        lanes = np.zeros(2, dtype=np.uint64)
        compiled("digest_sparse", values.itemsize)(
            index,
            values,
            start,
            max(1, values.itemsize // 2),
            _SEEDS,
            coefficients(0),
            coefficients(1),
            lanes,
        )
        return int(lanes[0]), int(lanes[1])

    def class_ranks(self, spans: list[Cells], index: Index, cell_type: CellType) -> tuple[Index, Cells, Index]:
        """See ``Backend.class_ranks``."""
        counters = np.zeros(256, dtype=np.uint32)
        rank, kind = np.empty(len(index), np.uint32), np.empty(len(index), np.uint8)
        offset = done = 0
        for cells in spans:
            done = compiled("class_ranks", cells.itemsize)(
                cells, index, done, offset, cell_type.class_shift, cell_type.class_mask, counters, rank, kind
            )
            offset += len(cells)
        return rank, kind, counters

    def class_select(self, spans: list[Cells], counts: Index, ranks: Index, cell_type: CellType) -> tuple[Index, Index]:
        """See ``Backend.class_select``."""
        ends = np.cumsum(counts, dtype=np.int64)
        place = ends - counts
        wanted = np.full(256, 0xFFFFFFFF, dtype=np.uint32)
        present = np.flatnonzero(counts)
        wanted[present] = ranks[place[present]]
        counters = np.zeros(256, dtype=np.uint32)
        index, source = np.empty(len(ranks), np.uint32), np.empty(len(ranks), np.uint32)
        offset = found = 0
        for cells in spans:
            found = compiled("class_select", cells.itemsize)(
                *(cells, offset, cell_type.class_shift, cell_type.class_mask, counters, wanted, place, ends),
                *(ranks, index, source, found),
            )
            offset += len(cells)
        if found != len(ranks):
            raise RankError(f"{len(ranks) - found} ranks are past the cells of their class")
        return index, source

    def pack(self, gaps: Index, distance: Cells, counts: Index, shifts: Cells) -> Streams:
        """See ``Backend.pack``."""
        width = distance.itemsize
        gap_tokens, magnitude_tokens = np.empty(len(gaps), np.uint8), np.empty(len(gaps), np.uint8)
        total = compiled("tokens", width)(gaps, distance, 8 * width, counts, shifts, gap_tokens, magnitude_tokens)
        bits = np.empty((total + 7) // 8, dtype=np.uint8)
        compiled("raw_bits", width)(gaps, distance, 8 * width, counts, shifts, bits)
        return Streams(gap_tokens, magnitude_tokens, bits)

    def unpack(
        self, streams: Streams, counts: Index, shifts: Cells, cell_type: CellType, limit: int
    ) -> tuple[Index, Cells]:
        """See ``Backend.unpack``."""
        position = np.empty(len(streams.gap_tokens), np.uint32)
        step = np.empty(len(position), cell_type.dtype)
        fault = compiled("unpack", cell_type.width)(
            *(streams.gap_tokens, streams.magnitude_tokens, streams.bits, counts, shifts),
            *(cell_type.bits, limit, position, step),
        )
        if fault != numba_streams.OK:
            raise CodecError(_FAULTS[fault])
        return position, step


def _check_index(cells: Cells, index: Index) -> None:
    if len(index) and int(index.max()) >= len(cells):
        raise IndexError(f"index {int(index.max())} is out of range for {len(cells)} cells")


def _order_masks(cell_type: CellType) -> tuple[int, int]:
    return ((1 << (cell_type.bits - 1)), (1 << cell_type.bits) - 1) if cell_type.is_float else (0, 0)
