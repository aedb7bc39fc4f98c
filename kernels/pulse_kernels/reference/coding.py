"""The plain reference of a group's coding: from changes to tables and words, and back."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pulse_kernels.cells import Cells, CellType, Index
from pulse_kernels.errors import CodecError
from pulse_kernels.format.frequencies import frequencies, levels_of, read_table, store_table
from pulse_kernels.format.gap_tables import geometric_tables
from pulse_kernels.format.group_bytes import CONTEXTS
from pulse_kernels.format.rans import CHUNK, Symbols, Table, bucket, decode_chunk, encode_chunk
from pulse_kernels.format.symbols import (
    GAP_TOKENS,
    VALUE_SYMBOLS,
    extra_bits,
    first_value,
    most_value_symbols,
    sign_and_magnitude,
    token,
)
from pulse_kernels.protocol import Coded


def encode_changes(
    places: Index, steps: Cells, counts: Index, parameters: npt.NDArray[np.uint8] | None, chunk: int = CHUNK
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint16], npt.NDArray[np.uint16]]:
    """Code changes that lie in coding order, ``counts`` of each class; return (tables, sizes of chunks, words).

    Without ``parameters`` these are the changes of ``gap``, all in one run.
    """
    changes = symbols_of(gaps_of(places, counts), steps, None if parameters is None else counts, chunk)
    pairs = CONTEXTS if parameters is None else len(counts)
    value_levels = _levels(changes, [change.value for change in changes], VALUE_SYMBOLS, pairs)
    if parameters is None:
        gap_levels = _levels(changes, [change.gap for change in changes], GAP_TOKENS, pairs)
        stored = [store_table(levels) for levels in gap_levels + value_levels]
        gap_tables = [Table.of(frequencies(levels)) for levels in gap_levels]
    else:
        stored = [store_table(levels) for levels in value_levels if any(levels)]
        gap_tables = [Table.of(geometric_tables()[j].tolist()) for j in parameters]
    value_tables = [Table.of(frequencies(levels)) for levels in value_levels]
    chunks = [encode_chunk(changes[k : k + chunk], gap_tables, value_tables) for k in range(0, len(changes), chunk)]
    return (
        np.frombuffer(b"".join(stored), np.uint8),
        np.array([len(words) for words in chunks], np.uint16),
        np.array([word for words in chunks for word in words], np.uint16),
    )


def decode_changes(coded: Coded, cell_type: CellType, limit: int, chunk: int = CHUNK) -> tuple[Index, Cells]:
    """Return (places, steps) in coding order; see ``Backend.decode_changes``."""
    gap_tables, value_tables = ([Table.of(f) for f in each] for each in tables_of(coded, cell_type))
    kinds = np.repeat(np.arange(len(coded.counts)), coded.counts).tolist()
    words, at, changes = coded.words.tolist(), 0, []
    for k, size in enumerate(coded.sizes.tolist()):
        runs = kinds[k * chunk : (k + 1) * chunk]
        part = len(runs) if coded.parameters is None else runs
        changes += decode_chunk(words[at : at + size], part, cell_type.bits, gap_tables, value_tables)
        at += size
    places, place, last = [], -1, -1
    for kind, (gap, _) in zip(kinds, changes, strict=True):
        place, last = (place if kind == last else -1) + gap + 1, kind
        if place >= limit:
            raise CodecError(f"position {place} is not below {limit}")
        places.append(place)
    return np.array(places, np.uint32), np.array([step for _, step in changes], cell_type.dtype)


def tables_of(coded: Coded, cell_type: CellType) -> tuple[list[list[int]], list[list[int]]]:
    """Return the frequencies of (gap tables, value tables), by class or context; zeros where nothing is coded.

    Raises:
        CodecError: the stored tables break a rule.
    """
    most, counts = most_value_symbols(cell_type), coded.counts.tolist()
    if coded.parameters is None:
        shapes = [GAP_TOKENS] * CONTEXTS + [most] * CONTEXTS
    else:
        shapes = [most] * sum(count > 0 for count in counts)
    data, at, found = coded.tables.tobytes(), 0, []
    for symbols in shapes:
        levels, at = read_table(data, at, symbols)
        found.append(frequencies(levels))
    if at != len(data):
        raise CodecError(f"{len(data) - at} bytes follow the tables")
    if coded.parameters is None:
        return found[:CONTEXTS], found[CONTEXTS:]
    if not all(any(table) for table in found):
        raise CodecError("a class with changed cells has an empty table")
    each = iter(found)
    return (
        [geometric_tables()[j].tolist() for j in coded.parameters],
        [next(each) if count else [0] * most for count in counts],
    )


def gaps_of(places: Index, counts: Index) -> list[int]:
    """Return the cells between each place and the one before it in its run."""
    gaps, k = [], 0
    for count in counts.tolist():
        before = -1
        for place in places[k : k + count].tolist():
            gaps.append(place - before - 1)
            before = place
        k += count
    return gaps


def symbols_of(gaps: Sequence[int], steps: Cells, counts: Index | None, chunk: int = CHUNK) -> list[Symbols]:
    """Return the symbols of changes in coding order; without ``counts`` of classes, contexts choose the tables."""
    s, m = sign_and_magnitude(steps)
    gap_tokens, magnitudes = token(np.array(gaps, np.uint64)).tolist(), token(m).tolist()
    kinds = None if counts is None else np.repeat(np.arange(len(counts)), counts).tolist()
    changes = []
    for k, (gap, low, magnitude, high) in enumerate(zip(gaps, gap_tokens, m.tolist(), magnitudes, strict=True)):
        table = kinds[k] if kinds else bucket(int(m[k - 1])) if k % chunk else 0
        width = extra_bits(low)
        raw = gap - first_value(low) | (magnitude - first_value(high)) << width
        changes.append(Symbols(table, low, 2 * high + int(s[k]), raw, width + extra_bits(high)))
    return changes


def _levels(changes: Sequence[Symbols], symbols: Sequence[int], size: int, tables: int) -> list[list[int]]:
    counts = np.zeros((tables, size), dtype=np.int64)
    np.add.at(counts, ([change.table for change in changes], list(symbols)), 1)
    return [levels_of(row.tolist()) for row in counts]
