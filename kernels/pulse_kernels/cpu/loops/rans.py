"""Numba loops that turn changes into the words of their chunks, and back (see ``rans``, the plain reference).

The state of a chunk is a chain of dependent steps, most of whose time is latency: so two chunks take turns. No branch
depends on the data, but for raw bits beyond 16: a word is always written, or read, and then counted or not.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.cpython.unsafe import numbers
from numba.extending import intrinsic

from pulse_kernels.format.rans import CHUNK

Array = Any
Arrays = tuple[Array, ...]
U32 = np.uint32
U64 = np.uint64
ZERO, ONE, TWO = U64(0), U64(1), U64(2)
LOWEST = U64(1 << 16)
CHANGE_WORDS = 8
"""Most words that a change takes: 1 for each symbol, 6 for 83 raw bits."""
STREAM_WORDS = CHANGE_WORDS * CHUNK + 2
LONG = U32(0xFFFFFFFF)
"""In place of symbols: a change with more than 16 raw bits, which was read as a whole."""
OK, TOO_FAR, BAD_CHANGE, BAD_END = range(4)
"""What ``lanes.decode`` returns."""


def _select(_context: Any, condition: Any, one: Any, other: Any) -> tuple[Any, Any]:
    """_pick(condition, one, other), never by a branch: that would often be predicted wrongly."""

    def code(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        picked = builder.select(*args)
        picked.set_metadata("unpredictable", builder.module.add_metadata([]))
        return picked

    return types.uint64(types.boolean, types.uint64, types.uint64), code


_leading_zeros: Any = numbers.leading_zeros
_pick: Any = intrinsic(_select)


def _token(v: U64) -> U64:
    n = U64(64 - _leading_zeros(v | TWO))
    return TWO * n - TWO + ((v >> (n - TWO)) & ONE) - (U64(v < TWO) << ONE)


def _extra(token: U64) -> U64:
    """Return how many bits follow a token."""
    return max(token >> ONE, ONE) - ONE


def _negated(v: U64, negative: U64) -> U64:
    """Return -v where ``negative`` is 1, and v where it is 0, without a branch, which random signs would mislead."""
    return (v ^ (ZERO - negative)) + negative


def _first(token: U64) -> U64:
    """Return the least value of a token."""
    return token if token < TWO else (TWO + (token & ONE)) << _extra(token)


def _low(v: U64, width: U64) -> U64:
    """Return the ``width`` low bits, of at most 63."""
    return v & ((ONE << width) - ONE)


def _distance(a: U64, b: U64, top: U64, ones: U64) -> tuple[U64, U64]:
    """Return how far a cell moved in the order of its type, and 1 where it was below zero; see ``order_masks``."""
    below, above = (a & top) != ZERO, (b & top) != ZERO
    return (b ^ _pick(above, ones, top)) - (a ^ _pick(below, ones, top)), U64(below)


def _magnitude(d: U64, bits: int) -> tuple[U64, U64]:
    """Return the sign of a distance of ``bits`` bits, and its magnitude less one."""
    every = ((ONE << U64(bits - 1)) << ONE) - ONE
    s = (d >> U64(bits - 1)) & ONE
    return s, (_negated(d, s) - ONE) & every


def _symbols(gap: U64, d: U64, bits: int, table: U64, row: U64) -> U64:
    """Return the symbols of a change and its raw bits; see ``count_symbols``."""
    s, m = _magnitude(d, bits)
    low, high = _token(gap), _token(m)
    below, above = _extra(low), _extra(high)
    raw = (_low(gap, below) | (_low(m, above) << below)) & U64(0xFFFF)
    value = (table << U64(8)) | (TWO * high + s)
    return (row << U64(8)) | low | (value << U64(16)) | (raw << U64(32)) | ((below + above) << U64(48))


def _count(numbers: Array, shift: U64, mask: U64, counts: Array) -> None:
    """Count what the bits of ``mask`` above ``shift`` are: four numbers at a time, each in counts of its own.

    The same few come again and again, and a count that was just written is not at once there to be read.
    """
    size, n = U64(len(counts)), U64(len(numbers))
    three = np.zeros(3 * len(counts), np.uint32)
    whole = n - n % U64(4)
    for k in range(ZERO, whole, U64(4)):
        counts[(U64(numbers[k]) >> shift) & mask] += U32(1)
        three[(U64(numbers[k + ONE]) >> shift) & mask] += U32(1)
        three[size + ((U64(numbers[k + TWO]) >> shift) & mask)] += U32(1)
        three[TWO * size + ((U64(numbers[k + U64(3)]) >> shift) & mask)] += U32(1)
    for k in range(whole, n):
        counts[(U64(numbers[k]) >> shift) & mask] += U32(1)
    for k in range(size):
        counts[k] += three[k] + three[size + k] + three[TWO * size + k]


def class_values(cells: Array, shift: int, mask: int, counts: Array) -> None:
    """Count the cells of each class value."""
    _count(cells, U64(shift), U64(mask), counts)


def _order(
    places: Array, kinds: Array, old: Array, new: Array, top: int, ones: int, at: Array, gaps: Array, distances: Array
) -> None:
    """Find the gaps and distances of changes, those of one kind after the other, each kind's from ``at``."""
    after, moved = np.zeros(len(at), np.uint32), np.empty(CHUNK, distances.dtype)
    for begin in range(0, len(places), CHUNK):
        some, each = places[begin : begin + CHUNK], kinds[begin : begin + CHUNK]
        before, then = old[begin : begin + CHUNK], new[begin : begin + CHUNK]
        for k in range(U64(len(some))):
            d, below = _distance(U64(before[k]), U64(then[k]), U64(top), U64(ones))
            moved[k] = _negated(d, below)
        for k in range(U64(len(some))):
            kind = U64(each[k])
            n = at[kind]
            at[kind] = n + U32(1)
            gaps[n] = some[k] - after[kind]
            after[kind] = some[k] + U32(1)
            distances[n] = moved[k]


