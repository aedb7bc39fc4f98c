"""Numba loops over the frequency tables of a coded group: from counts, to and from their stored bytes (see ``levels``).

The reader looks up a symbol's *place*: its frequency f, and the sum below it from bit 16 on; it finds the symbol in its
*slot*. The writer looks up what its state goes through for a symbol, the *way*: f * 2**20, at which a word is let go
of, a divisor m, 4096 - f, and the sum below. The divisor replaces a division:

    x // f = x * m >> 44    for x < f * 2**20,    m = 2**44 / f, rounded up

m * f is over 2**44 by e < f, so that the product is over by x * e < f * f * 2**20 <= 2**44, and it fits 64 bits
(Granlund and Montgomery, 1994).
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = Any
U32 = np.uint32
U64 = np.uint64
ZERO, ONE, TWO = U64(0), U64(1), U64(2)
SYMBOLS = 256
"""Entries of a table."""
SLOTS = 4096
IMPOSSIBLE = 252
"""A value symbol whose magnitude fits no cell."""
TABLE_BYTES = 2 + 5 * SYMBOLS // 8
"""Most bytes of a stored table."""
OK, TOO_SHORT, BAD_SYMBOLS, BAD_PADDING, BAD_EDGES, TOO_LONG = range(6)
"""What ``read_tables`` returns."""


def _level(scaled: Any, bounds: Array) -> Any:
    """Return the level of a scaled count: one more than the number of bounds below it."""
    low, high = ZERO, U64(len(bounds))
    while low < high:
        middle = (low + high) >> ONE
        if bounds[middle] < scaled:
            low = middle + ONE
        else:
            high = middle
    return low + ONE


def _share(frequency: Array, room: Any) -> None:
    """Replace the weights of a table by frequencies; ``room`` is 4096 less the symbols present.

    Quotients are below 2**13, and off the next integer by 2**-21 or more: float64 rounds none of them up to it, and
    divides eight at a time.
    """
    total = 0.0
    best = 0
    for k in range(len(frequency)):
        total += frequency[k]
        if frequency[k] > frequency[best]:
            best = k
    rest = U32(SLOTS)
    for k in range(len(frequency)):
        weight = frequency[k]
        share = U32(weight * room / total) + U32(weight != U32(0))
        frequency[k] = share
        rest -= share
    frequency[best] += rest


def _store(counts: Array, weights: Array, bounds: Array, frequency: Array, out: Array, at: Any) -> Any:
    """Store the table of some counts and leave its frequencies; return where it ends."""
    most = U32(0)
    first: Any = ZERO
    last: Any = ZERO
    present = U32(0)
    for k in range(U64(len(counts))):
        count = counts[k]
        frequency[k] = U32(0)
        if count != 0:
            first = k if present == 0 else first
            last = k
            present += U32(1)
            most = count if count > most else most
    out[at], out[at + ONE] = first, last + ONE - first if present != 0 else ZERO
    at += TWO
    if present == 0:
        return at
    held, have = U32(0), U32(0)
    for k in range(first, last + ONE):
        if counts[k] != 0:
            level = _level(U64(counts[k]) * U64(weights[30]) // U64(most), bounds)
            frequency[k] = weights[level - ONE]
            held |= U32(level) << have
        have += U32(5)
        if have >= 8:
            out[at] = held & U32(0xFF)
            held >>= U32(8)
            have -= U32(8)
            at += ONE
    if have != 0:
        out[at] = held & U32(0xFF)
        at += ONE
    _share(frequency, SLOTS - present)
    return at


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


def store_tables(
    counts: Array,
    weights: Array,
    bounds: Array,
    by_frequency: Array,
    keep_empty: bool,
    frequency: Array,
    out: Array,
    ways: Array,
) -> Any:
    """Store tables end to end, [tables, symbols] each; return the bytes. Empty ones are left out unless kept.

    ``ways`` are of the symbols that are there, [tables, symbols, 4].
    """
    at = ZERO
    for k in range(U64(len(counts))):
        end = _store(counts[k], weights, bounds, frequency, out, at)
        if keep_empty or end > at + TWO:
            at = end
            below = U32(0)
            for symbol in range(U64(len(frequency))):
                f = frequency[symbol]
                if f != 0:
                    ways[k, symbol, 0], ways[k, symbol, 1] = U64(f) << U64(20), by_frequency[f]
                    ways[k, symbol, 2], ways[k, symbol, 3] = U64(SLOTS) - U64(f), U64(below)
                    below += f
    return at


def read_tables(
    data: Array,
    wanted: Array,
    symbols: Array,
    weights: Array,
    frequency: Array,
    places: Array,
    slots: Array,
    empty: Array,
) -> int:
    """Read the wanted tables; return OK or what is wrong. ``symbols`` bounds those of each; empty ones are marked."""
    at, length = ZERO, U64(len(data))
    for k in range(U64(len(wanted))):
        if wanted[k] == 0:
            continue
        if at + TWO > length:
            return TOO_SHORT
        first, size = U64(data[at]), U64(data[at + ONE])
        at += TWO
        if at + ((U64(5) * size + U64(7)) >> U64(3)) > length:
            return TOO_SHORT
        if first + size > symbols[k] or (size == 0 and first != 0):
            return BAD_SYMBOLS
        for symbol in range(U64(len(frequency))):
            frequency[symbol] = U32(0)
        held, have, present = U32(0), U32(0), U32(0)
        for symbol in range(first, first + size):
            if have < 5:
                held |= U32(data[at]) << have
                have += U32(8)
                at += ONE
            level = held & U32(31)
            held >>= U32(5)
            have -= U32(5)
            if level != 0:
                frequency[symbol] = weights[level - U32(1)]
                present += U32(1)
            elif symbol == first or symbol == first + size - ONE:
                return BAD_EDGES
        if held != 0:
            return BAD_PADDING
        empty[k] = present == 0
        if present != 0:
            _share(frequency, SLOTS - present)
            _find_by_slot(frequency, places[k], slots[k])
    return OK if at == length else TOO_LONG
