"""DeadRows: which rows of a table are dead. Never changed: whoever drops rows gets another one."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

_FEW: Final = 64


@dataclass(frozen=True, slots=True)
class DeadRows:
    """A bitmap, with those beside it that went of late: as many as the square root, so that both cost about the same.

    >>> dead = DeadRows().and_({2, 5}, 8)
    >>> 5 in dead, 3 in dead, len(dead.alive(8).nonzero()[0]), dead.count
    (True, False, 6, 2)
    """

    bits: npt.NDArray[np.bool_] = field(
        default_factory=lambda: np.zeros(0, np.bool_)
    )  # rows beyond it are in ``late``, or alive
    late: frozenset[int] = frozenset()
    count: int = 0

    @classmethod
    def of(cls, bits: npt.NDArray[np.bool_]) -> DeadRows:
        """Return the rows of which ``bits`` is true."""
        return cls(bits, count=int(np.count_nonzero(bits)))

    def __contains__(self, row: int) -> bool:
        return row in self.late or (row < len(self.bits) and bool(self.bits[row]))

    def alive(self, rows: int) -> npt.NDArray[np.bool_]:
        """Return which of the first rows are not dead."""
        alive = np.ones(rows, np.bool_)
        known = min(rows, len(self.bits))
        alive[:known] = ~self.bits[:known]
        alive[[row for row in self.late if row < rows]] = False
        return alive

    def and_(self, more: Collection[int], rows: int) -> DeadRows:
        """Return these and ``more``, none of which is dead yet, of a table of ``rows`` rows."""
        late = self.late.union(more)
        if len(late) <= _FEW or len(late) ** 2 <= rows:
            return DeadRows(self.bits, late, self.count + len(more))
        return DeadRows(~DeadRows(self.bits, late).alive(rows), frozenset(), self.count + len(more))
