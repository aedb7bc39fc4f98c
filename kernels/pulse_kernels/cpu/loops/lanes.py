"""Numba loops that read several chunks of changes at once, each in a lane of vectors, whose steps are LLVM IR.

Chunks share tables and nothing else (see ``rans``). What a state looks up is in one *entry* for each slot: its symbol's
frequency less one, in 12 bits, its distance from the symbol's first slot, in 12, and the symbol. Lanes without a chunk
do what the first one does, once more.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]  # numba's own LLVM layer; it has no type hints
from numba import types
from numba.extending import intrinsic

from pulse_kernels.cpu.loops import rans
from pulse_kernels.cpu.loops.frequencies import SLOTS, SYMBOLS
from pulse_kernels.cpu.loops.simd import Typed, load, lowest, pointer, same
from pulse_kernels.cpu.loops.spans import array_on_stack, borrowed
from pulse_kernels.format.group_bytes import CONTEXTS
from pulse_kernels.format.rans import CHUNK

Array = Any
Arrays = tuple[Array, ...]
U32 = np.uint32
U64 = np.uint64
ZERO, ONE, TWO = U64(0), U64(1), U64(2)
LANES = 16
LEAST = 6
"""Chunks that are worth the lanes; fewer are read two at a time."""
BATCH = LANES * CHUNK
"""Most changes that are read at a time."""
BLOCK = 64
"""Steps of all lanes from one look at where they are to the next."""
MORE_WORDS = (BLOCK + 1) * rans.CHANGE_WORDS
"""Most words that lanes read past the end before that is noticed."""
STATE, READ = 4 * LANES, BLOCK * LANES
"""Room for what ``take_changes`` has of all lanes, and for what it reads until the next look."""
_I32, _I64 = ir.IntType(32), ir.IntType(64)


def _gathered(builder: Any, base: Any, index: Any) -> Any:
    """Load the 32 bits at ``base`` and an index, of entries of the base's type, for each lane.

    Lane by lane, as the processors' own instructions for it are slower, or there are none.
    """
    pairs = builder.bitcast(index, ir.VectorType(_I64, LANES // 2))
    found = ir.Constant(index.type, ir.Undefined)
    for n in range(LANES):
        pair = builder.extract_element(pairs, ir.Constant(_I32, n // 2))
        one = builder.lshr(pair, same(pair, 32)) if n % 2 else builder.and_(pair, same(pair, 0xFFFFFFFF))
        place = builder.bitcast(builder.gep(base, [one]), _I32.as_pointer())
        found = builder.insert_element(found, builder.load(place, align=1), ir.Constant(_I32, n))
    return found


def _take_changes(_context: Any, words: Any, entries: Any, state: Any, into: Any, out: Any, at: Any) -> Typed:
    """take_changes(words, entries, state, row, out, i): read the next change of each lane, but for long raw bits.

    ``state`` has rows of the lanes' states, the places of their next words, and the tables of their next changes; the
    tables that ``gap`` asks for after it go to a row. ``entries`` are those of each table's gaps, then of its values.
    What is read goes to ``out`` from i on, as ``decode`` has it.

    Returns:
        A mask of the lanes whose change has more than 16 raw bits: none of these is read, so that no table follows.
    """

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        def row(number: int) -> Any:
            return load(context, builder, signature.args[2], args[2], ir.Constant(_I64, number * LANES), LANES)

        def low(v: Any, bits: int) -> Any:
            return builder.and_(v, same(v, (1 << bits) - 1))

        def up(v: Any, bits: int) -> Any:
            return builder.shl(v, same(v, bits))

        def down(v: Any, bits: int) -> Any:
            return builder.lshr(v, same(v, bits))

        def refilled(x: Any, p: Any, words: Any) -> tuple[Any, Any, Any]:
            need = builder.icmp_unsigned("<", x, same(x, 1 << 16))
            x = builder.select(need, builder.or_(up(x, 16), low(words, 16)), x)
            return x, builder.add(p, builder.zext(need, p.type)), builder.select(need, down(words, 16), words)

        def symbol(x: Any, p: Any, words: Any, table: Any) -> tuple[Any, Any, Any, Any]:
            entry = _gathered(builder, tables, builder.or_(up(table, 12), low(x, 12)))
            f = builder.add(low(entry, 12), same(entry, 1))
            x = builder.add(builder.mul(f, down(x, 12)), low(down(entry, 12), 12))
            return *refilled(x, p, words), down(entry, 24)

        def extra(token: Any) -> Any:
            half = down(token, 1)
            return builder.sub(half, builder.zext(builder.icmp_unsigned("!=", half, same(half, 0)), half.type))

        stream, tables = (pointer(context, builder, signature.args[n], args[n], ir.Constant(_I64, 0)) for n in (0, 1))
        x, p, table = row(0), row(1), row(2)
        ahead, both = _gathered(builder, stream, p), up(table, 1)
        x, p, ahead, gap = symbol(x, p, ahead, both)
        x, p, _, value = symbol(x, p, ahead, builder.or_(both, same(both, 1)))
        high, below = down(value, 1), extra(gap)
        width = builder.add(below, extra(high))
        long = builder.icmp_unsigned(">", width, same(width, 16))
        width = builder.select(long, same(width, 0), width)
        raw = builder.and_(x, builder.not_(builder.shl(same(x, -1), width)))
        x, p, _ = refilled(builder.lshr(x, width), p, _gathered(builder, stream, p))
        # As in ``rans``: token 7 is of magnitudes from 12 to 15.
        last = builder.icmp_unsigned("==", builder.lshr(raw, below), same(raw, 3))
        large = builder.icmp_unsigned(">=", builder.add(high, builder.zext(last, high.type)), same(high, 8))
        some = builder.icmp_unsigned("!=", high, same(high, 0))
        follows = builder.add(builder.zext(some, high.type), builder.zext(large, high.type))
        found = builder.or_(builder.or_(gap, up(value, 8)), up(raw, 16))
        rows = [ir.Constant(_I64, 0), ir.Constant(_I64, LANES), builder.mul(args[3], ir.Constant(_I64, LANES))]
        for number, place, v in [*zip([2] * 3, rows, (x, p, follows), strict=True), (4, args[5], found)]:
            to = pointer(context, builder, signature.args[number], args[number], place)
            builder.store(v, builder.bitcast(to, v.type.as_pointer()), align=1)
        return builder.zext(builder.bitcast(long, ir.IntType(LANES)), _I64)

    return types.uint64(words, entries, state, types.uint64, out, types.uint64), code


take_changes: Any = intrinsic(_take_changes)


def _spread(slots: Array, places: Array, entries: Array) -> None:
    """Write the entry of each slot of a table."""
    slot = ZERO
    while slot < U64(SLOTS):
        symbol = U64(slots[slot])
        place = U64(places[symbol])
        f = place & U64(0xFFFF)
        entry = (f - ONE) | (slot - (place >> U64(16))) << U64(12) | symbol << U64(24)
        for k in range(f):
            entries[slot + k] = U32(entry + (k << U64(12)))
        slot += f


def spread_tables(coded: Any, entries: Array) -> None:
    """Write the entries of all tables that changes have, those of gaps and of values by turns."""
    _, _, ends, parameters, (gap_places, gap_slots, value_places, value_slots) = coded
    given = len(ends) != 0
    for number in range(len(ends) if given else CONTEXTS):
        table = U64(number)
        row = rans.gap_row(table, ends, parameters)
        if given and ends[number] == (ends[number - 1] if number else 0):
            continue
        at, a, b = (table << ONE) * U64(SLOTS), row * U64(SLOTS), row * U64(SYMBOLS)
        _spread(gap_slots[a : a + U64(SLOTS)], gap_places[b : b + U64(SYMBOLS)], entries[at : at + U64(SLOTS)])
        at, a, b = at + U64(SLOTS), table * U64(SLOTS), table * U64(SYMBOLS)
        _spread(value_slots[a : a + U64(SLOTS)], value_places[b : b + U64(SYMBOLS)], entries[at : at + U64(SLOTS)])


def _take_long(
    mask: U64, k: U64, words: Array, state: Array, rows: Array, into: U64, bits: int, read: Array, out: Arrays
) -> Any:
    """Read the raw bits of step ``k`` in the lanes of a mask; return whether one of these changes can't be."""
    bad = False
    while mask != ZERO:
        lane = lowest(mask)
        mask &= mask - ONE
        low, value = U64(read[lane]) & U64(0xFF), U64(read[lane]) >> U64(8)
        x, p, k0 = U64(state[lane]), U64(state[U64(LANES) + lane]), U64(rows[lane])
        x, p, table, wrong = rans.take_long(x, p, k0 + k, low, value, words, bits, out)
        state[lane], state[U64(LANES) + lane], state[into * U64(LANES) + lane] = U32(x), U32(p), U32(table)
        read[lane] = rans.LONG
        bad |= wrong
    return bad


