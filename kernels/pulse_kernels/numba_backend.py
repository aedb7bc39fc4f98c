"""The numba backend: compiled loops that release the GIL, one specialization a cell width, cached on disk."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numba import types

from pulse_kernels import numba_kernels as loops
from pulse_kernels.cells import Cells, CellType, Index
from pulse_kernels.digest_tables import LANE_SEEDS, coefficients
from pulse_kernels.errors import CodecError, RankError
from pulse_kernels.streams import Streams

_SCRATCH = 1 << 16
_SEEDS = np.array(LANE_SEEDS, dtype=np.uint64)
_U8, _U32, _U64, _INT = types.uint8, types.uint32, types.uint64, types.int64
_FAULTS = {
    loops.TOO_FAR: "a position is past the end of the span",
    loops.BAD_DISTANCE: "a distance does not fit the cell's width",
    loops.BAD_TOKEN: "a token is not valid",
    loops.OUT_OF_BITS: "the raw bits end too early",
    loops.BITS_LEFT: "raw bits are left over, or the padding is not zero",
}


def _read(cell: Any) -> Any:
    # The widest array type: whatever is aligned and writable converts to it, so one specialization serves all.
    return types.Array(cell, 1, "C", readonly=True, aligned=False)


def _write(cell: Any) -> Any:
    return types.Array(cell, 1, "C", aligned=False)


_COMPILING = threading.Lock()
_done: dict[tuple[str, int], Callable[..., Any]] = {}


def _compiled(name: str, width: int) -> Callable[..., Any]:
    """Return one loop for cells of ``width`` bytes: compiled once, by whichever thread needs it first."""
    function = _done.get((name, width))
    if function is None:
        with _COMPILING:
            function = _done.get((name, width)) or _compile(name, width)
            _done[name, width] = function
    return function


def _compile(name: str, width: int) -> Callable[..., Any]:
    """Compile one loop, or load it from numba's cache on disk."""
    cell = {1: types.uint8, 2: types.uint16, 4: types.uint32, 8: types.uint64}[width]
    tables = (_read(_U64), _read(_U32), _read(_U32), _write(_U64))
    signatures: dict[str, tuple[Any, ...]] = {
        "diff": (_read(cell), _read(cell), _INT, _write(_U32), _write(cell), _write(cell)),
        "diff_f32": (_read(_U32), _read(cell), _INT, _write(_U32), _write(cell), _write(cell)),
        "cast_f32": (_read(_U32), _write(cell)),
        "gather": (_read(cell), _read(_U32), _write(cell)),
        "scatter": (_write(cell), _read(_U32), _read(cell)),
        "distance": (_read(cell), _read(cell), cell, cell, _write(cell)),
        "move": (_read(cell), _read(cell), cell, cell, _write(cell)),
        "merge": (_read(_U32), _read(cell), _read(_U32), _read(cell), _write(_U32), _write(cell)),
        "digest": (_read(cell), _INT, _INT, *tables),
        "digest_sparse": (_read(_U32), _read(cell), _INT, _INT, *tables),
        "class_ranks": (
            *(_read(cell), _read(_U32), _INT, _INT, cell, cell),
            *(_write(_U32), _write(_U32), _write(_U8)),
        ),
        "class_select": (
            *(_read(cell), _INT, cell, cell, _write(_U32), _write(_U32), _write(_INT), _read(_INT)),
            *(_read(_U32), _write(_U32), _write(_U32), _INT),
        ),
        "tokens": (_read(_U32), _read(cell), _INT, _read(_U32), _read(_U8), _write(_U8), _write(_U8)),
        "raw_bits": (_read(_U32), _read(cell), _INT, _read(_U32), _read(_U8), _write(_U8)),
        "unpack": (
            *(_read(_U8), _read(_U8), _read(_U8), _read(_U32), _read(_U8), _INT, _INT),
            *(_write(_U32), _write(cell)),
        ),
    }
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
    try:
        function: Callable[..., Any] = numba.njit(signatures[name], cache=True, **options)(getattr(loops, name))
    except RuntimeError as error:
        if "cannot cache" not in str(error):
            raise
        # No folder can be written, not even the user's: every process compiles for itself.
        function = numba.njit(signatures[name], **options)(getattr(loops, name))
    return function


