"""The bytes of coded groups around their words: where everything lies, and heads, class entries and tables."""

from __future__ import annotations

from typing import Any

from pulse_kernels.gpu.language import jit, tl

SCAN = 64
"""Chunks whose sizes are summed up at a time."""


@jit
def choose_parameters(
    changed: tl.tensor,
    population: tl.tensor,
    odds: tl.tensor,
    parameters: tl.tensor,
) -> None:
    """Write the gap parameter of each class of a group: 127 comparisons of its odds, see ``odds_bounds``."""
    group = tl.program_id(0).to(tl.int64)
    at = group * 32 + tl.arange(0, 32)
    count = tl.load(changed + at)
    twice = (2 * count).to(tl.float64)
    rest = tl.maximum(2 * (tl.load(population + at) - count), 1).to(tl.float64)
    bound = tl.load(odds + tl.arange(0, 128))
    below = twice[:, None] < rest[:, None] * bound[None, :]
    tl.store(parameters + at, tl.where(count > 0, tl.sum(below.to(tl.int32), 1), 0))


@jit
def lay_out(
    classing: tl.tensor,
    ends: tl.tensor,
    sizes: tl.tensor,
    piece_offsets: tl.tensor,
    words_at: tl.tensor,
    table_at: tl.tensor,
    table_bytes: tl.tensor,
    group_words: tl.tensor,
    group_bytes: tl.tensor,
    CONTEXTS: tl.constexpr,
    TABLES: tl.constexpr,
    SCAN: tl.constexpr,
) -> None:
    """Write where a group's tables and words begin, from its start, and its bytes, 0 if nothing changes."""
    group = tl.program_id(0).to(tl.int64)
    begin, end = tl.load(piece_offsets + group), tl.load(piece_offsets + group + 1)
    words = tl.zeros((), tl.int64)
    for done in range(begin, end, SCAN):
        chunk = done + tl.arange(0, SCAN)
        size = tl.load(sizes + chunk, mask=chunk < end, other=0).to(tl.int64)
        tl.store(words_at + chunk, tl.cumsum(size, 0) - size + words, mask=chunk < end)
        words += tl.sum(size, 0)
    table = tl.arange(0, 32)
    number = tl.load(ends + (group * TABLES + table) * 2 + 1, mask=table < TABLES, other=-1)
    stored = 2 + (number * 5 + 7) // 8
    if CONTEXTS:
        classes = tl.zeros((), tl.int32)
        stored = tl.where(number >= 0, stored, 0)
    else:
        classes = tl.load(classing + group * 4 + 3) - tl.load(classing + group * 4 + 2) + 1
        stored = tl.where(number > 0, stored, 0)
    entries = 4 + 5 * classes
    tl.store(table_at + group * TABLES + table, tl.cumsum(stored, 0) - stored + entries, mask=table < TABLES)
    total = tl.sum(stored, 0)
    tl.store(table_bytes + group, total)
    head = entries + total
    first_word = (head + (head & 1)).to(tl.int64) + 2 * (end - begin)
    tl.store(group_words + group, first_word)
    tl.store(group_bytes + group, tl.where(end > begin, first_word + 2 * words, 0))


@jit
def write_heads(
    classing: tl.tensor,
    changed: tl.tensor,
    parameters: tl.tensor,
    ends: tl.tensor,
    levels: tl.tensor,
    table_at: tl.tensor,
    table_bytes: tl.tensor,
    piece_offsets: tl.tensor,
    group_at: tl.tensor,
    data: tl.tensor,
    CONTEXTS: tl.constexpr,
    TABLES: tl.constexpr,
) -> None:
    """Write one stored table of a group that changes, and with the first its head and its class entries."""
    group, table = tl.program_id(0).to(tl.int64), tl.program_id(1)
    if tl.load(piece_offsets + group + 1) > tl.load(piece_offsets + group):
        begin = data + tl.load(group_at + group)
        own = group * TABLES + table
        number = tl.load(ends + own * 2 + 1)
        if CONTEXTS or number > 0:
            first = tl.load(ends + own * 2)
            _write_table(levels + own * 256 + first, first, number, begin + tl.load(table_at + own))
        if table == 0:
            size = tl.load(table_bytes + group)
            _write_head(classing + group * 4, changed + group * 32, parameters + group * 32, size, begin, CONTEXTS)


@jit
def _write_table(levels: tl.tensor, first: tl.tensor, number: tl.tensor, at: tl.tensor) -> Any:
    tl.store(at, first.to(tl.uint8))
    tl.store(at + 1, number.to(tl.uint8))
    byte = tl.arange(0, 256)
    # A byte of packed levels has bits of three at most: the one that its first bit is in, and the next two.
    level = byte * 8 // 5
    bits = tl.zeros((256,), tl.int32)
    for more in tl.static_range(3):
        value = tl.load(levels + level + more, mask=level + more < number, other=0).to(tl.int32)
        shift = (level + more) * 5 - byte * 8
        bits |= tl.where(shift < 0, value >> tl.maximum(-shift, 0), value << tl.maximum(shift, 0))
    tl.store(at + 2 + byte, (bits & 0xFF).to(tl.uint8), mask=byte < (number * 5 + 7) // 8)


@jit
def _write_head(
    classing: tl.tensor,
    changed: tl.tensor,
    parameters: tl.tensor,
    size: tl.tensor,
    begin: tl.tensor,
    CONTEXTS: tl.constexpr,
) -> Any:
    """Write classes, first class and bytes of the tables; class entries; and the zero that makes all of it even."""
    lowest, classes = tl.zeros((), tl.int32), tl.zeros((), tl.int32)
    if CONTEXTS == 0:
        lowest = tl.load(classing + 2)
        classes = tl.load(classing + 3) - lowest + 1
        kind = tl.arange(0, 32)[:, None]
        byte = tl.arange(0, 8)[None, :]
        count = tl.load(changed + kind) >> (8 * tl.minimum(byte, 3))
        value = tl.where(byte < 4, count, tl.load(parameters + kind))
        tl.store(begin + 4 + 5 * kind + byte, (value & 0xFF).to(tl.uint8), mask=(kind < classes) & (byte < 5))
    tl.store(begin, classes.to(tl.uint8))
    tl.store(begin + 1, lowest.to(tl.uint8))
    tl.store(begin + 2, (size & 0xFF).to(tl.uint8))
    tl.store(begin + 3, (size >> 8).to(tl.uint8))
    end = 4 + 5 * classes + size
    tl.store(begin + end + tl.arange(0, 2), tl.zeros((2,), tl.uint8), mask=tl.arange(0, 2) < (end & 1))
