"""Numba loops over the frequency tables of a coded group: from counts, to and from their stored bytes (see ``levels``).

Writer and reader look a symbol's *place* up: its frequency f, and the sum below it from bit 16 on. The reader finds the
symbol in its *slot*; the writer's *divisors* replace a division:

    x // f = (x + b) * m >> 43    for x < f * 2**20,    m = 2**43 // f or one more, b = 0 or 1,    stored as 2 m + b

With r = 2**43 mod f: where 2 r > f, m is one more and b = 0, else b = 1 unless r = 0. Either way m * f is off 2**43 by
at most f / 2, the product by less than 2**43 (x < f * 2**20, f <= 2**12), and it fits 64 bits (Granlund and
Montgomery, 1994).
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = Any
U32 = np.uint32
U64 = np.uint64
SYMBOLS = 256
"""Entries of a table."""
SLOTS = 4096
IMPOSSIBLE = 252
"""A value symbol whose magnitude fits no cell."""
TABLE_BYTES = 2 + 5 * SYMBOLS // 8
"""Most bytes of a stored table."""
OK, TOO_SHORT, BAD_SYMBOLS, BAD_PADDING, BAD_EDGES, TOO_LONG = range(6)
"""What ``read_tables`` returns."""


def _level(scaled: int, bounds: Array) -> int:
    """Return the level of a scaled count: one more than the number of bounds below it."""
    low, high = 0, len(bounds)
    while low < high:
        middle = (low + high) >> 1
        if bounds[middle] < scaled:
            low = middle + 1
        else:
            high = middle
    return low + 1


def _share(frequency: Array, room: int) -> None:
    """Replace the weights of a table by frequencies; ``room`` is 4096 less the symbols present."""
    total = U64(0)
    best = 0
    for k in range(len(frequency)):
        total += U64(frequency[k])
        if frequency[k] > frequency[best]:
            best = k
    rest = SLOTS
    for k in range(len(frequency)):
        if frequency[k] != 0:
            frequency[k] = U32(1) + U32(U64(frequency[k]) * U64(room) // total)
            rest -= int(frequency[k])
    if rest != SLOTS:
        frequency[best] += U32(rest)


def _store(counts: Array, weights: Array, bounds: Array, frequency: Array, out: Array, at: int) -> int:
    """Store the table of some counts and leave its frequencies; return where it ends."""
    most = U64(0)
    first, last, present = 0, -1, 0
    for k in range(len(counts)):
        frequency[k] = U32(0)
        if counts[k] != 0:
            first = k if last < 0 else first
            last = k
            present += 1
            most = max(most, U64(counts[k]))
    out[at], out[at + 1] = first if last >= 0 else 0, last + 1 - first if last >= 0 else 0
    at += 2
    if last < 0:
        return at
    held, have = U32(0), 0
    for k in range(first, last + 1):
        if counts[k] != 0:
            level = _level(int(U64(counts[k]) * U64(weights[30]) // most), bounds)
            frequency[k] = weights[level - 1]
            held |= U32(level) << U32(have)
        have += 5
        if have >= 8:
            out[at] = held & U32(0xFF)
            held >>= U32(8)
            have -= 8
            at += 1
    if have > 0:
        out[at] = held & U32(0xFF)
        at += 1
    _share(frequency, SLOTS - present)
    return at


def _divide_by(frequency: Array, divisors: Array, places: Array) -> None:
    """Write the divisor and the place of each symbol."""
    below = U32(0)
    for k in range(len(frequency)):
        f = U64(frequency[k])
        if f != U64(0):
            m = (U64(1) << U64(43)) // f
            r = (U64(1) << U64(43)) - m * f
            if U64(2) * r > f:
                divisors[k] = U64(2) * (m + U64(1))
            else:
                divisors[k] = U64(2) * m + U64(r != U64(0))
            places[k] = U32(f) | (below << U32(16))
            below += U32(f)


def _find_by_slot(frequency: Array, places: Array, slots: Array) -> None:
    """Write the place of each symbol, and the symbol of each slot."""
    at = U32(0)
    for k in range(len(frequency)):
        f = frequency[k]
        if f != 0:
            places[k] = f | (at << U32(16))
            for slot in range(at, at + f):
                slots[slot] = k
            at += f


def make_geometric(frequency: Array, divisors: Array, places: Array, slots: Array) -> None:
    """Prepare the geometric tables for both directions."""
    for j in range(len(frequency)):
        _divide_by(frequency[j], divisors[j], places[j])
        _find_by_slot(frequency[j], places[j], slots[j])


def store_tables(
    counts: Array, weights: Array, bounds: Array, keep_empty: bool, out: Array, divisors: Array, places: Array
) -> int:
    """Store tables end to end, [tables, symbols] each; return the bytes. Empty ones are left out unless kept."""
    frequency = np.empty(counts.shape[1], np.uint32)
    at = 0
    for k in range(len(counts)):
        end = _store(counts[k], weights, bounds, frequency, out, at)
        if keep_empty or end > at + 2:
            at = end
            _divide_by(frequency, divisors[k], places[k])
    return at


def read_tables(
    data: Array, wanted: Array, symbols: Array, weights: Array, places: Array, slots: Array, empty: Array
) -> int:
    """Read the wanted tables; return OK or what is wrong. ``symbols`` bounds those of each; empty ones are marked."""
    frequency = np.empty(SYMBOLS, np.uint32)
    at = 0
    for k in range(len(wanted)):
        if not wanted[k]:
            continue
        if at + 2 > len(data):
            return TOO_SHORT
        first, size = int(data[at]), int(data[at + 1])
        at += 2
        if at + (5 * size + 7) // 8 > len(data):
            return TOO_SHORT
        if first + size > int(symbols[k]) or (size == 0 and first != 0):
            return BAD_SYMBOLS
        for symbol in range(SYMBOLS):
            frequency[symbol] = U32(0)
        held, have, present = U32(0), 0, 0
        for symbol in range(first, first + size):
            while have < 5:
                held |= U32(data[at]) << U32(have)
                have += 8
                at += 1
            level = int(held & U32(31))
            held >>= U32(5)
            have -= 5
            if level != 0:
                frequency[symbol] = weights[level - 1]
                present += 1
            elif symbol == first or symbol == first + size - 1:
                return BAD_EDGES
        if held != U32(0):
            return BAD_PADDING
        empty[k] = present == 0
        if present:
            _share(frequency, SLOTS - present)
            _find_by_slot(frequency, places[k], slots[k])
    return OK if at == len(data) else TOO_LONG