def count_symbols(
    places: Array,
    kinds: Array,
    old: Array,
    new: Array,
    bits: int,
    top: int,
    ones: int,
    at: Array,
    rows: Array,
    gaps: Array,
    distances: Array,
    symbols: Array,
    gap_counts: Array,
    value_counts: Array,
) -> None:
    """Bring changes into coding order and count their symbols.

    ``kinds`` is empty for ``gap``; ``at`` says where each kind begins, ``rows`` which gap table it has. ``symbols`` are
    the places of a change's symbols in their tables, the gap's in the low 16 bits, then the value's; then the lowest 16
    of its raw bits, and above them how many there are. The loops are apart, so that all but ``_order`` and the counting
    take several changes at once.
    """
    begin = at.copy()
    if len(kinds) != 0:
        _order(places, kinds, old, new, top, ones, at, gaps, distances)
        for kind in range(len(at)):
            table, row = U64(kind), U64(rows[kind])
            for n in range(begin[kind], at[kind]):
                symbols[n] = _symbols(U64(gaps[n]), U64(distances[n]), bits, table, row)
    else:
        for k in range(len(places)):
            distances[k], _ = _distance(U64(old[k]), U64(new[k]), U64(top), U64(ones))
            gaps[k] = places[k] - (places[k - 1] + U32(1) if k else U32(0))
        for start in range(0, len(places), CHUNK):
            first, end = U64(start), U64(min(start + CHUNK, len(places)))
            symbols[first] = _symbols(U64(gaps[first]), U64(distances[first]), bits, ZERO, ZERO)
            for i in range(first + ONE, end):  # no case apart, and unsigned, so that several go at once everywhere
                _, m = _magnitude(U64(distances[i - ONE]), bits)
                table = U64(m != ZERO) + U64(m >= U64(15))
                symbols[i] = _symbols(U64(gaps[i]), U64(distances[i]), bits, table, table)
        _count(symbols, ZERO, U64(0xFFFF), gap_counts)
    _count(symbols, U64(16), U64(0xFFFF), value_counts)


def _emit(x: U64, full: U64, out: Array, p: U64) -> tuple[U64, U64]:
    """Write a word below ``p``, and let go of it where the state is ``full`` or more."""
    out[p - ONE] = x & U64(0xFFFF)
    need = x >= full
    return _pick(need, x >> U64(16), x), p - U64(need)


def _put_symbol(x: U64, symbol: U64, ways: Array, out: Array, p: U64) -> tuple[U64, U64]:
    at = symbol << TWO
    x, p = _emit(x, ways[at], out, p)
    return x + ((x * ways[at + ONE]) >> U64(44)) * ways[at + TWO] + ways[at + U64(3)], p


def _put_raw(x: U64, bits: U64, n: U64, out: Array, p: U64) -> tuple[U64, U64]:
    x, p = _emit(x, ONE << (U64(32) - n), out, p)
    return (x << n) | bits, p


def _put_long(x: U64, p: U64, out: Array, symbol: U64, width: U64, gap: U64, d: U64, bits: int) -> tuple[U64, U64]:
    """Code the raw bits of a change beyond the lowest 16."""
    below = _extra(symbol & U64(0xFF))
    rest = _low(_magnitude(d, bits)[1], width - below)
    raw = _low(gap, below) | (rest << below)
    at = (width - ONE) & U64(0x70)
    while at != ZERO:
        piece = raw >> at if at < U64(64) else rest >> (at - below)
        n = min(width - at, U64(16))
        x, p = _put_raw(x, _low(piece, n), n, out, p)
        at -= U64(16)
    return x, p


