"""One chunk of changes as 16-bit words: the plain reference of the entropy coder (spec, section 5.4).

rANS (Duda, 2013) with 32 bits of state, words of 16 bits and frequencies of 12 bits, as laid out by Giesen
("Interleaved entropy coders", 2014). The coder runs from the last change to the first, so that the reader runs
forward. Chunks share tables and nothing else: each is a lane of its own, on a GPU tens of thousands at once.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from pulse_kernels.errors import CodecError
from pulse_kernels.format.frequencies import SCALE, SCALE_BITS, cumulative
from pulse_kernels.format.symbols import extra_bits, first_value, unite

CHUNK = 2048
"""Changes of a chunk; the last one of a group may have fewer."""
LOWEST = 1 << 16
"""The state's lower bound, where it starts and must end."""
_WORD = 16


@dataclass(frozen=True, slots=True)
class Table:
    """Frequencies of a table's symbols, and the sums below them."""

    frequency: Sequence[int]
    below: Sequence[int]

    @classmethod
    def of(cls, frequency: Sequence[int]) -> Table:
        """Return the table of these frequencies."""
        return cls(frequency, cumulative(frequency))


@dataclass(frozen=True, slots=True)
class Symbols:
    """A change as it is coded: the number of its pair of tables, its symbols, and ``width`` raw bits."""

    table: int
    gap: int
    value: int
    raw: int
    width: int


class _Writer:
    """A state that grows; words are emitted last first."""

    def __init__(self) -> None:
        self.state = LOWEST
        self.words: list[int] = []

    def _emit(self) -> None:
        self.words.append(self.state & 0xFFFF)
        self.state >>= _WORD

    def symbol(self, table: Table, symbol: int) -> None:
        f = table.frequency[symbol]
        if self.state >= f << 20:
            self._emit()
        self.state = (self.state // f << SCALE_BITS) + self.state % f + table.below[symbol]

    def raw(self, bits: int, width: int) -> None:
        for at in reversed(range(0, width, _WORD)):
            n = min(_WORD, width - at)
            if self.state >= 1 << (32 - n):
                self._emit()
            self.state = (self.state << n) | ((bits >> at) & ((1 << n) - 1))


class _Reader:
    """Undoes what ``_Writer`` did, last first."""

    def __init__(self, words: Sequence[int]) -> None:
        self._words = iter(words)
        self.state = self._next() | self._next() << _WORD

    def _next(self) -> int:
        word = next(self._words, None)
        if word is None:
            raise CodecError("the words of a chunk end too early")
        return word

    def _refill(self) -> None:
        if self.state < LOWEST:
            self.state = self.state << _WORD | self._next()

    def symbol(self, table: Table) -> int:
        slot = self.state & (SCALE - 1)
        symbol = bisect_right(table.below, slot) - 1
        if not table.frequency[symbol]:
            raise CodecError("a change needs a table that is empty")
        self.state = table.frequency[symbol] * (self.state >> SCALE_BITS) + slot - table.below[symbol]
        self._refill()
        return symbol

    def raw(self, width: int) -> int:
        bits = 0
        for at in range(0, width, _WORD):
            n = min(_WORD, width - at)
            bits |= (self.state & ((1 << n) - 1)) << at
            self.state >>= n
            self._refill()
        return bits

    def finish(self) -> None:
        if self.state != LOWEST or next(self._words, None) is not None:
            raise CodecError("a chunk does not end with its words and a state of 2^16")


def encode_chunk(changes: Sequence[Symbols], gaps: Sequence[Table], values: Sequence[Table]) -> list[int]:
    """Return the words of a chunk of changes, its state first."""
    writer = _Writer()
    for change in reversed(changes):
        writer.raw(change.raw, change.width)
        writer.symbol(values[change.table], change.value)
        writer.symbol(gaps[change.table], change.gap)
    state = writer.state
    return [state & 0xFFFF, state >> _WORD, *reversed(writer.words)]


def decode_chunk(
    words: Sequence[int], runs: Sequence[int] | int, bits: int, gaps: Sequence[Table], values: Sequence[Table]
) -> list[tuple[int, int]]:
    """Return the (gap, distance) of each change of a chunk.

    Args:
        words: of the chunk.
        runs: the number of each change's class; or, for ``gap``, how many changes there are.
        bits: of a cell.
        gaps: tables of the gap tokens, by class or context.
        values: tables of the value symbols.

    Raises:
        CodecError: words are missing or left over, or a rule of the values is broken.
    """
    reader, changes, context = _Reader(words), [], 0
    for known in range(runs) if isinstance(runs, int) else runs:
        table = context if isinstance(runs, int) else known
        gap, value = reader.symbol(gaps[table]), reader.symbol(values[table])
        low, magnitude, s = extra_bits(gap), value >> 1, value & 1
        raw = reader.raw(low + extra_bits(magnitude))
        m = first_value(magnitude) + (raw >> low)
        if m > (1 << (bits - 1)) - 2 + s:
            raise CodecError(f"a distance does not fit {bits} bits")
        changes.append((first_value(gap) + (raw & ((1 << low) - 1)), unite(s, m, bits)))
        context = bucket(m)
    reader.finish()
    return changes


def bucket(m: int) -> int:
    """Return the context, in ``gap``, of the change after one of magnitude m."""
    return 0 if m == 0 else 1 if m < 15 else 2
