"""rANS on the device, reading: a program decodes some chunks of changes, tens of thousands of them at once.

Nothing that the bytes say can make a program read or write out of bounds; what breaks a rule sets a bit of its group's
error, which is read when all is done.
"""

from __future__ import annotations

from typing import Any

from pulse_kernels.gpu.coding.symbols import bucket, extra_bits, first_value
from pulse_kernels.gpu.language import constant, jit, tl

CHUNKS = 32
"""Chunks a program."""
RUNS = 128
"""Classes whose last ranks a program checks."""
SATURATED = constant(1 << 25)
"""No sum of gaps within a group of at most 2**24 cells gets here."""
WORDS, DISTANCE, TABLE, PLACE, RANK = (constant(1 << bit) for bit in range(5))
"""Bits of a group's error."""


@jit
def refill(state: tl.tensor, at: tl.tensor, end: tl.tensor, words: tl.tensor, here: tl.tensor) -> Any:
    """Take in a word where the state has fallen below 2**16; return (state, at): past ``end`` if none is left."""
    needs = here & (state < 65536)
    word = tl.load(words + at, mask=needs & (at < end), other=0).to(tl.uint16, bitcast=True).to(tl.uint32)
    return tl.where(needs, (state << 16) | word, state), at + needs.to(tl.int32)


@jit
def take_symbol(
    state: tl.tensor,
    at: tl.tensor,
    end: tl.tensor,
    words: tl.tensor,
    table: tl.tensor,
    tables: tl.tensor,
    slots: tl.tensor,
    here: tl.tensor,
) -> Any:
    """Return (symbol, state, at, whether the table is empty)."""
    slot = (state & 4095).to(tl.int32)
    symbol = tl.load(slots + table * 4096 + slot, mask=here, other=0).to(tl.int32)
    entry = tl.load(tables + table * 256 + symbol, mask=here, other=1)
    frequency = entry & 0xFFFF
    taken = frequency.to(tl.uint32) * (state >> 12) + (slot - (entry >> 16)).to(tl.uint32)
    state, at = refill(tl.where(here, taken, state), at, end, words, here)
    return symbol, state, at, here & (frequency == 0)


@jit
def decode_chunks(
    words: tl.tensor,
    piece_group: tl.tensor,
    piece_start: tl.tensor,
    piece_count: tl.tensor,
    words_at: tl.tensor,
    words_end: tl.tensor,
    piece_run: tl.tensor,
    run_end: tl.tensor,
    run_gap: tl.tensor,
    gap_tables: tl.tensor,
    gap_slots: tl.tensor,
    value_tables: tl.tensor,
    value_slots: tl.tensor,
    places: tl.tensor,
    steps: tl.tensor,
    tails: tl.tensor,
    errors: tl.tensor,
    chunks: tl.int64,
    longest: tl.int32,
    CONTEXTS: tl.constexpr,
    CELL: tl.constexpr,
    WIDE: tl.constexpr,
    PIECES: tl.constexpr,
    CHUNKS: tl.constexpr,
) -> None:
    """Write places, each plus one and counted from the start of its class or of its chunk, and steps of chunks.

    A run is a class with changes: its end, its gap table, and its number, which is its value table's. With CONTEXTS
    (``gap``) there is one a group, and six tables each, gap tables first. ``tails``: the last place of each chunk.
    """
    one = tl.full((CHUNKS,), 1, WIDE)
    BITS: tl.constexpr = tl.zeros((CHUNKS,), CELL).dtype.primitive_bitwidth
    WIDTH: tl.constexpr = one.dtype.primitive_bitwidth
    most: tl.constexpr = WIDTH - 1
    chunk = tl.program_id(0).to(tl.int64) * CHUNKS + tl.arange(0, CHUNKS)
    live = chunk < chunks
    start = tl.load(piece_start + chunk, mask=live, other=0)
    count = tl.load(piece_count + chunk, mask=live, other=0)
    at = tl.load(words_at + chunk, mask=live, other=0)
    end = tl.load(words_end + chunk, mask=live, other=0)
    run = tl.load(piece_run + chunk, mask=live, other=0)
    stop = tl.load(run_end + run, mask=live, other=0)
    gap_table = tl.load(run_gap + run, mask=live, other=0)
    low_word = tl.load(words + at, mask=live, other=0).to(tl.uint16, bitcast=True).to(tl.uint32)
    high_word = tl.load(words + at + 1, mask=live, other=0).to(tl.uint16, bitcast=True).to(tl.uint32)
    state = low_word | (high_word << 16)
    at += 2
    place = tl.zeros((CHUNKS,), tl.int32)
    context = tl.zeros((CHUNKS,), tl.int32)
    error = tl.zeros((CHUNKS,), tl.int32)
    for k in range(longest):
        here = live & (k < count)
        j = start + k
        if CONTEXTS:
            gap_table = run * 6 + context
            value_table = gap_table + 3
        else:
            moved = here & (j == stop)
            run += moved.to(tl.int32)
            stop = tl.load(run_end + run, mask=moved, other=0) + tl.where(moved, 0, stop)
            gap_table = tl.load(run_gap + run, mask=moved, other=0) + tl.where(moved, 0, gap_table)
            place = tl.where(moved, 0, place)
            value_table = run
        gap_token, state, at, bad = take_symbol(state, at, end, words, gap_table, gap_tables, gap_slots, here)
        error |= tl.where(bad, TABLE, 0)
        symbol, state, at, bad = take_symbol(state, at, end, words, value_table, value_tables, value_slots, here)
        error |= tl.where(bad, TABLE, 0)
        # An empty table's symbol may be any: its token is not to be believed.
        symbol = tl.where(bad, 0, symbol)
        gap_token = tl.minimum(gap_token, 47)
        sign, size_token = symbol & 1, symbol >> 1
        gap_width = extra_bits(gap_token)
        width = gap_width + extra_bits(size_token)
        gap_bits, size_bits = tl.zeros((CHUNKS,), WIDE), tl.zeros((CHUNKS,), WIDE)
        for PIECE in tl.static_range(PIECES):
            n = tl.minimum(tl.maximum(width - 16 * PIECE, 0), 16)
            some = here & (n > 0)
            bits = (state & ((tl.full((CHUNKS,), 1, tl.uint32) << n.to(tl.uint32)) - 1)).to(WIDE)
            bits = tl.where(some, bits, 0)
            state, at = refill(tl.where(some, state >> n.to(tl.uint32), state), at, end, words, some)
            shift = 16 * PIECE - gap_width
            if PIECE < 2:
                gap_bits |= bits << (16 * PIECE)
            part = bits >> tl.minimum(tl.maximum(-shift, 0), most).to(WIDE)
            size_bits |= part << tl.minimum(tl.maximum(shift, 0), most).to(WIDE)
        gap = first_value(gap_token, WIDE) + (gap_bits & ((one << gap_width.to(WIDE)) - 1))
        m = first_value(size_token, WIDE) + size_bits
        limit = (one << (BITS - 1)) - 2 + sign.to(WIDE)
        error |= tl.where(here & (m > limit), DISTANCE, 0)
        size = (m + 1).to(CELL)
        step = tl.where(sign != 0, ~size + 1, size)
        place = tl.where(here, tl.minimum(place + gap.to(tl.int32) + 1, SATURATED), place)
        tl.store(places + j, place, mask=here)
        tl.store(steps + j, step.to(steps.dtype.element_ty, bitcast=True), mask=here)
        context = tl.where(here, bucket(m), context)
    error |= tl.where((state != 65536) | (at != end), WORDS, 0)
    tl.store(tails + chunk, place.to(tl.int64), mask=live)
    group = tl.load(piece_group + chunk, mask=live, other=0)
    tl.atomic_or(errors + group, error, mask=live & (error != 0), sem="relaxed")


