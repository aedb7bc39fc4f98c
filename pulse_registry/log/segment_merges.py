"""Which segments of a snapshot become one: a pure decision, so that few are read and each row is written a few times.

Segments have levels by their bytes, each eight times the one below. Those of one level are merged when they make one of
the next, so that a row rises with each time that it is written again, and there are three times to rise.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import takewhile
from typing import Final, NamedTuple

BOUNDS: Final = (128 << 10, 1 << 20, 8 << 20)
"""Bytes from which on a segment is of the next level. One of the last level stays as it is while its rows live."""
RATIO: Final = 8
"""Segments of one level that are merged however small they are."""
_FINAL: Final = len(BOUNDS)


class Part(NamedTuple):
    """Rows that are, or would be, a segment: about how many bytes, and whether they have to be written anyway."""

    nbytes: int
    fresh: bool


def merges(parts: Sequence[Part]) -> list[range]:
    """Return which parts, oldest first, become one segment each: runs of neighbours, in order, that cover all.

    A run of one part that is not fresh stays as it is stored.
    """
    runs: list[range] = []
    sizes: list[Part] = []
    for number, part in enumerate(parts):
        runs.append(range(number, number + 1))
        sizes.append(part)
        while (count := _together(sizes)) > 1:
            runs[-count:] = [range(runs[-count].start, number + 1)]
            sizes[-count:] = [Part(sum(size.nbytes for size in sizes[-count:]), fresh=True)]
    return runs


def _together(sizes: Sequence[Part]) -> int:
    """Return how many of the last parts are to be one."""
    *earlier, last = sizes
    own = _level(last)
    if own == _FINAL and not last.fresh:
        return 1
    lower = len([*takewhile(lambda size: _level(size) < own, reversed(earlier))])
    if lower:
        return lower + 1
    if own == _FINAL:
        return 1
    same = [*takewhile(lambda size: _level(size) == own, reversed(sizes))]
    enough = len(same) >= RATIO or sum(size.nbytes for size in same) >= BOUNDS[own]
    return len(same) if enough else 1


def _level(part: Part) -> int:
    return bisect_right(BOUNDS, part.nbytes)
