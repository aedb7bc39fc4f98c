"""The coding half of the numba backend: prepares arrays, calls the loops, and names what they find wrong."""

from __future__ import annotations

import functools
import threading
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from pulse_kernels.cells import Cells, CellType, Index
from pulse_kernels.cpu.compile import compiled
from pulse_kernels.cpu.loops import frequencies, rans
from pulse_kernels.cpu.loops.frequencies import IMPOSSIBLE, SLOTS, SYMBOLS, TABLE_BYTES
from pulse_kernels.cpu.loops.lanes import BATCH, MORE_WORDS
from pulse_kernels.cpu.loops.rans import STREAM_WORDS
from pulse_kernels.errors import CodecError
from pulse_kernels.format.frequencies import BOUNDS, WEIGHTS
from pulse_kernels.format.gap_tables import PARAMETERS, geometric_tables
from pulse_kernels.format.group_bytes import CONTEXTS, MOST_CLASSES
from pulse_kernels.format.rans import CHUNK
from pulse_kernels.format.symbols import GAP_TOKENS, most_value_symbols
from pulse_kernels.protocol import Coded, Kinds
from pulse_kernels.spans import SpanTable

U32 = npt.NDArray[np.uint32]
U64 = npt.NDArray[np.uint64]
Words = npt.NDArray[np.uint16]
_WEIGHTS = np.array(WEIGHTS, np.uint32)
_BOUNDS = np.array(BOUNDS, np.uint32)
_CONTEXT_ROWS = np.arange(CONTEXTS, dtype=np.uint8)
_CONTEXT_TABLES = np.ones(2 * CONTEXTS, np.uint8)
_KEPT_WORDS = 1 << 20
"""Of a thread's scratch, once a group has needed more."""
_NO_KINDS = np.empty(0, np.uint8)
_MORE_WORDS = np.zeros(MORE_WORDS, np.uint16)
_NO_ENDS = np.empty(0, np.int64)
_TABLE_FAULTS = {
    frequencies.TOO_SHORT: "the tables end too early",
    frequencies.BAD_SYMBOLS: "a table has symbols that are not possible",
    frequencies.BAD_PADDING: "a table's padding is not zero",
    frequencies.BAD_EDGES: "a table's first or last level is zero",
    frequencies.TOO_LONG: "bytes follow the tables",
}
_FAULTS = {
    rans.TOO_FAR: "a position is past the end of the group",
    rans.BAD_CHANGE: "a distance does not fit the cell's width, or a change needs a table that is empty",
    rans.BAD_END: "a chunk does not end with its words and a state of 2^16",
}


@dataclass(frozen=True, slots=True)
class _Geometric:
    """What the loops look up in the geometric tables."""

    ways: U64
    places: U32
    slots: Kinds


@dataclass(slots=True)
class _Scratch:
    """A thread's own memory for one group: fresh pages for each would cost more than the coding."""

    frequency: U32 = field(default_factory=lambda: np.empty(SYMBOLS, np.uint32))
    gap_ways: U64 = field(default_factory=lambda: np.empty((CONTEXTS, SYMBOLS, 4), np.uint64))
    value_ways: U64 = field(default_factory=lambda: np.empty((MOST_CLASSES, SYMBOLS, 4), np.uint64))
    slots: Kinds = field(default_factory=lambda: np.empty((MOST_CLASSES, SLOTS), np.uint8))
    places: U32 = field(default_factory=lambda: np.empty((MOST_CLASSES, SYMBOLS), np.uint32))
    entries: U32 = field(default_factory=lambda: np.empty(2 * MOST_CLASSES * SLOTS, np.uint32))
    steps: U64 = field(default_factory=lambda: np.empty(BATCH, np.uint64))
    coded: U32 = field(default_factory=lambda: np.empty(BATCH, np.uint32))
    streams: Words = field(default_factory=lambda: np.empty((2, STREAM_WORDS), np.uint16))
    stored: Kinds = field(default_factory=lambda: np.empty(MOST_CLASSES * TABLE_BYTES, np.uint8))
    words: Words = field(default_factory=lambda: np.empty(4 * STREAM_WORDS, np.uint16))


