"""The numba backend: compiled loops that release the GIL, one specialization a cell width, cached on disk."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from pulse_kernels.cells import Cells, CellType, Index
from pulse_kernels.cpu.coding import NumbaCoding
from pulse_kernels.cpu.compile import compiled, loops_of
from pulse_kernels.cpu.loops.class_counts import COUNTERS
from pulse_kernels.cpu.loops.spans import table
from pulse_kernels.errors import RankError
from pulse_kernels.format.digest import LANE_SEEDS, coefficients
from pulse_kernels.protocol import Advanced, Coded, Kinds, Lanes, Stepped
from pulse_kernels.spans import Spans, SpanTable, dtype_of

_SCRATCH = 1 << 16
_NONE = {width: np.empty(0, f"<u{width}") for width in (1, 2, 4, 8)}
_SEEDS = np.array(LANE_SEEDS, dtype=np.uint64)


class NumbaBackend:
    """Implements ``Backend`` with numba."""

    name = "numba"

    def __init__(self) -> None:
        self._scratch = threading.local()
        self._coding = NumbaCoding()

    def _scratch_for(self, dtype: np.dtype[Any]) -> tuple[Index, Cells, Cells]:
        """Return this thread's output buffers of ``diff``: fresh ones a call would cost page faults."""
        buffers: tuple[Index, Cells, Cells] | None = getattr(self._scratch, dtype.name, None)
        if buffers is None:
            buffers = np.empty(_SCRATCH, np.uint32), np.empty(_SCRATCH, dtype), np.empty(_SCRATCH, dtype)
            setattr(self._scratch, dtype.name, buffers)
        return buffers

    def warm_up(self, width: int, stopped: Callable[[], bool] = lambda: False) -> None:
        """Compile or load every loop for cells of ``width`` bytes, so that no later call waits for the compiler."""
        for name, cells in loops_of(width):
            if stopped():
                return
            compiled(name, cells)

    def diff(self, live: Cells, base: Cells) -> tuple[Index, Cells, Cells]:
        """See ``Backend.diff``."""
        return self._differences([live], [base], None)[:3]

    def advance_spans(self, live: Spans, base: Spans, start: int) -> Advanced:
        """See ``Backend.advance_spans``."""
        return self._differences(live, base, start)

    def _differences(self, live: Spans, base: Spans, start: int | None) -> Advanced:
        """Run a diff, a full buffer at a time; with ``start``, take it over, and sum up what the cache still holds."""
        dtype, keep = dtype_of(base), start is not None
        width, buffers, sums = dtype.itemsize, self._scratch_for(dtype), np.zeros(4, np.uint64)
        under = _table(base, width, write=keep)
        over = _live_table(live, under, width)
        like = _NONE[4 if width == 2 else width], _NONE[width]
        run = compiled("diff", width)
        span = begin = 0
        parts = []
        while span < len(under):
            found, span, begin = run(over.at, over.wide, under.at, under.ends, *like, span, begin, keep, *buffers)
            index, old, new = (buffer[:found] for buffer in buffers)
            if found and start is not None:
                _add_sums(index, old, new, start, sums)
            parts.append((index.copy(), old.copy(), new.copy()))
        index, old, new = parts[0] if len(parts) == 1 else map(np.concatenate, zip(*parts, strict=True))
        return index, old, new, *_lanes(sums)

    def step(self, cells: Cells, index: Index, distance: Cells, cell_type: CellType, start: int) -> Stepped:
        """See ``Backend.step``."""
        return self.step_spans([cells], index, distance, cell_type, start)

    def step_spans(self, spans: Spans, index: Index, distance: Cells, cell_type: CellType, start: int) -> Stepped:
        """See ``Backend.step_spans``."""
        old = self.gather_spans(spans, index)
        new = self.move(old, distance, cell_type)
        sums = np.zeros(4, np.uint64)
        _add_sums(index, old, new, start, sums)
        return old, new, *_lanes(sums)

    def move_spans(
        self, spans: Spans, index: Index, distance: Cells, cell_type: CellType, start: int
    ) -> tuple[Lanes, Lanes]:
        """See ``Backend.move_spans``."""
        width, sums = cell_type.width, np.zeros(4, np.uint64)
        cells, none = _table(spans, width, write=True), _NONE[width]
        gather, move, scatter = (compiled(name, width) for name in ("gather", "move", "scatter"))
        masks, (_, old, new) = _order_masks(cell_type), self._scratch_for(cell_type.dtype)
        for first in range(
            0, len(index), _SCRATCH
        ):  # one loop for all would mix loads and stores, and take much longer
            places, steps = index[first : first + _SCRATCH], distance[first : first + _SCRATCH]
            before, after = old[: len(places)], new[: len(places)]
            if not gather(cells.at, cells.ends, none, places, before):
                raise _out_of_range(cells, index)
            move(before, steps, *masks, after)
            scatter(cells.at, cells.ends, none, places, after)
            _add_sums(places, before, after, start, sums)
        return _lanes(sums)

    def cast_f32(self, live: Cells, out: Cells) -> None:
        """See ``Backend.cast_f32``."""
        compiled("cast_f32", 2)(live, out)

    def gather(self, cells: Cells, index: Index) -> Cells:
        """See ``Backend.gather``."""
        return self.gather_spans([cells], index)

    def gather_spans(self, spans: Spans, index: Index) -> Cells:
        """See ``Backend.gather_spans``."""
        dtype = dtype_of(spans)
        width, out = dtype.itemsize, np.empty(len(index), dtype)
        cells = _table(spans, width)
        if not compiled("gather", width)(cells.at, cells.ends, _NONE[width], index, out):
            raise _out_of_range(cells, index)
        return out

    def scatter(self, cells: Cells, index: Index, values: Cells) -> None:
        """See ``Backend.scatter``."""
        self.scatter_spans([cells], index, values)

    def scatter_spans(self, spans: Spans, index: Index, values: Cells) -> None:
        """See ``Backend.scatter_spans``."""
        width = dtype_of(spans).itemsize
        cells = _table(spans, width, write=True)
        if not compiled("scatter", width)(cells.at, cells.ends, _NONE[width], index, values):
            raise _out_of_range(cells, index)

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

    def digest(self, cells: Cells, start: int) -> Lanes:
        """See ``Backend.digest``."""
        return self.digest_spans([cells], start)

    def digest_spans(self, spans: Spans, start: int) -> Lanes:
        """See ``Backend.digest_spans``."""
        width, sums = dtype_of(spans).itemsize, np.zeros(2, np.uint64)
        cells = _table(spans, width)
        compiled("digest", width)(cells.at, cells.ends, _NONE[width], *_digest_arguments(start, width, sums))
        lane_0, lane_1 = sums.tolist()
        return lane_0, lane_1

    def digest_sparse(self, index: Index, values: Cells, start: int) -> Lanes:
        """See ``Backend.digest_sparse``."""
        sums = np.zeros(4, np.uint64)
        _add_sums(index, values, values, start, sums)
        return _lanes(sums)[0]

    def digest_changes(self, index: Index, old: Cells, new: Cells, start: int) -> tuple[Lanes, Lanes]:
        """See ``Backend.digest_changes``."""
        sums = np.zeros(4, np.uint64)
        _add_sums(index, old, new, start, sums)
        return _lanes(sums)

    def count_classes(self, cells: Cells, cell_type: CellType) -> Index:
        """See ``Backend.count_classes``."""
        return self._coding.count_classes(cells, cell_type)

    def class_ranks(
        self, spans: Spans, index: Index, old: Cells, cell_type: CellType, first: int, classes: int
    ) -> tuple[Index, Kinds, Index]:
        """See ``Backend.class_ranks``."""
        rank, kind = np.empty(len(index), np.uint32), np.empty(len(index), np.uint8)
        totals, bounds = np.zeros(COUNTERS, np.uint32), _bounds(cell_type, first, classes)
        cells = _table(spans, cell_type.width)
        run, none = compiled("class_ranks", cell_type.width), _NONE[cell_type.width]
        if run(cells.at, cells.ends, none, index, old, *bounds, totals, rank, kind) != len(index):
            raise _out_of_range(cells, index)
        return rank, kind, totals[:classes][::-1].copy()

    def class_select(
        self, spans: Spans, counts: Index, ranks: Index, cell_type: CellType, first: int, classes: int
    ) -> tuple[Index, Index, Cells]:
        """See ``Backend.class_select``."""
        ends = np.cumsum(counts, dtype=np.int64)
        # The loop numbers classes from the highest down.
        ends, place, bounds = ends[::-1].copy(), (ends - counts)[::-1].copy(), _bounds(cell_type, first, classes)
        wanted = np.full(COUNTERS, 0xFFFFFFFF, np.uint32)
        present = np.flatnonzero(place < ends)
        wanted[present] = ranks[place[present]]
        index, source = np.empty(len(ranks), np.uint32), np.empty(len(ranks), np.uint32)
        old = np.empty(len(ranks), cell_type.dtype)
        cells = _table(spans, cell_type.width)
        run, none = compiled("class_select", cell_type.width), _NONE[cell_type.width]
        found = run(cells.at, cells.ends, none, *bounds, wanted, place, ends, ranks, index, source, old)
        if found != len(ranks):
            raise RankError(f"{len(ranks) - found} ranks are past the cells of their class")
        return index, source, old

    def encode_changes(
        self,
        cell_type: CellType,
        places: Index,
        kinds: Kinds | None,
        counts: Index,
        parameters: Kinds | None,
        old: Cells,
        new: Cells,
    ) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint16], npt.NDArray[np.uint16]]:
        """See ``Backend.encode_changes``."""
        return self._coding.encode_changes(cell_type, places, kinds, counts, parameters, old, new)

    def decode_changes(self, coded: Coded, cell_type: CellType, limit: int) -> tuple[Index, Cells]:
        """See ``Backend.decode_changes``."""
        return self._coding.decode_changes(coded, cell_type, limit)

    def move_coded(self, coded: Coded, cells: Cells, cell_type: CellType, start: int) -> tuple[Lanes, Lanes]:
        """See ``Backend.move_coded``."""
        sums, spans = np.zeros(4, np.uint64), _table([cells], cell_type.width, write=True)
        self._coding.walk_coded(coded, spans, cell_type, _digest_arguments(start, cell_type.width, sums), write=True)
        return _lanes(sums)

    def step_coded(self, coded: Coded, spans: Spans, cell_type: CellType, start: int) -> Advanced:
        """See ``Backend.step_coded``."""
        sums, table_ = np.zeros(4, np.uint64), _table(spans, cell_type.width)
        found = self._coding.walk_coded(
            coded, table_, cell_type, _digest_arguments(start, cell_type.width, sums), write=False
        )
        return *found, *_lanes(sums)

    def inward(self, old: Cells, source: Index, steps: Cells, cell_type: CellType) -> Cells:
        """See ``Backend.inward``."""
        found = self.gather(steps, source)
        if not cell_type.is_float:
            return found
        # All ones where the sign bit is set: (x ^ ones) - ones negates, with no branch for a random sign to mislead.
        negative = cell_type.dtype.type(0) - (old >> cell_type.dtype.type(cell_type.bits - 1))
        negated: Cells = (found ^ negative) - negative
        return negated


