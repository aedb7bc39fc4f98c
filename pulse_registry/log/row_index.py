"""RowIndex: the rows of a growing table by the numbers of one column, found by bisection."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]
MOST_LATE: Final = 1024
"""Rows that are gone through one by one, until they are put in order with those before."""


class RowIndex:
    """The rows of a column in the order of their numbers; of equal ones, in their own.

    Shared by all copies of a table. Threads may ask it at once: each puts a whole order in the place of the one before,
    and all of them are right.
    """

    def __init__(self, column: Callable[[], Numbers]) -> None:
        """Begin with no rows in order; ``column`` returns all there are by now."""
        self._column = column
        self._order = np.empty(0, np.int32)

    def between(self, first: int, last: int) -> list[int]:
        """Return the rows with numbers from ``first`` to ``last``, both included, rising."""
        order = self._order  # before the column, which then has all of its rows
        column = self._column()
        if len(column) - len(order) > MOST_LATE:
            order = self._order = _with_late(order, column)
        number_of = column.data.__getitem__
        low = bisect_left(order, first, key=number_of)
        found: list[int] = order[low : bisect_right(order, last, low, key=number_of)].tolist()
        late = column[len(order) :]
        if first == last:
            there = late == first
        else:
            there = (late >= first) & (late <= last)
            found.sort()
        found += (there.nonzero()[0] + len(order)).tolist()
        return found


def _with_late(order: npt.NDArray[np.int32], column: Numbers) -> npt.NDArray[np.int32]:
    """Put the rows that are not in order among those that are: steps by their logarithm each, and one copy."""
    late = np.argsort(column[len(order) :], kind="stable").astype(np.int32) + np.int32(len(order))
    number_of = column.data.__getitem__
    at = [bisect_right(order, number, key=number_of) for number in column[late].tolist()] if len(order) else []
    return np.insert(order, at, late) if at else late