def _put(
    x: U64,
    p: U64,
    out: Array,
    symbol: U64,
    gap: U64,
    d: U64,
    bits: int,
    gap_ways: Array,
    value_ways: Array,
) -> tuple[U64, U64]:
    """Code one change."""
    width = symbol >> U64(48)
    if width > U64(16):
        x, p = _put_long(x, p, out, symbol, width, gap, d, bits)
    x, p = _put_raw(x, (symbol >> U64(32)) & U64(0xFFFF), min(width, U64(16)), out, p)
    x, p = _put_symbol(x, (symbol >> U64(16)) & U64(0xFFFF), value_ways, out, p)
    return _put_symbol(x, symbol & U64(0xFFFF), gap_ways, out, p)


def _finish(x: U64, p: U64, stream: Array, words: Array, at: int) -> int:
    """Write the state, and copy a stream's words to before ``at``; return where they begin."""
    stream[p - ONE], stream[p - TWO] = x >> U64(16), x & U64(0xFFFF)
    size = int(len(stream) - p) + 2
    begin, source = U64(at - size), U64(len(stream) - size)
    for k in range(U64(size)):
        words[begin + k] = stream[source + k]
    return at - size


def encode(
    symbols: Array,
    gaps: Array,
    distances: Array,
    bits: int,
    gap_ways: Array,
    value_ways: Array,
    streams: Array,
    words: Array,
    sizes: Array,
    chunks: int,
    at: int,
) -> tuple[int, int]:
    """Code the first ``chunks`` chunks to before word ``at``, last to first; return (chunks left, where words begin).

    Chunks are left where ``words`` has no room for two more.
    """
    first, second = streams[0], streams[1]
    while chunks > 0 and at >= 2 * STREAM_WORDS:
        k1 = U64(chunks - 1) * U64(CHUNK)
        n = U64(len(symbols)) - k1
        # The last chunk, being shorter, and an odd one go in both streams: that costs no more time than one.
        pair = chunks > 1 and n >= U64(CHUNK)
        n = min(n, U64(CHUNK))
        k0 = k1 - n if pair else k1
        x0 = x1 = LOWEST
        p0 = p1 = U64(STREAM_WORDS)
        while n > ZERO:
            n -= ONE
            i = k0 + n
            gap, d = U64(gaps[i]), U64(distances[i])
            x0, p0 = _put(x0, p0, first, symbols[i], gap, d, bits, gap_ways, value_ways)
            i = k1 + n
            gap, d = U64(gaps[i]), U64(distances[i])
            x1, p1 = _put(x1, p1, second, symbols[i], gap, d, bits, gap_ways, value_ways)
        chunks -= 1
        end = at
        at = _finish(x1, p1, second, words, at)
        sizes[chunks] = end - at
        if pair:
            chunks -= 1
            end = at
            at = _finish(x0, p0, first, words, at)
            sizes[chunks] = end - at
    return chunks, at


def _refill(x: U64, p: U64, words: Array) -> tuple[U64, U64]:
    """Take in a word where the state is too low."""
    need = x < LOWEST
    return _pick(need, (x << U64(16)) | U64(words[p]), x), p + U64(need)


def _take_symbol(x: U64, p: U64, words: Array, slots: Array, places: Array, row: U64) -> tuple[U64, U64, U64]:
    slot = x & U64(0xFFF)
    symbol = U64(slots[(row << U64(12)) | slot])
    place = places[(row << U64(8)) | symbol]
    x, p = _refill(U64(place & U32(0xFFFF)) * (x >> U64(12)) + slot - U64(place >> U32(16)), p, words)
    return x, p, symbol


def take_long(
    x: U64, p: U64, k: U64, low: U64, value: U64, words: Array, bits: int, out: Arrays
) -> tuple[U64, U64, U64, Any]:
    """Read more than 16 raw bits of change ``k``, whose symbols are known; see ``_take``."""
    high, below = value >> ONE, _extra(low)
    width = below + _extra(high)
    raw = rest = at = ZERO
    while at < width:
        n = min(width - at, U64(16))
        piece = _low(x, n)
        x, p = _refill(x >> n, p, words)
        raw |= piece << at if at < U64(64) else ZERO
        rest |= piece << (at - below) if at >= below else piece >> (below - at)
        at += n
    m, (gaps, steps, coded) = _first(high) + rest, out
    gaps[k], steps[k], coded[k] = _first(low) + _low(raw, below), _step(m, value & ONE), LONG
    return x, p, U64(m != ZERO) + U64(m >= U64(15)), _too_far(m, value & ONE, bits)


