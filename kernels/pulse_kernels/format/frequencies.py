"""Tables of frequencies, as a few bits a symbol: each symbol present has one of 31 levels, a third of an octave apart.

A table's frequencies follow from its levels by integer arithmetic alone, so that writer and reader, whatever they run
on, code with the same ones.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from collections.abc import Sequence

from pulse_kernels.errors import CodecError

SCALE_BITS = 12
SCALE = 1 << SCALE_BITS
"""The sum of a table's frequencies."""
# fmt: off
WEIGHTS = (
    8, 10, 13, 16, 20, 25, 32, 40, 51, 64, 81, 102, 128, 161, 203, 256,
    323, 406, 512, 645, 813, 1024, 1290, 1625, 2048, 2580, 3251, 4096, 5161, 6502, 8192,
)
# fmt: on
"""Of levels 1 to 31: 8 * 2**((level - 1) / 3), rounded."""
BOUNDS = tuple(math.isqrt(low * high) for low, high in itertools.pairwise(WEIGHTS))
"""The greatest scaled count of levels 1 to 30: the geometric means of neighbouring weights."""
_LEVEL_BITS = 5


def levels_of(counts: Sequence[int]) -> list[int]:
    """Return the level of each symbol, 0 for those that don't occur."""
    most = max(counts, default=0)
    return [1 + bisect_left(BOUNDS, count * WEIGHTS[-1] // most) if count else 0 for count in counts]


def frequencies(levels: Sequence[int]) -> list[int]:
    """Return the frequency of each symbol: at least 1 where the level is not 0, 4096 in all (0 for an empty table)."""
    weights = [WEIGHTS[level - 1] if level else 0 for level in levels]
    return share([w for w in weights if w], [w > 0 for w in weights])


def share(weights: Sequence[int], present: Sequence[bool]) -> list[int]:
    """Share 4096 out by weight, one by one of the symbols present; what is left goes to the greatest (lowest) one."""
    if not weights:
        return [0] * len(present)
    total, room = sum(weights), SCALE - len(weights)
    shares = [1 + weight * room // total for weight in weights]
    shares[max(range(len(weights)), key=lambda k: (weights[k], -k))] += SCALE - sum(shares)
    each = iter(shares)
    return [next(each) if there else 0 for there in present]


def cumulative(frequency: Sequence[int]) -> list[int]:
    """Return the sum of the frequencies of lower symbols."""
    return list(itertools.accumulate(frequency, initial=0))[:-1]


def store_table(levels: Sequence[int]) -> bytes:
    """Return a table's bytes: first symbol, number of symbols from it to the last one, their levels."""
    present = [symbol for symbol, level in enumerate(levels) if level]
    if not present:
        return bytes(2)
    first, size = present[0], present[-1] + 1 - present[0]
    packed = sum(level << (_LEVEL_BITS * k) for k, level in enumerate(levels[first : first + size]))
    return bytes((first, size)) + packed.to_bytes((_LEVEL_BITS * size + 7) // 8, "little")


def read_table(data: bytes, at: int, symbols: int) -> tuple[list[int], int]:
    """Return (levels of all ``symbols``, where the next table begins).

    Raises:
        CodecError: the bytes end too early or break a rule.
    """
    if at + 2 > len(data):
        raise CodecError("the tables end too early")
    first, size = data[at], data[at + 1]
    stop = at + 2 + (_LEVEL_BITS * size + 7) // 8
    if stop > len(data):
        raise CodecError("the tables end too early")
    if first + size > symbols or (size == 0 and first):
        raise CodecError(f"a table has {size} symbols from {first} on, of {symbols}")
    packed = int.from_bytes(data[at + 2 : stop], "little")
    if packed >> (_LEVEL_BITS * size):
        raise CodecError("a table's padding is not zero")
    levels = [(packed >> (_LEVEL_BITS * k)) & 31 for k in range(size)]
    if size and not (levels[0] and levels[-1]):
        raise CodecError("a table's first or last level is zero")
    return [0] * first + levels + [0] * (symbols - first - size), stop
