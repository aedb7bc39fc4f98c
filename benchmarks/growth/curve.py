"""A cost as a curve over a size that grows, and the one figure of it that is held against a limit."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from benchmarks.results import Row

Measure = Literal["last", "spread", "exponent"]
_UNITS = {"last": "", "spread": "x", "exponent": ""}


@dataclass(frozen=True, slots=True)
class Curve:
    """A cost at several sizes.

    Attributes:
        key: of the row, unique: ``http.chain``.
        what: the cost, in words: "GET chain, the first page".
        x: what grows: "versions", "tensors", "links", "runs", "workers".
        unit: of the cost: "ms" of processor time, "kB", "calls", "x" of a baseline.
        points: (size, cost), sizes rising.
        measure: which figure counts: the cost at the largest size, the largest cost over the smallest, or the
            exponent over the last decade of sizes.
        limit: what that figure may be at most; None: it is only told.
    """

    key: str
    what: str
    x: str
    unit: str
    points: tuple[tuple[int, float], ...]
    measure: Measure = "last"
    limit: float | None = None

    @property
    def last(self) -> float:
        """The cost at the largest size."""
        return self.points[-1][1]

    @property
    def spread(self) -> float:
        """The largest cost over the smallest: at most 1.5 for what is flat."""
        costs = [cost for _, cost in self.points]
        return max(costs) / min(costs) if min(costs) > 0 else math.inf

    @property
    def exponent(self) -> float:
        """The slope over the last decade of sizes, both in logarithms: 0 for flat, 1 for linear, 2 for a square.

        Between the largest size and the largest that is at most a tenth of it, or the smallest of all. It is 0 where
        a cost is 0, or there is one size.
        """
        size, cost = self.points[-1]
        earlier = [point for point in self.points[:-1] if 10 * point[0] <= size] or list(self.points[:1])
        before, less = earlier[-1]
        if before == size or not cost or not less:
            return 0.0
        return math.log(cost / less) / math.log(size / before)

    def row(self) -> Row:
        """Return the figure that counts, with its limit."""
        value = {"last": self.last, "spread": self.spread, "exponent": self.exponent}[self.measure]
        size = f"{self.points[-1][0]:,}"
        what = {
            "last": f"{self.what}, {size} {self.x}",
            "spread": f"{self.what}, to {size} {self.x}: largest / smallest",
            "exponent": f"{self.what}, to {size} {self.x}: exponent",
        }[self.measure]
        unit = self.unit if self.measure == "last" else _UNITS[self.measure]
        return Row(self.key, what, value, unit, None if self.limit is None else "at most", self.limit)

    def document(self) -> dict[str, Any]:
        """Return the curve as JSON."""
        points = [[size, round(cost, 6)] for size, cost in self.points]
        return {
            "key": self.key,
            "what": self.what,
            "x": self.x,
            "unit": self.unit,
            "points": points,
            "exponent": round(self.exponent, 3),
        }


def curve_of(
    key: str,
    what: str,
    x: str,
    unit: str,
    costs: Iterable[tuple[int, float]],
    measure: Measure = "last",
    limit: float | None = None,
) -> Curve:
    """Return the curve of costs that are measured as they are asked for, from the smallest size on."""
    return Curve(key, what, x, unit, tuple(costs), measure, limit)


def processor_ms(work: Callable[[], Any], repeats: int = 5) -> float:
    """Return the least processor time of a call, in milliseconds, of all threads of this process."""
    least = math.inf
    for _ in range(repeats):
        began = time.process_time()
        work()
        least = min(least, time.process_time() - began)
    return 1e3 * least