def _table(spans: Spans, width: int, *, write: bool = False) -> SpanTable:
    """Return where spans of cells of ``width`` bytes lie; what the loops can't work on is refused."""
    if not isinstance(spans, SpanTable):
        where = compiled("address_to_write" if write else "address", width)
        return table(spans, where, dtype_of(spans))
    if spans.dtype.itemsize != width or spans.wide.any() or (write and not spans.writable):
        raise ValueError(f"spans of {spans.dtype} are not {'writable ' * write}cells of {width} bytes")
    return spans


def _live_table(live: Spans, base: SpanTable, width: int) -> SpanTable:
    """Return where live spans over a base lie, of which some may be float32 patterns, to be rounded to BF16."""
    if isinstance(live, SpanTable):
        spans = live
    else:
        plain, double = compiled("address", width), compiled("address", 4 if width == 2 else width)
        found = table(live, lambda cells: plain(cells) if cells.itemsize == width else double(cells), base.dtype)
        spans = replace(found, wide=np.array([width == 2 and cells.itemsize == 4 for cells in live], np.bool))
    if spans.dtype != base.dtype or not np.array_equal(spans.ends, base.ends):
        raise ValueError("live cells and base are not of the same sizes")
    return spans


def _digest_arguments(start: int, width: int, sums: npt.NDArray[np.uint64]) -> tuple[Any, ...]:
    """Return what the loops of the digest get last, for cells of ``width`` bytes, the first at flat index ``start``."""
    return start, max(1, width // 2), _SEEDS, coefficients(0), coefficients(1), sums


def _add_sums(index: Index, old: Cells, new: Cells, start: int, sums: npt.NDArray[np.uint64]) -> None:
    compiled("digest_sparse", old.itemsize)(index, old, new, *_digest_arguments(start, old.itemsize, sums))


def _lanes(sums: npt.NDArray[np.uint64]) -> tuple[Lanes, Lanes]:
    old_0, old_1, new_0, new_1 = sums.tolist()
    return (old_0, old_1), (new_0, new_1)


def _out_of_range(cells: SpanTable, index: Index) -> IndexError:
    return IndexError(f"index {int(index.max())} is out of range for {int(cells.ends[-1])} cells, or not in order")


def _bounds(cell_type: CellType, first: int, classes: int) -> tuple[int, int, int, int]:
    """Return (shift, mask, first, last) as the class loops take them."""
    last = first + classes - 1
    if not 0 <= first <= last < first + COUNTERS or last > 255:
        raise ValueError(f"{classes} classes from {first} on; there are 1 to {COUNTERS}, and the last is at most 255")
    return cell_type.class_shift, cell_type.class_mask, first, last


def _order_masks(cell_type: CellType) -> tuple[int, int]:
    return ((1 << (cell_type.bits - 1)), (1 << cell_type.bits) - 1) if cell_type.is_float else (0, 0)