for _helper in ("_bf16", "_mix", "_length"):
    setattr(loops, _helper, numba.njit(nogil=True, inline="always")(getattr(loops, _helper)))


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
        for name in ("diff", "gather", "scatter", "distance", "move", "merge", "digest", "digest_sparse"):
            _compiled(name, width)
        for name in ("class_ranks", "class_select", "tokens", "raw_bits", "unpack"):
            _compiled(name, width)
        if width == 2:
            _compiled("cast_f32", 2)
            _compiled("diff_f32", 2)

    def diff(self, live: Cells, base: Cells) -> tuple[Index, Cells, Cells]:
        """See ``Backend.diff``."""
        return self._differences(_compiled("diff", base.itemsize), live, base)

    def diff_f32(self, live: Cells, base: Cells) -> tuple[Index, Cells, Cells]:
        """See ``Backend.diff_f32``."""
        return self._differences(_compiled("diff_f32", 2), live, base)

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
        _compiled("cast_f32", 2)(live, out)

    def gather(self, cells: Cells, index: Index) -> Cells:
        """See ``Backend.gather``."""
        _check_index(cells, index)
        out = np.empty(len(index), dtype=cells.dtype)
        _compiled("gather", cells.itemsize)(cells, index, out)
        return out

    def scatter(self, cells: Cells, index: Index, values: Cells) -> None:
        """See ``Backend.scatter``."""
        _check_index(cells, index)
        _compiled("scatter", cells.itemsize)(cells, index, values)

    def distance(self, old: Cells, new: Cells, cell_type: CellType) -> Cells:
        """See ``Backend.distance``."""
        out = np.empty_like(old)
        _compiled("distance", old.itemsize)(old, new, *_order_masks(cell_type), out)
        return out

    def move(self, old: Cells, distance: Cells, cell_type: CellType) -> Cells:
        """See ``Backend.move``."""
        out = np.empty_like(old)
        _compiled("move", old.itemsize)(old, distance, *_order_masks(cell_type), out)
        return out

    def merge(self, first: tuple[Index, Cells], second: tuple[Index, Cells]) -> tuple[Index, Cells]:
        """See ``Backend.merge``."""
        total = len(first[0]) + len(second[0])
        index, step = np.empty(total, np.uint32), np.empty(total, first[1].dtype)
        length = _compiled("merge", step.itemsize)(*first, *second, index, step)
        return index[:length].copy(), step[:length].copy()

    def digest(self, cells: Cells, start: int) -> tuple[int, int]:
        """See ``Backend.digest``."""
        lanes = np.zeros(2, dtype=np.uint64)
        _compiled("digest", cells.itemsize)(
            cells, start, max(1, cells.itemsize // 2), _SEEDS, coefficients(0), coefficients(1), lanes
        )
        return int(lanes[0]), int(lanes[1])

    def digest_sparse(self, index: Index, values: Cells, start: int) -> tuple[int, int]:
        """See ``Backend.digest_sparse``."""
        lanes = np.zeros(2, dtype=np.uint64)
        _compiled("digest_sparse", values.itemsize)(
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
            done = _compiled("class_ranks", cells.itemsize)(
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
            found = _compiled("class_select", cells.itemsize)(
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
        total = _compiled("tokens", width)(gaps, distance, 8 * width, counts, shifts, gap_tokens, magnitude_tokens)
        bits = np.empty((total + 7) // 8, dtype=np.uint8)
        _compiled("raw_bits", width)(gaps, distance, 8 * width, counts, shifts, bits)
        return Streams(gap_tokens, magnitude_tokens, bits)

    def unpack(
        self, streams: Streams, counts: Index, shifts: Cells, cell_type: CellType, limit: int
    ) -> tuple[Index, Cells]:
        """See ``Backend.unpack``."""
        position = np.empty(len(streams.gap_tokens), np.uint32)
        step = np.empty(len(position), cell_type.dtype)
        fault = _compiled("unpack", cell_type.width)(
            *(streams.gap_tokens, streams.magnitude_tokens, streams.bits, counts, shifts),
            *(cell_type.bits, limit, position, step),
        )
        if fault != loops.OK:
            raise CodecError(_FAULTS[fault])
        return position, step


def _check_index(cells: Cells, index: Index) -> None:
    if len(index) and int(index.max()) >= len(cells):
        raise IndexError(f"index {int(index.max())} is out of range for {len(cells)} cells")


def _order_masks(cell_type: CellType) -> tuple[int, int]:
    return ((1 << (cell_type.bits - 1)), (1 << cell_type.bits) - 1) if cell_type.is_float else (0, 0)
