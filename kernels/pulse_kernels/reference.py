"""The plain NumPy reference of every kernel: written to be read, and what every fast path is tested against."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from pulse_kernels.cells import Cells, CellType, Index
from pulse_kernels.digest_tables import BLOCK, MASK64, coefficients, multiplier
from pulse_kernels.errors import CodecError, RankError
from pulse_kernels.streams import DIRECT, TOKEN_BASE, Streams

U64 = npt.NDArray[np.uint64]


class ReferenceBackend:
    """Implements ``Backend`` with NumPy and plain Python."""

    name = "reference"

    def warm_up(self, width: int) -> None:
        """There is nothing to prepare."""

    def diff(self, live: Cells, base: Cells) -> tuple[Index, Cells, Cells]:
        """See ``Backend.diff``."""
        index = np.flatnonzero(live != base).astype(np.uint32)
        return index, base[index], live[index]

    def diff_f32(self, live: Cells, base: Cells) -> tuple[Index, Cells, Cells]:
        """See ``Backend.diff_f32``."""
        rounded = np.empty_like(base)
        self.cast_f32(live, rounded)
        return self.diff(rounded, base)

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

    def class_ranks(self, spans: list[Cells], index: Index, cell_type: CellType) -> tuple[Index, Cells, Index]:
        """See ``Backend.class_ranks``."""
        classes = cell_type.class_of(np.concatenate(spans))
        population = np.bincount(classes, minlength=256).astype(np.uint32)
        rank = np.empty(len(classes), dtype=np.uint32)
        for c in np.flatnonzero(population):
            rank[classes == c] = np.arange(population[c], dtype=np.uint32)
        return rank[index], classes[index], population

    def class_select(self, spans: list[Cells], counts: Index, ranks: Index, cell_type: CellType) -> tuple[Index, Index]:
        """See ``Backend.class_select``."""
        classes = cell_type.class_of(np.concatenate(spans))
        found = []
        ends = np.cumsum(counts)
        for c in np.flatnonzero(counts):
            of_class = np.flatnonzero(classes == c)
            wanted = ranks[ends[c] - counts[c] : ends[c]]
            if int(wanted.max()) >= len(of_class):
                raise RankError(f"rank {int(wanted.max())} is past the {len(of_class)} cells of class {c}")
            found.append(of_class[wanted])
        index = np.concatenate(found) if found else np.empty(0, dtype=np.int64)
        source = np.argsort(index, kind="stable")
        return index[source].astype(np.uint32), source.astype(np.uint32)

    def pack(self, gaps: Index, distance: Cells, counts: Index, shifts: Cells) -> Streams:
        """See ``Backend.pack``."""
        bits = 8 * distance.dtype.itemsize
        gap_tokens, magnitude_tokens = bytearray(), bytearray()
        raw, length = 0, 0
        for gap, step, shift in zip(gaps.tolist(), distance.tolist(), np.repeat(shifts, counts).tolist(), strict=True):
            negative = step >> (bits - 1)
            magnitude = (1 << bits) - step if negative else step
            high, magnitude = gap >> shift, magnitude - 1
            fields = [
                (negative, 1),
                (gap & ((1 << shift) - 1), shift),
                extra_bits(high),
                extra_bits(magnitude),
            ]
            gap_tokens.append(token(high))
            magnitude_tokens.append(token(magnitude))
            for value, width in fields:
                raw |= value << length
                length += width
        packed = raw.to_bytes((length + 7) // 8, "little")
        return Streams(*(np.frombuffer(s, dtype=np.uint8) for s in (gap_tokens, magnitude_tokens, packed)))

    def unpack(
        self, streams: Streams, counts: Index, shifts: Cells, cell_type: CellType, limit: int
    ) -> tuple[Index, Cells]:
        """See ``Backend.unpack``."""
        raw, have = int.from_bytes(streams.bits.tobytes(), "little"), 8 * len(streams.bits)
        used = 0

        def take(width: int) -> int:
            nonlocal used
            used += width
            return (raw >> (used - width)) & ((1 << width) - 1)

        positions, distances = [], []
        gap_tokens, magnitude_tokens = streams.gap_tokens.tolist(), streams.magnitude_tokens.tolist()
        k = 0
        for count, shift in zip(counts.tolist(), shifts.tolist(), strict=True):
            position = -1
            for _ in range(count):
                negative, low = take(1), take(shift)
                high = untoken(gap_tokens[k], take)
                magnitude = untoken(magnitude_tokens[k], take) + 1
                position += (high << shift) + low + 1
                if position >= limit:
                    raise CodecError(f"position {position} is not below {limit}")
                if magnitude > (1 << (cell_type.bits - 1)) - 1 + negative:
                    raise CodecError(f"distance {magnitude} does not fit {cell_type.bits} bits")
                positions.append(position)
                distances.append((-magnitude if negative else magnitude) & ((1 << cell_type.bits) - 1))
                k += 1
        if (used + 7) // 8 * 8 != have or raw >> used:
            raise CodecError(f"{used} raw bits were used of {have}, or the padding is not zero")
        return np.array(positions, dtype=np.uint32), np.array(distances, dtype=cell_type.dtype)


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


def token(value: int) -> int:
    """Return the token byte of a value below 2**64."""
    return value if value < DIRECT else TOKEN_BASE + value.bit_length()


def extra_bits(value: int) -> tuple[int, int]:
    """Return the (bits, number of bits) that follow the value's token."""
    if value < DIRECT:
        return 0, 0
    width = value.bit_length() - 1
    return value - (1 << width), width


def untoken(symbol: int, take: Callable[[int], int]) -> int:
    """Invert ``token`` and ``extra_bits``; ``take(n)`` returns the next n raw bits."""
    if symbol < DIRECT:
        return symbol
    if symbol > TOKEN_BASE + 64:
        raise CodecError(f"{symbol} is no token")
    width = symbol - TOKEN_BASE - 1
    value = (1 << width) + take(width)
    if value < DIRECT:
        raise CodecError(f"token {symbol} codes {value}, which is its own token")
    return value
