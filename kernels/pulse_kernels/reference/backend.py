"""The plain NumPy reference of every kernel: written to be read, and what every fast path is tested against."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from pulse_kernels.cells import Cells, CellType, Index
from pulse_kernels.errors import RankError
from pulse_kernels.format.digest import BLOCK, MASK64, coefficients, multiplier
from pulse_kernels.format.symbols import outward
from pulse_kernels.protocol import Advanced, Coded, Kinds, Stepped
from pulse_kernels.reference.coding import decode_changes, encode_changes
from pulse_kernels.spans import Spans, arrays_of

U64 = npt.NDArray[np.uint64]


class ReferenceBackend:
    """Implements ``Backend`` with NumPy and plain Python."""

    name = "reference"

    def warm_up(self, width: int, stopped: Callable[[], bool] = lambda: False) -> None:
        """Do nothing: NumPy needs no warm-up."""

    def diff(self, live: Cells, base: Cells) -> tuple[Index, Cells, Cells]:
        """See ``Backend.diff``."""
        index = np.flatnonzero(live != base).astype(np.uint32)
        return index, base[index], live[index]

    def step(self, cells: Cells, index: Index, distance: Cells, cell_type: CellType, start: int) -> Stepped:
        """See ``Backend.step``."""
        old = self.gather(cells, index)
        new = self.move(old, distance, cell_type)
        return old, new, self.digest_sparse(index, old, start), self.digest_sparse(index, new, start)

    def advance_spans(self, live: Spans, base: Spans, start: int) -> Advanced:
        """See ``Backend.advance_spans``."""
        live, base = arrays_of(live), arrays_of(base)
        if [len(cells) for cells in live] != [len(cells) for cells in base]:
            raise ValueError("live cells and base are not of the same sizes")
        parts, at = [], 0
        for over, under in zip(live, base, strict=True):
            if over.dtype == under.dtype:
                cells = over
            else:
                cells = np.empty_like(under)
                self.cast_f32(over, cells)
            index, old, new = self.diff(cells, under)
            under[index] = new
            parts.append((index + np.uint32(at), old, new))
            at += len(under)
        index, old, new = map(np.concatenate, zip(*parts, strict=True))
        return index, old, new, self.digest_sparse(index, old, start), self.digest_sparse(index, new, start)

    def step_spans(self, spans: Spans, index: Index, distance: Cells, cell_type: CellType, start: int) -> Stepped:
        """See ``Backend.step_spans``."""
        return self.step(np.concatenate(arrays_of(spans)), index, distance, cell_type, start)

    def move_spans(
        self, spans: Spans, index: Index, distance: Cells, cell_type: CellType, start: int
    ) -> tuple[tuple[int, int], tuple[int, int]]:
        """See ``Backend.move_spans``."""
        _, new, *sums = self.step_spans(spans, index, distance, cell_type, start)
        self.scatter_spans(spans, index, new)
        return sums[0], sums[1]

    def gather_spans(self, spans: Spans, index: Index) -> Cells:
        """See ``Backend.gather_spans``."""
        return self.gather(np.concatenate(arrays_of(spans)), index)

    def scatter_spans(self, spans: Spans, index: Index, values: Cells) -> None:
        """See ``Backend.scatter_spans``."""
        spans = arrays_of(spans)
        cells = np.concatenate(spans)
        self.scatter(cells, index, values)
        for span, changed in zip(spans, np.split(cells, np.cumsum([len(span) for span in spans])), strict=False):
            span[:] = changed

    def digest_spans(self, spans: Spans, start: int) -> tuple[int, int]:
        """See ``Backend.digest_spans``."""
        return self.digest(np.concatenate(arrays_of(spans)), start)

    def cast_f32(self, live: Cells, out: Cells) -> None:
        """See ``Backend.cast_f32``."""
        wide = live.astype(np.uint64)
        rounded = (wide + 0x7FFF + ((wide >> np.uint64(16)) & np.uint64(1))) >> np.uint64(16)
        quiet = (wide >> np.uint64(16)) | np.uint64(0x40)
        out[:] = np.where((wide & 0x7FFFFFFF) > 0x7F800000, quiet, rounded).astype(np.uint16)

    def gather(self, cells: Cells, index: Index) -> Cells:
        """See ``Backend.gather``."""
        result: Cells = cells[index]
        return result

    def scatter(self, cells: Cells, index: Index, values: Cells) -> None:
        """See ``Backend.scatter``."""
        if len(index) and int(index.max()) >= len(cells):
            raise IndexError(f"index {int(index.max())} is out of range for {len(cells)} cells")
        cells[index] = values

    def distance(self, old: Cells, new: Cells, cell_type: CellType) -> Cells:
        """See ``Backend.distance``."""
        return order(new, cell_type) - order(old, cell_type)

    def move(self, old: Cells, distance: Cells, cell_type: CellType) -> Cells:
        """See ``Backend.move``."""
        return unorder(order(old, cell_type) + distance, cell_type)

    def merge(self, first: tuple[Index, Cells], second: tuple[Index, Cells]) -> tuple[Index, Cells]:
        """See ``Backend.merge``."""
        index, inverse = np.unique(np.concatenate([first[0], second[0]]), return_inverse=True)
        total = np.zeros(len(index), dtype=first[1].dtype)
        np.add.at(total, inverse, np.concatenate([first[1], second[1]]))
        kept = total != 0
        return index[kept], total[kept]

    def union(self, first: Index, second: Index) -> Index:
        """See ``Backend.union``."""
        return np.union1d(first, second)

    def locate(self, among: Index, index: Index) -> Index:
        """See ``Backend.locate``."""
        return np.searchsorted(among, index).astype(np.uint32)

    def digest(self, cells: Cells, start: int) -> tuple[int, int]:
        """See ``Backend.digest``."""
        return self.digest_sparse(np.arange(len(cells), dtype=np.uint32), cells, start)

    def digest_sparse(self, index: Index, values: Cells, start: int) -> tuple[int, int]:
        """See ``Backend.digest_sparse``."""
        flat = index.astype(np.uint64) + np.uint64(start)
        block, within = flat // BLOCK, (flat % BLOCK).astype(np.int64)
        blocks, inverse = np.unique(block, return_inverse=True)
        lanes = []
        for lane in (0, 1):
            total = 0
            for limb in range(max(1, values.dtype.itemsize // 2)):
                scale = np.array([multiplier(lane, 4 * int(b) + limb) for b in blocks], dtype=np.uint64)
                part = (values.astype(np.uint64) >> np.uint64(16 * limb)) & np.uint64(0xFFFF)
                products = part * coefficients(lane)[within].astype(np.uint64)
                total += int((products * scale[inverse]).sum(dtype=np.uint64)) if len(products) else 0
            lanes.append(total & MASK64)
        return lanes[0], lanes[1]

    def digest_changes(
        self, index: Index, old: Cells, new: Cells, start: int
    ) -> tuple[tuple[int, int], tuple[int, int]]:
        """See ``Backend.digest_changes``."""
        return self.digest_sparse(index, old, start), self.digest_sparse(index, new, start)

    def count_classes(self, cells: Cells, cell_type: CellType) -> Index:
        """See ``Backend.count_classes``."""
        return np.bincount(cell_type.class_of(cells), minlength=256).astype(np.uint32)

    def class_ranks(
        self, spans: Spans, index: Index, old: Cells, cell_type: CellType, first: int, classes: int
    ) -> tuple[Index, Kinds, Index]:
        """See ``Backend.class_ranks``."""
        kinds = _kinds(spans, cell_type, first, classes)
        kinds[index] = _kinds([old], cell_type, first, classes)
        population = np.bincount(kinds, minlength=classes).astype(np.uint32)
        rank = np.empty(len(kinds), dtype=np.uint32)
        for kind in range(classes):
            rank[kinds == kind] = np.arange(population[kind], dtype=np.uint32)
        return rank[index], kinds[index], population

    def class_select(
        self, spans: Spans, counts: Index, ranks: Index, cell_type: CellType, first: int, classes: int
    ) -> tuple[Index, Index, Cells]:
        """See ``Backend.class_select``."""
        kinds = _kinds(spans, cell_type, first, classes)
        found = []
        ends = np.cumsum(counts)
        for kind in np.flatnonzero(counts):
            members = np.flatnonzero(kinds == kind)
            wanted = ranks[ends[kind] - counts[kind] : ends[kind]]
            if int(wanted.max()) >= len(members):
                raise RankError(f"rank {int(wanted.max())} is past the {len(members)} cells of class {first + kind}")
            found.append(members[wanted])
        index = np.concatenate(found) if found else np.empty(0, dtype=np.int64)
        source = np.argsort(index, kind="stable")
        index = index[source]
        return index.astype(np.uint32), source.astype(np.uint32), np.concatenate(arrays_of(spans))[index]

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
        steps = self.distance(old, new, cell_type)
        if kinds is not None:
            by_kind = np.argsort(kinds, kind="stable")
            places, steps = places[by_kind], outward(steps, old, cell_type)[by_kind]
        return encode_changes(places, steps, counts, parameters)

    def decode_changes(self, coded: Coded, cell_type: CellType, limit: int) -> tuple[Index, Cells]:
        """See ``Backend.decode_changes``."""
        return decode_changes(coded, cell_type, limit)

    def move_coded(
        self, coded: Coded, cells: Cells, cell_type: CellType, start: int
    ) -> tuple[tuple[int, int], tuple[int, int]]:
        """See ``Backend.move_coded``."""
        return self.move_spans([cells], *self.decode_changes(coded, cell_type, len(cells)), cell_type, start)

    def step_coded(self, coded: Coded, spans: Spans, cell_type: CellType, start: int) -> Advanced:
        """See ``Backend.step_coded``."""
        index, steps = self.decode_changes(coded, cell_type, sum(map(len, arrays_of(spans))))
        return index, *self.step_spans(spans, index, steps, cell_type, start)

    def inward(self, old: Cells, source: Index, steps: Cells, cell_type: CellType) -> Cells:
        """See ``Backend.inward``."""
        return outward(steps[source], old, cell_type)


def _kinds(spans: Spans, cell_type: CellType, first: int, classes: int) -> Kinds:
    values = cell_type.class_of(np.concatenate(arrays_of(spans))).astype(np.int64)
    return (np.clip(values, first, first + classes - 1) - first).astype(np.uint8)


def order(cells: Cells, cell_type: CellType) -> Cells:
    """Return each pattern's place in the dtype's order: a bijection on unsigned integers of the cell's width."""
    if not cell_type.is_float:
        return cells
    top = cells.dtype.type(1 << (cell_type.bits - 1))
    return np.where(cells & top, ~cells, cells | top)


def unorder(place: Cells, cell_type: CellType) -> Cells:
    """Invert ``order``."""
    if not cell_type.is_float:
        return place
    top = place.dtype.type(1 << (cell_type.bits - 1))
    return np.where(place & top, place ^ top, ~place)