@jit
def join_chunks(
    piece_start: tl.tensor,
    piece_count: tl.tensor,
    piece_run: tl.tensor,
    run_piece: tl.tensor,
    run_end: tl.tensor,
    sums: tl.tensor,
    places: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    """Make places of a chunk's first run count from the run's start; ``sums`` are of the tails of all chunks before."""
    piece = tl.program_id(0).to(tl.int64)
    run = tl.load(piece_run + piece)
    carry = tl.load(sums + piece) - tl.load(sums + tl.load(run_piece + run))
    start = tl.load(piece_start + piece)
    stop = tl.minimum(start + tl.load(piece_count + piece), tl.load(run_end + run))
    for done in range(start, start + tl.load(piece_count + piece), BLOCK):
        j = done + tl.arange(0, BLOCK)
        some = j < start + tl.load(piece_count + piece)
        place = tl.load(places + j, mask=some, other=0) - 1
        place += tl.where(j < stop, tl.minimum(carry, SATURATED), 0).to(tl.int32)
        tl.store(places + j, place, mask=some)


@jit
def check_runs(
    run_group: tl.tensor,
    run_kind: tl.tensor,
    run_end: tl.tensor,
    cells: tl.tensor,
    population: tl.tensor,
    places: tl.tensor,
    errors: tl.tensor,
    runs: tl.int64,
    RANKED: tl.constexpr,
    RUNS: tl.constexpr,
) -> None:
    """Check that the last place of a run, the greatest, is below its limits; or set its group's error."""
    run = tl.program_id(0).to(tl.int64) * RUNS + tl.arange(0, RUNS)
    live = run < runs
    group = tl.load(run_group + run, mask=live, other=0)
    last = tl.load(places + tl.load(run_end + run, mask=live, other=1) - 1, mask=live, other=0)
    error = tl.where(last >= tl.load(cells + group, mask=live, other=0), PLACE, 0)
    if RANKED:
        kind = tl.load(run_kind + run, mask=live, other=0)
        error |= tl.where(last >= tl.load(population + group * 32 + kind, mask=live, other=0), RANK, 0)
    tl.atomic_or(errors + group, error, mask=live & (error != 0), sem="relaxed")