def _take_lanes(
    coded: Any, sizes: Array, entries: Array, bits: int, start: U64, n: U64, k0: U64, table: U64, out: Arrays
) -> tuple[U64, U64, Any, Any]:
    """Read the chunks of ``sizes``, up to LANES of them, the last one of ``n`` changes; see ``take_next``."""
    (words, _, ends, _, _), changes = coded, out[2]
    given, count, lanes = len(ends) != 0, U64(len(sizes)), U64(LANES)
    state, read = array_on_stack(changes, STATE), array_on_stack(changes, READ)
    rows, follows = array_on_stack(changes, LANES), array_on_stack(changes, LANES)
    for lane in range(lanes):
        own = lane if lane < count else ZERO
        at = start if own == ZERO else U64(follows[own - ONE])
        rows[lane], follows[lane] = U32(k0 + own * U64(CHUNK)), U32(at + U64(sizes[own]))
        state[lane] = U32(words[at]) | (U32(words[at + ONE]) << U32(16))
        state[lanes + lane], state[TWO * lanes + lane] = U32(at + TWO), U32(table if given else ZERO)
    into = U64(3) if given else TWO
    end, bad, k = U64(follows[count - ONE]), False, ZERO
    while k < U64(CHUNK):
        until = min(k + U64(BLOCK), n if k < n else U64(CHUNK))
        if given:
            for lane in range(lanes):
                at = rans.next_table(U64(state[TWO * lanes + lane]), U64(rows[lane]) + k, ends, ZERO)
                state[TWO * lanes + lane] = U32(at)
                until = min(until, U64(ends[at]) - U64(rows[lane]))
        for step in range(until - k):
            at = step * lanes
            long = take_changes(words, entries, state, into, read, at)
            if long != ZERO:
                some = read[at : at + lanes]
                bad |= _take_long(long, k + step, words, state, rows, into, bits, some, out)
        for lane in range(lanes):
            for step in range(until - k):
                changes[U64(rows[lane]) + k + step] = read[step * lanes + lane]
        k = until
        for lane in range(lanes):
            if U64(state[lanes + lane]) > U64(len(words) - MORE_WORDS):
                return end, table, bad, False
        if k == n and n < U64(CHUNK):  # from here on the last lane does what the first one does, once more
            short = count - ONE
            if U64(state[short]) != rans.LOWEST or U64(state[lanes + short]) != end:
                return end, table, bad, False
            for row in range(U64(3)):
                state[row * lanes + short] = state[row * lanes]
            rows[short], follows[short] = rows[ZERO], follows[ZERO]
    ended = True
    for lane in range(lanes):
        ended &= U64(state[lane]) == rans.LOWEST and U64(state[lanes + lane]) == U64(follows[lane])
    return end, U64(state[TWO * lanes]), bad, ended


