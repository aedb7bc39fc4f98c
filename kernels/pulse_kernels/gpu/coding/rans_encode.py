"""rANS on the device, writing: a program codes chunks of changes, each from its last change to its first.

The same kernel runs twice: once it counts the words of each chunk, then, when all sizes are known, it writes every word
where it belongs in the finished bytes. That costs the arithmetic twice, and saves scratch for the words at their worst.
"""

from __future__ import annotations

from typing import Any

from pulse_kernels.gpu.coding.symbols import bucket, raw_piece, sign_and_magnitude, token
from pulse_kernels.gpu.language import jit, tl

CHUNKS = 32
"""Chunks a program: a warp, or half a wavefront."""


@jit
def put_symbol(
    state: tl.tensor,
    at: tl.tensor,
    words: tl.tensor,
    entry: tl.tensor,
    here: tl.tensor,
    WRITE: tl.constexpr,
) -> Any:
    """Put a symbol, given as its table's entry, on the state; return (state, at), which falls by the words emitted."""
    frequency = tl.maximum(entry & 0xFFFF, 1).to(tl.uint32)
    below = (entry >> 16).to(tl.uint32)
    emits = here & ((state >> 20) >= frequency)
    if WRITE:
        tl.store(words + at, (state & 0xFFFF).to(tl.int16), mask=emits)
    state = tl.where(emits, state >> 16, state)
    quotient = state // frequency
    put = (quotient << 12) + (state - quotient * frequency) + below
    return tl.where(here, put, state), at - emits.to(tl.int32)


@jit
def put_raw(
    state: tl.tensor,
    at: tl.tensor,
    words: tl.tensor,
    piece: tl.tensor,
    width: tl.tensor,
    here: tl.tensor,
    WRITE: tl.constexpr,
) -> Any:
    """Put ``width`` raw bits, at most 16, on the state; return (state, at)."""
    some = here & (width > 0)
    n = tl.where(some, width, 1).to(tl.uint32)
    emits = some & ((state >> (32 - n)) != 0)
    if WRITE:
        tl.store(words + at, (state & 0xFFFF).to(tl.int16), mask=emits)
    state = tl.where(emits, state >> 16, state)
    put = (state << n) | (piece & ((tl.full(state.shape, 1, tl.uint32) << n) - 1))
    return tl.where(some, put, state), at - emits.to(tl.int32)


@jit
def encode_chunks(
    places: tl.pointer_type,
    steps: tl.tensor,
    piece_group: tl.tensor,
    piece_start: tl.tensor,
    piece_count: tl.tensor,
    piece_offsets: tl.tensor,
    group_offsets: tl.tensor,
    parameters: tl.tensor,
    gap_tables: tl.tensor,
    value_tables: tl.tensor,
    sizes: tl.tensor,
    words_at: tl.tensor,
    group_at: tl.tensor,
    group_words: tl.tensor,
    words: tl.tensor,
    chunks: tl.int64,
    longest: tl.int32,
    CONTEXTS: tl.constexpr,
    WRITE: tl.constexpr,
    CELL: tl.constexpr,
    WIDE: tl.constexpr,
    PIECES: tl.constexpr,
    TABLES: tl.constexpr,
    CHUNKS: tl.constexpr,
) -> None:
    """Count the words of chunks, or (WRITE) write them, and their numbers, into the groups' bytes.

    ``places`` are ``class << 24 | place``. With CONTEXTS (``gap``) a group has six tables, and the magnitude before
    chooses; otherwise a class has a value table, and ``parameters`` name its gap table.
    """
    chunk = tl.program_id(0).to(tl.int64) * CHUNKS + tl.arange(0, CHUNKS)
    live = chunk < chunks
    group = tl.load(piece_group + chunk, mask=live, other=0).to(tl.int64)
    start = tl.load(piece_start + chunk, mask=live, other=0)
    count = tl.load(piece_count + chunk, mask=live, other=0)
    group_start = tl.load(group_offsets + group, mask=live, other=0)
    state = tl.full((CHUNKS,), 1 << 16, tl.uint32)
    begin = tl.zeros((CHUNKS,), tl.int64)
    at = tl.zeros((CHUNKS,), tl.int64)
    if WRITE:
        size = tl.load(sizes + chunk, mask=live, other=2)
        begin = (tl.load(group_at + group, mask=live, other=0) + tl.load(group_words + group, mask=live, other=0)) // 2
        number = chunk - tl.load(piece_offsets + group, mask=live, other=0)
        own = tl.load(piece_offsets + group + 1, mask=live, other=0) - tl.load(
            piece_offsets + group, mask=live, other=0
        )
        tl.store(words + begin - own + number, size.to(tl.int16), mask=live)
        begin += tl.load(words_at + chunk, mask=live, other=0)
        at = begin + size - 1
    for back in range(longest):
        k = count - 1 - back
        here = live & (k >= 0)
        j = start + tl.maximum(k, 0)
        inner = here & (j > group_start)
        place = tl.load(places + j, mask=here, other=0)
        before = tl.load(places + j - 1, mask=inner, other=-1)
        kind = place >> 24
        gap = tl.where((before >> 24) == kind, place - before - 1, place & 0xFFFFFF)
        step = tl.load(steps + j, mask=here, other=1).to(CELL, bitcast=True)
        sign, m = sign_and_magnitude(step, WIDE)
        if CONTEXTS:
            last = tl.load(steps + j - 1, mask=here & (k > 0), other=1).to(CELL, bitcast=True)
            _, last_m = sign_and_magnitude(last, WIDE)
            gap_table = group * TABLES + bucket(last_m)
            value_table = gap_table + TABLES // 2
        else:
            value_table = group * TABLES + kind
            gap_table = tl.load(parameters + group * 32 + kind, mask=here, other=0).to(tl.int64)
        gap_token, gap_bits, gap_width = token(gap, WIDE)
        size_token, size_bits, size_width = token(m, WIDE)
        width = gap_width + size_width
        for PIECE in tl.static_range(PIECES - 1, -1, -1):
            n = tl.minimum(tl.maximum(width - 16 * PIECE, 0), 16)
            bits = raw_piece(gap_bits, gap_width, size_bits, PIECE)
            state, at = put_raw(state, at, words, bits, n, here, WRITE)
        entry = tl.load(value_tables + value_table * 256 + 2 * size_token + sign, mask=here, other=1)
        state, at = put_symbol(state, at, words, entry, here, WRITE)
        entry = tl.load(gap_tables + gap_table * 256 + gap_token, mask=here, other=1)
        state, at = put_symbol(state, at, words, entry, here, WRITE)
    if WRITE:
        tl.store(words + begin, (state & 0xFFFF).to(tl.int16), mask=live)
        tl.store(words + begin + 1, (state >> 16).to(tl.int16), mask=live)
    else:
        tl.store(sizes + chunk, (2 - at).to(tl.int32), mask=live)
