"""Changes in coding order, with their statistics: what a group's tables are made from.

``class``: the classes of each group are chosen from a histogram of its changed cells; a stable counting sort then
brings the changes into class-major order. ``gap`` codes them as they lie.
"""

from __future__ import annotations

from typing import Any

from pulse_kernels.gpu.coding.symbols import bucket, sign_and_magnitude, step_between, token
from pulse_kernels.gpu.language import jit, tl

WARPS = 8
"""Of a program that sorts a piece."""
CLASS_TABLES = 20
"""The most classes that are chosen, so the most value tables of a group."""
BLOCK = 1024
"""Changes that a program sorts."""


@jit
def count_exponents(
    old: tl.pointer_type,
    piece_group: tl.tensor,
    piece_start: tl.tensor,
    piece_count: tl.tensor,
    classing: tl.tensor,
    counts: tl.tensor,
    CELL: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Add a piece's changed cells to its group's 256 counts by exponent."""
    piece = tl.program_id(0).to(tl.int64)
    group, start, count = tl.load(piece_group + piece), tl.load(piece_start + piece), tl.load(piece_count + piece)
    k = tl.arange(0, BLOCK)
    cells = tl.load(old + start + k, mask=k < count, other=0).to(CELL, bitcast=True)
    exponent = ((cells >> tl.load(classing + group * 4)) & tl.load(classing + group * 4 + 1)).to(tl.int32)
    found = tl.histogram(tl.where(k < count, exponent, 0), 256)
    bin_ = tl.arange(0, 256)
    found -= tl.where(bin_ == 0, BLOCK - count.to(tl.int32), 0)
    tl.atomic_add(counts + group * 256 + bin_, found, mask=found > 0, sem="relaxed")


@jit
def choose_classes(counts: tl.tensor, classing: tl.tensor, TABLES: tl.constexpr) -> None:
    """Write a group's first and last class: the window of exponents that holds the most changed cells."""
    group = tl.program_id(0).to(tl.int64)
    exponent = tl.arange(0, 256)
    count = tl.load(counts + group * 256 + exponent)
    total = tl.sum(count, 0)
    lowest = tl.min(tl.where(count > 0, exponent, 256), 0)
    highest = tl.max(tl.where(count > 0, exponent, 0), 0)
    classes = tl.minimum(tl.minimum(TABLES, 1 + total // 256), tl.maximum(highest - lowest + 1, 1))
    ends = tl.cumsum(count, 0)
    last = exponent + classes - 1
    held = tl.gather(ends, tl.minimum(last, 255), 0) - (ends - count)
    # The most, and the lowest of several: counts are below 2**24.
    rank = tl.where(last < 256, held.to(tl.int64) * 256 + (255 - exponent), -1)
    first = 255 - (tl.max(rank, 0) & 255).to(tl.int32)
    tl.store(classing + group * 4 + 2, first)
    tl.store(classing + group * 4 + 3, first + classes - 1)


@jit
def earlier_alike(kind: tl.tensor, BLOCK: tl.constexpr, TABLES: tl.constexpr) -> Any:
    """Return how many items of its class, of TABLES at most, lie before each one of a piece: int32 [BLOCK]."""
    shift = (16 * (kind & 3)).to(tl.uint64)
    one = tl.full((BLOCK,), 1, tl.uint64) << shift
    before = tl.zeros((BLOCK,), tl.uint64)
    for word in range((TABLES + 3) // 4):
        own = (kind >> 2) == word
        counted = tl.where(own, one, 0)
        before = tl.where(own, tl.cumsum(counted, 0) - counted, before)
    return ((before >> shift) & 0xFFFF).to(tl.int32)


@jit
def count_kinds(
    ranks: tl.tensor,
    piece_start: tl.tensor,
    piece_count: tl.tensor,
    counts: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    """Write a piece's changes by class."""
    piece = tl.program_id(0).to(tl.int64)
    k = tl.arange(0, BLOCK)
    some = k < tl.load(piece_count + piece)
    kind = tl.load(ranks + tl.load(piece_start + piece) + k, mask=some, other=0) >> 24
    unused = BLOCK - tl.load(piece_count + piece).to(tl.int32)  # items that say 0
    kinds = tl.arange(0, 32)
    tl.store(counts + piece * 32 + kinds, tl.histogram(kind, 32) - tl.where(kinds == 0, unused, 0))


@jit
def sort_changes(
    ranks: tl.tensor,
    old: tl.pointer_type,
    new: tl.pointer_type,
    piece_group: tl.tensor,
    piece_start: tl.tensor,
    piece_count: tl.tensor,
    group_offsets: tl.tensor,
    is_float: tl.tensor,
    class_starts: tl.tensor,
    before: tl.tensor,
    places: tl.tensor,
    steps: tl.tensor,
    counts: tl.tensor,
    CELL: tl.constexpr,
    WIDE: tl.constexpr,
    TABLES: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Move a piece's changes to class-major order, as ``class << 24 | rank`` and outward step; count value symbols."""
    piece = tl.program_id(0).to(tl.int64)
    group, start = tl.load(piece_group + piece), tl.load(piece_start + piece)
    k = tl.arange(0, BLOCK)
    some = k < tl.load(piece_count + piece)
    place = tl.load(ranks + start + k, mask=some, other=0)
    kind = place >> 24
    target = tl.load(group_offsets + group) + earlier_alike(kind, BLOCK, TABLES)
    target += tl.load(class_starts + group * 32 + kind) + tl.load(before + piece * 32 + kind)
    was = tl.load(old + start + k, mask=some, other=0).to(CELL, bitcast=True)
    now = tl.load(new + start + k, mask=some, other=1).to(CELL, bitcast=True)
    step = step_between(was, now, tl.load(is_float + group), True)
    tl.store(places + target, place, mask=some)
    tl.store(steps + target, step.to(steps.dtype.element_ty, bitcast=True), mask=some)
    sign, m = sign_and_magnitude(step, WIDE)
    symbol, _, _ = token(m, WIDE)
    at = counts + (group * TABLES + kind) * 256 + 2 * symbol + sign
    tl.atomic_add(at, tl.full((BLOCK,), 1, tl.int32), mask=some, sem="relaxed")


@jit
def count_contexts(
    index: tl.pointer_type,
    old: tl.pointer_type,
    new: tl.pointer_type,
    piece_group: tl.tensor,
    piece_start: tl.tensor,
    piece_count: tl.tensor,
    group_offsets: tl.tensor,
    is_float: tl.tensor,
    steps: tl.tensor,
    counts: tl.tensor,
    chunk: tl.int32,
    CELL: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Write a piece's steps for ``gap``; count gap tokens and value symbols in its group's six tables."""
    piece = tl.program_id(0).to(tl.int64)
    group, start = tl.load(piece_group + piece), tl.load(piece_start + piece)
    k = tl.arange(0, BLOCK)
    some = k < tl.load(piece_count + piece)
    j = start + k
    within = j - tl.load(group_offsets + group)
    signed = tl.load(is_float + group)
    was = tl.load(old + j, mask=some, other=0).to(CELL, bitcast=True)
    now = tl.load(new + j, mask=some, other=1).to(CELL, bitcast=True)
    step = step_between(was, now, signed, False)
    tl.store(steps + j, step.to(steps.dtype.element_ty, bitcast=True), mask=some)
    inner = some & (within > 0)
    gap = tl.load(index + j, mask=some, other=0) - tl.load(index + j - 1, mask=inner, other=-1) - 1
    same = inner & (within % chunk != 0)
    was = tl.load(old + j - 1, mask=same, other=0).to(CELL, bitcast=True)
    now = tl.load(new + j - 1, mask=same, other=1).to(CELL, bitcast=True)
    _, last = sign_and_magnitude(step_between(was, now, signed, False), WIDE)
    table = group * 6 + tl.where(same, bucket(last), 0)
    sign, m = sign_and_magnitude(step, WIDE)
    gap_token, _, _ = token(tl.where(some, gap, 0), WIDE)
    symbol, _, _ = token(m, WIDE)
    one = tl.full((BLOCK,), 1, tl.int32)
    tl.atomic_add(counts + table * 256 + gap_token, one, mask=some, sem="relaxed")
    tl.atomic_add(counts + (table + 3) * 256 + 2 * symbol + sign, one, mask=some, sem="relaxed")