def take_next(
    coded: Any, entries: Array, bits: int, chunk: U64, start: U64, k0: U64, table: U64, out: Arrays
) -> tuple[U64, U64, U64, Any, Any]:
    """Read the next chunks: as many as there are lanes, or two, or one.

    Args:
        coded: words, with MORE_WORDS behind them, sizes, ends, parameters, and the tables, as ``decode`` takes them.
        entries: of all tables, if there are at least LEAST chunks.
        chunk: the first one to read, whose words begin at ``start``.
        k0: the number of its first change.
        table: of the change before.
        out: ``gaps``, ``steps`` and ``coded`` as ``decode`` has them, before ``read_out``; the first ends with the last
            change, or with BATCH from ``k0`` on.

    Returns:
        How many chunks were read, where their words end, the table of a change, whether a change can't be, and whether
        they end where they should.
    """
    _, sizes, _, _, _ = coded
    count = min(U64(len(sizes)) - chunk, U64(LANES))
    left = U64(len(out[0])) - k0
    if count >= U64(LEAST):
        n = min(left - (count - ONE) * U64(CHUNK), U64(CHUNK))
        some = sizes[chunk : chunk + count]
        end, table, bad, ended = _take_lanes(coded, some, entries, bits, start, n, k0, table, out)
        return count, end, table, bad, ended
    n = min(left, U64(CHUNK))
    # The last chunk, being shorter, and an odd one go in both streams: that costs no more time than one.
    pair = left >= U64(2 * CHUNK)
    middle = start + U64(sizes[chunk])
    end = middle + U64(sizes[chunk + ONE]) if pair else middle
    k1 = k0 + n if pair else k0
    table, bad, ended = rans.take_pair(coded, bits, start, middle, end, n, k0, k1, table, out)
    return TWO if pair else ONE, end, table, bad, ended


def decode(
    words: Array,
    sizes: Array,
    ends: Array,
    parameters: Array,
    gap_places: Array,
    gap_slots: Array,
    value_places: Array,
    value_slots: Array,
    entries: Array,
    bits: int,
    gaps: Array,
    steps: Array,
    changes: Array,
) -> int:
    """Read all changes, gaps and steps in coding order; return OK or what is wrong.

    What is read one after the other goes to ``changes``: both symbols, and the raw bits above them; what it means is
    then found for several changes at once.

    ``words`` has MORE_WORDS more than there are: so many are read past the end, at most, before that is noticed.
    ``ends`` says where each class ends, and is empty for ``gap``; ``entries`` is room for those of all tables.
    """
    coded = borrowed((words, sizes, ends, parameters, (gap_places, gap_slots, value_places, value_slots)))
    entries, out = borrowed(entries), borrowed((gaps, steps, changes))
    gaps, steps, changes = out
    chunks = U64(len(sizes))
    if chunks >= U64(LEAST):
        spread_tables(coded, entries)
    bad = False
    table = start = chunk = ZERO
    while chunk < chunks:
        k0 = chunk * U64(CHUNK)
        count, start, table, wrong, ended = take_next(coded, entries, bits, chunk, start, k0, table, out)
        bad |= wrong
        if not ended:
            return rans.BAD_END
        chunk += count
    bad |= rans.read_out(changes, bits, gaps, steps)
    return rans.BAD_CHANGE if bad else rans.OK