def _take(
    x: U64, p: U64, k: U64, table: U64, row: U64, words: Array, tables: Arrays, bits: int, out: Arrays
) -> tuple[U64, U64, U64, Any]:
    """Read change ``k``: return (state, place of the next word, table after it of ``gap``, whether it can't be).

    Its value's table is number ``table``, its gap's ``row``.
    """
    gap_places, gap_slots, value_places, value_slots = tables
    x, p, low = _take_symbol(x, p, words, gap_slots, gap_places, row)
    x, p, value = _take_symbol(x, p, words, value_slots, value_places, table)
    high = value >> ONE
    below = _extra(low)
    width = below + _extra(high)
    if width > U64(16):
        return take_long(x, p, k, low, value, words, bits, out)
    raw = _low(x, width)
    x, p = _refill(x >> width, p, words)
    out[2][k] = U32(low | (value << U64(8)) | (raw << U64(16)))
    # A magnitude of 15 or more: token 7 is of 12 to 15.
    return x, p, U64(high != ZERO) + U64(high + U64(raw >> below == U64(3)) >= U64(8)), False


def _step(m: U64, s: U64) -> U64:
    """Return the distance of a sign and a magnitude, as which it is less one."""
    return ((m + ONE) ^ (ZERO - s)) + s


def _too_far(m: U64, s: U64, bits: int) -> Any:
    return m + ONE - s >= ONE << U64(bits - 1)


def read_out(coded: Array, bits: int, gaps: Array, steps: Array) -> Any:
    """Make gaps and steps of what was read; return whether a step does not fit."""
    bad = False
    for k in range(len(coded)):
        symbols = U64(coded[k])
        low, value, raw = symbols & U64(0xFF), (symbols >> U64(8)) & U64(0xFF), symbols >> U64(16)
        below = _extra(low)
        m = _first(value >> ONE) + (raw >> below)
        short = symbols != U64(LONG)
        gaps[k] = U32(_pick(short, _first(low) + _low(raw, below), U64(gaps[k])))
        steps[k] = _pick(short, _step(m, value & ONE), U64(steps[k]))
        bad |= short & _too_far(m, value & ONE, bits)
    return bad


def next_table(table: U64, k: U64, ends: Array, after: U64) -> U64:
    """Return the table of change ``k``: for ``gap``, of which ``ends`` is empty, what the change before it asks for."""
    if len(ends) == 0:
        return after
    while k >= U64(ends[table]):
        table += ONE
    return table


def gap_row(table: U64, ends: Array, parameters: Array) -> U64:
    """Return the gap table that goes with a value table: for ``gap`` the one of the same number."""
    return table if len(ends) == 0 else U64(parameters[table])


def take_pair(
    coded: Any, bits: int, start: U64, middle: U64, end: U64, n: U64, k0: U64, k1: U64, table: U64, out: Arrays
) -> tuple[U64, Any, Any]:
    """Read two chunks of ``n`` changes, which begin with ``k0`` and ``k1``, or one that is both.

    The words of the first begin at ``start``, of the second at ``middle``; ``coded`` is what ``lanes.take_next`` gets.

    Returns:
        The table of the last change, whether a change can't be, and whether the chunks end where they should.
    """
    words, _, ends, parameters, tables = coded
    last = U64(len(words)) - U64(CHANGE_WORDS)
    begin = middle if end > middle else start
    x0 = U64(words[start]) | U64(words[start + ONE]) << U64(16)
    x1 = U64(words[begin]) | U64(words[begin + ONE]) << U64(16)
    p0, p1 = start + TWO, begin + TWO
    t0 = t1 = table
    a0 = a1 = ZERO
    bad = False
    for k in range(n):
        t0, t1 = next_table(t0, k0 + k, ends, a0), next_table(t1, k1 + k, ends, a1)
        x0, p0, a0, b0 = _take(x0, p0, k0 + k, t0, gap_row(t0, ends, parameters), words, tables, bits, out)
        x1, p1, a1, b1 = _take(x1, p1, k1 + k, t1, gap_row(t1, ends, parameters), words, tables, bits, out)
        bad |= b0 | b1
        if max(p0, p1) > last:
            return t1, bad, False
    return t1, bad, x0 == LOWEST and p0 == middle and x1 == LOWEST and p1 == end


def add_up(gaps: Array, ends: Array, limit: int) -> int:
    """Replace gaps by places, from 0 in each run; return OK or TOO_FAR."""
    k = 0
    for run in range(len(ends)):
        after = ZERO
        while k < ends[run]:
            after += U64(gaps[k]) + ONE
            gaps[k] = after - ONE
            k += 1
        if after > U64(limit):
            return TOO_FAR
    return OK