class NumbaCoding:
    """Implements the coding functions of ``Backend`` with numba."""

    def __init__(self) -> None:
        self._local = threading.local()

    def _scratch(self) -> _Scratch:
        scratch: _Scratch | None = getattr(self._local, "scratch", None)
        if scratch is None:
            scratch = self._local.scratch = _Scratch()
        return scratch

    def count_classes(self, cells: Cells, cell_type: CellType) -> Index:
        """See ``Backend.count_classes``."""
        counts = np.zeros(256, np.uint32)
        compiled("class_values", cells.itemsize)(cells, cell_type.class_shift, cell_type.class_mask, counts)
        return counts

    def encode_changes(
        self,
        cell_type: CellType,
        places: Index,
        kinds: Kinds | None,
        counts: Index,
        parameters: Kinds | None,
        old: Cells,
        new: Cells,
    ) -> tuple[Kinds, Words, Words]:
        """See ``Backend.encode_changes``."""
        scratch, changes, wide = self._scratch(), len(places), _wide(cell_type)
        pairs = CONTEXTS if kinds is None else len(counts)
        gaps, symbols = np.empty(changes, np.uint32), np.empty(changes, np.uint64)
        distances, rows = np.empty(changes, wide), _CONTEXT_ROWS if parameters is None else parameters
        gap_counts, value_counts = np.zeros((pairs, SYMBOLS), np.uint32), np.zeros((pairs, SYMBOLS), np.uint32)
        starts = counts.cumsum(dtype=np.uint32) - counts
        compiled("count_symbols", cell_type.width)(
            *(places, _NO_KINDS if kinds is None else kinds, old, new, cell_type.bits, *order_masks(cell_type)),
            *(starts, rows, gaps, distances, symbols, gap_counts.reshape(-1), value_counts.reshape(-1)),
        )
        store, size, constants = compiled("store_tables", 4), 0, (_WEIGHTS, _BOUNDS, divisors_by_frequency())
        if parameters is None:
            gap_ways, value_ways = scratch.gap_ways, scratch.value_ways
            size = store(gap_counts, *constants, True, scratch.frequency, scratch.stored, gap_ways)
        else:
            gap_ways, value_ways = _geometric().ways, scratch.value_ways
        size += store(
            value_counts, *constants, parameters is None, scratch.frequency, scratch.stored[size:], value_ways
        )
        sizes = np.empty(-(-changes // CHUNK), np.uint16)
        left, at = len(sizes), len(scratch.words)
        while True:
            left, at = compiled("encode", wide.itemsize)(
                *(symbols, gaps, distances, cell_type.bits, gap_ways.reshape(-1), value_ways.reshape(-1)),
                *(scratch.streams, scratch.words, sizes, left, at),
            )
            if not left:
                break
            scratch.words, at = _enlarged(scratch.words, at)
        words = scratch.words[at:].copy()
        if len(scratch.words) > _KEPT_WORDS:
            scratch.words = scratch.words[:_KEPT_WORDS].copy()
        return scratch.stored[:size].copy(), sizes, words

    def decode_changes(self, coded: Coded, cell_type: CellType, limit: int) -> tuple[Index, Cells]:
        """See ``Backend.decode_changes``."""
        ends, (rows, tables) = np.cumsum(coded.counts, dtype=np.int64), self._tables(coded, cell_type)
        gaps = np.empty(int(ends[-1]), np.uint32)
        read, steps = np.empty_like(gaps), np.empty(len(gaps), _wide(cell_type))
        fault = compiled("decode", steps.itemsize)(
            *_stream(coded, _NO_ENDS if coded.parameters is None else ends, rows, tables),
            *(self._scratch().entries, cell_type.bits, gaps, steps, read),
        )
        if fault == rans.OK:
            fault = compiled("add_up", 4)(gaps, ends, limit)
        if fault != rans.OK:
            raise CodecError(_FAULTS[fault])
        return gaps, steps.astype(cell_type.dtype, copy=False)

    def walk_coded(
        self,
        coded: Coded,
        spans: SpanTable,
        cell_type: CellType,
        digest: tuple[Any, ...],
        *,
        write: bool,
    ) -> tuple[Index, Cells, Cells]:
        """Decode changes of ``gap`` and look at the cells that they change; with ``write``, change them.

        Args:
            coded: by ``gap``.
            spans: of all cells of the group.
            cell_type: of the cells.
            digest: what the loop ``digest_sparse`` gets last: of h, and the sums, to which those of the changes are
                added.
            write: whether the cells are changed; then what is returned is nothing.

        Returns:
            Index, old and new cells.
        """
        rows, tables = self._tables(coded, cell_type)
        width, none = cell_type.width, np.empty(0, cell_type.dtype)
        changed = int(coded.counts[0])
        room = min(changed, BATCH) if write else changed
        scratch, steps = self._scratch(), self._scratch().steps.view(_wide(cell_type))[:BATCH]
        found = np.empty(room, np.uint32), np.empty(room, cell_type.dtype), np.empty(room, cell_type.dtype)
        fault = compiled("walk_coded", width)(
            *(*_stream(coded, _NO_ENDS, rows, tables), scratch.entries, cell_type.bits, changed),
            *(spans.at, spans.ends, none, write, *order_masks(cell_type), *digest, steps, scratch.coded, *found),
        )
        if fault != rans.OK:
            raise CodecError(_FAULTS[fault])
        return found

    def _tables(self, coded: Coded, cell_type: CellType) -> tuple[Kinds, tuple[npt.NDArray[Any], ...]]:
        """Return the gap table of each class or context, and the tables of gaps and of values: places and slots.

        Raises:
            CodecError: a table breaks a rule.
        """
        scratch, most = self._scratch(), most_value_symbols(cell_type)
        if coded.parameters is None:
            wanted, symbols = _CONTEXT_TABLES, _context_symbols(most)
        else:
            wanted, symbols = (coded.counts > 0).view(np.uint8), np.full(len(coded.counts), most, np.uint32)
        empty = np.zeros(len(wanted), np.uint8)
        tables = scratch.places, scratch.slots
        fault = compiled("read_tables", 4)(coded.tables, wanted, symbols, _WEIGHTS, scratch.frequency, *tables, empty)
        if fault != frequencies.OK:
            raise CodecError(_TABLE_FAULTS[fault])
        if coded.parameters is None:
            rows, gap_tables, value_tables = _CONTEXT_ROWS, tables, tuple(table[CONTEXTS:] for table in tables)
            for context in np.flatnonzero(empty) % CONTEXTS if empty.any() else ():
                _forbid(gap_tables, int(context), 0)
                _forbid(value_tables, int(context), IMPOSSIBLE)
        elif empty.any():
            raise CodecError("a class with changed cells has an empty table")
        else:
            rows, gap_tables, value_tables = coded.parameters, (_geometric().places, _geometric().slots), tables
        return rows, (*gap_tables, *value_tables)


def _stream(
    coded: Coded, ends: npt.NDArray[np.int64], rows: Kinds, tables: tuple[npt.NDArray[Any], ...]
) -> tuple[npt.NDArray[Any], ...]:
    """Return what the loop ``decode`` is to read, with room for words that it may read past the end."""
    words = np.concatenate((coded.words, _MORE_WORDS))
    return words, coded.sizes, ends, rows, *(table.reshape(-1) for table in tables)


@functools.cache
def _context_symbols(most: int) -> U32:
    """Return how many symbols the tables of gaps, then those of values, may have in each context."""
    return np.repeat(np.array([GAP_TOKENS, most], np.uint32), CONTEXTS)


def order_masks(cell_type: CellType) -> tuple[int, int]:
    """Return the sign bit and all bits of float cells; (0, 0) for the rest."""
    return ((1 << (cell_type.bits - 1)), (1 << cell_type.bits) - 1) if cell_type.is_float else (0, 0)


def _wide(cell_type: CellType) -> np.dtype[Any]:
    """Return what magnitudes and steps are coded as: cells of 2 bytes have loops of their own, the rest share one."""
    return cell_type.dtype if cell_type.width == 2 else np.dtype(np.uint64)


def _forbid(tables: tuple[npt.NDArray[Any], ...], context: int, symbol: int) -> None:
    """Let a context whose gaps or values have no table decode to one symbol, so that its changes are seen to be bad."""
    places, slots = tables
    slots[context], places[context, symbol] = symbol, 1


@functools.cache
def divisors_by_frequency() -> U64:
    """Return the divisor of every frequency (see ``loops.frequencies``); 0 for 0, which no coded symbol has."""
    f = np.arange(SLOTS + 1, dtype=np.uint64)
    divisors: U64 = -(-(1 << 44) // np.maximum(f, 1).astype(np.int64)).astype(np.uint64) * (f != 0)
    return divisors


@functools.cache
def _geometric() -> _Geometric:
    frequency = np.zeros((PARAMETERS, SYMBOLS), np.uint32)
    frequency[:, :GAP_TOKENS] = geometric_tables()
    below = np.cumsum(frequency, axis=1, dtype=np.uint32) - frequency
    places: U32 = frequency | below << np.uint32(16)
    symbols = np.broadcast_to(np.arange(SYMBOLS, dtype=np.uint8), frequency.shape)
    slots = np.repeat(symbols.ravel(), frequency.ravel()).reshape(PARAMETERS, SLOTS)
    wide = frequency.astype(np.uint64)
    ways = np.stack((wide << 20, divisors_by_frequency()[frequency], SLOTS - wide, below.astype(np.uint64)), axis=-1)
    return _Geometric(ways, places, slots)


def _enlarged(words: Words, at: int) -> tuple[Words, int]:
    """Return room for twice as many words, those from ``at`` on at its end."""
    larger = np.empty(2 * len(words), np.uint16)
    larger[len(words) + at :] = words[at:]
    return larger, len(words) + at
