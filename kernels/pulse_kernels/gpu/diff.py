"""Diff on the device: live weights against the shadow, bit by bit, in one pass over both.

A tile's program compares 64-bit words, compacts those that differ, and reserves room for them with one atomic addition;
a second, small pass splits them into cells, in the order of the flat cell space. Only the counts come to the host.
Words, because every stored element costs instructions whether it is kept or not: four BF16 cells cost as much as one.
"""

from __future__ import annotations

from typing import Any

import torch

from pulse_kernels.gpu.cells import UNSIGNED, load_rows
from pulse_kernels.gpu.changes import Changes, no_cells, offsets_of
from pulse_kernels.gpu.language import jit, registers, tl
from pulse_kernels.gpu.tiling import Tiling

SHARE = 0.0125
"""Of the cells, words for which the first attempt has room. A step of a fine-tune changes up to 1 % of them."""
REGISTERS = 64
"""Of a thread that compares: four programs fit a multiprocessor of 65,536, and three with the compiler's own choice."""
RUN = 64
"""Words that the second pass splits at a time; a tile with 1 % of its cells changed has 80."""


@jit
def cells_changed(was: tl.tensor, now: tl.tensor, PER_WORD: tl.constexpr) -> Any:
    """Return words of a count for each of their cells: 1 where it differs."""
    # The top bit of a cell is set where any of its bits is: what is carried out of the others ends there.
    tops: tl.constexpr = 0xFFFFFFFFFFFFFFFF // ((1 << (64 // PER_WORD)) - 1) << (64 // PER_WORD - 1)
    rest: tl.constexpr = 0xFFFFFFFFFFFFFFFF ^ tops
    differs = was ^ now
    return ((((differs & rest) + rest) | differs) & tops) >> (64 // PER_WORD - 1)


@jit
def sum_of_counts(counts: tl.tensor, PER_WORD: tl.constexpr) -> Any:
    """Return the sums, int32, of words' counts of their cells, each at most 8."""
    if PER_WORD >= 8:
        counts = (counts & 0x00FF00FF00FF00FF) + ((counts >> 8) & 0x00FF00FF00FF00FF)
    if PER_WORD >= 4:
        counts = (counts & 0x0000FFFF0000FFFF) + ((counts >> 16) & 0x0000FFFF0000FFFF)
    return ((counts >> 32) + counts).to(tl.int32) if PER_WORD >= 2 else counts.to(tl.int32)


@jit
def keep(
    was: tl.tensor,
    now: tl.tensor,
    word: tl.tensor,
    target: tl.tensor,
    capacity: tl.int64,
    number: tl.tensor,
    old: tl.tensor,
    new: tl.tensor,
) -> Any:
    """Write words that differ, each to its target below ``capacity``; return the targets of those behind them."""
    room = (was != now) & (target < capacity)
    tl.store(number + target, word, mask=room)
    tl.store(old + target, was.to(tl.int64, bitcast=True), mask=room)
    tl.store(new + target, now.to(tl.int64, bitcast=True), mask=room)
    return target + (was != now).to(tl.int64)


@jit
def find_changes(
    live: tl.tensor,
    wide: tl.tensor,
    shadow: tl.tensor,
    count: tl.tensor,
    capacity: tl.int64,
    cursor: tl.tensor,
    found: tl.tensor,
    words: tl.tensor,
    place: tl.tensor,
    number: tl.tensor,
    old: tl.tensor,
    new: tl.tensor,
    ROWS: tl.constexpr,
    CELL: tl.constexpr,
    PER_WORD: tl.constexpr,
    ROUNDED: tl.constexpr,
) -> None:
    """Write a tile's words that differ to a place of its own, which is recorded; nothing past ``capacity``."""
    tile = tl.program_id(0).to(tl.int64)
    cells = tl.load(count + tile)
    a0, a1, a2, a3, a4, a5, a6, a7 = load_rows(tl.load(shadow + tile), cells, ROWS, CELL, PER_WORD, False)
    address = tl.load(live + tile)
    if ROUNDED:
        if tl.load(wide + tile) != 0:
            b0, b1, b2, b3, b4, b5, b6, b7 = load_rows(address, cells, ROWS, CELL, PER_WORD, True)
        else:
            b0, b1, b2, b3, b4, b5, b6, b7 = load_rows(address, cells, ROWS, CELL, PER_WORD, False)
    else:
        b0, b1, b2, b3, b4, b5, b6, b7 = load_rows(address, cells, ROWS, CELL, PER_WORD, False)
    cells = cells_changed(a0, b0, PER_WORD) + cells_changed(a1, b1, PER_WORD) + cells_changed(a2, b2, PER_WORD)
    cells += cells_changed(a3, b3, PER_WORD) + cells_changed(a4, b4, PER_WORD) + cells_changed(a5, b5, PER_WORD)
    cells += cells_changed(a6, b6, PER_WORD) + cells_changed(a7, b7, PER_WORD)
    changed = (a0 != b0).to(tl.int32) + (a1 != b1).to(tl.int32) + (a2 != b2).to(tl.int32) + (a3 != b3).to(tl.int32)
    changed += (a4 != b4).to(tl.int32) + (a5 != b5).to(tl.int32) + (a6 != b6).to(tl.int32) + (a7 != b7).to(tl.int32)
    before = tl.cumsum(changed, 0) - changed
    total = tl.sum(changed, 0)
    begin = tl.atomic_add(cursor, total.to(tl.int64), sem="relaxed")
    tl.store(found + tile, tl.sum(sum_of_counts(cells, PER_WORD), 0))
    tl.store(words + tile, total)
    tl.store(place + tile, begin)
    word = tl.arange(0, ROWS) * 8
    target = keep(a0, b0, word, begin + before, capacity, number, old, new)
    target = keep(a1, b1, word + 1, target, capacity, number, old, new)
    target = keep(a2, b2, word + 2, target, capacity, number, old, new)
    target = keep(a3, b3, word + 3, target, capacity, number, old, new)
    target = keep(a4, b4, word + 4, target, capacity, number, old, new)
    target = keep(a5, b5, word + 5, target, capacity, number, old, new)
    target = keep(a6, b6, word + 6, target, capacity, number, old, new)
    target = keep(a7, b7, word + 7, target, capacity, number, old, new)


@jit
def order_changes(
    first: tl.tensor,
    words: tl.tensor,
    place: tl.tensor,
    tile_offsets: tl.tensor,
    number: tl.tensor,
    old_words: tl.tensor,
    new_words: tl.tensor,
    index: tl.tensor,
    old: tl.tensor,
    new: tl.tensor,
    RUN: tl.constexpr,
    PER_WORD: tl.constexpr,
    CELL: tl.constexpr,
) -> None:
    """Split a tile's words into changed cells, at the place where they belong."""
    tile = tl.program_id(0).to(tl.int64)
    begin = tl.load(tile_offsets + tile)
    total = tl.load(words + tile)
    source = tl.load(place + tile)
    base = tl.load(first + tile)
    k = tl.arange(0, RUN * PER_WORD)
    slot = k % PER_WORD
    shift = (slot * (64 // PER_WORD)).to(tl.int64)
    for done in range(0, total, RUN):
        word = done + k // PER_WORD
        some = word < total
        was = (tl.load(old_words + source + word, mask=some, other=0) >> shift).to(CELL)
        now = (tl.load(new_words + source + word, mask=some, other=0) >> shift).to(CELL)
        place_in_tile = tl.load(number + source + word, mask=some, other=0) * PER_WORD + slot
        changed = (was != now).to(tl.int32)
        target = begin + tl.cumsum(changed, 0) - 1
        tl.store(index + target, base + place_in_tile, mask=changed != 0)
        tl.store(old + target, was.to(old.dtype.element_ty, bitcast=True), mask=changed != 0)
        tl.store(new + target, now.to(new.dtype.element_ty, bitcast=True), mask=changed != 0)
        begin += tl.sum(changed, 0)


def diff(live: Tiling, shadow: Tiling, share: float = SHARE) -> Changes:
    """Return where ``live`` differs from ``shadow``, as bits; both only read.

    Args:
        live: weights; float32 memory (``Tiling.wide``) is rounded to BF16 as ``Backend.cast_f32`` does.
        shadow: the same tiles.
        share: of the cells, how many words that differ there is room for, at 20 bytes of scratch each. Where there are
            more, their number is known after the first pass, and another one has room for all.

    Waits for the device once, or twice where ``share`` was too small.
    """
    tiles = shadow.tiles
    device, cell = tiles.device, UNSIGNED[tiles.width]
    per_word = 8 // tiles.width
    rows = max(1, tiles.tile // (8 * per_word))
    found, words = (torch.empty(len(tiles), dtype=torch.int32, device=device) for _ in range(2))
    place = torch.empty(len(tiles), dtype=torch.int64, device=device)
    capacity = int(share * tiles.group_cells.sum()) + tiles.tile
    while True:
        cursor = torch.zeros(1, dtype=torch.int64, device=device)
        number = torch.empty(capacity, dtype=torch.int32, device=device)
        old_words, new_words = (torch.empty(capacity, dtype=torch.int64, device=device) for _ in range(2))
        if len(tiles):
            find_changes[(len(tiles),)](
                *(live.address, live.wide, shadow.address, tiles.count, capacity, cursor),
                *(found, words, place, number, old_words, new_words),
                ROWS=rows,
                CELL=cell,
                PER_WORD=per_word,
                ROUNDED=live.any_wide,
                num_warps=min(32, max(1, rows // 32)),  # a thread has a row, whatever the width
                **registers(REGISTERS),
            )
        tile_offsets = offsets_of(found)
        group_offsets = tile_offsets[tiles.offsets]
        counts = torch.cat([group_offsets, cursor]).cpu().numpy()
        if counts[-1] <= capacity:
            break
        capacity = int(counts[-1])
    total = int(counts[-2])
    index = torch.empty(total, dtype=torch.int32, device=device)
    old, new = no_cells(tiles, total), no_cells(tiles, total)
    if total:
        order_changes[(len(tiles),)](
            *(tiles.first, words, place, tile_offsets, number, old_words, new_words, index, old, new),
            RUN=RUN,
            PER_WORD=per_word,
            CELL=cell,
            num_warps=1,
        )
    return Changes(tiles, index, old, new, tile_offsets, group_offsets, counts[:-1])
