"""Times: repeats, medians, and ratios that are taken within a repeat, so that a busy machine slows both sides."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any


def seconds(work: Callable[[], Any]) -> float:
    """Return how long a call takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def interleaved(works: dict[str, Callable[[], Any]], repeats: int) -> dict[str, list[float]]:
    """Time each piece of work ``repeats`` times, in turn, after one round that does not count."""
    found: dict[str, list[float]] = {name: [] for name in works}
    for round_ in range(repeats + 1):
        for name, work in works.items():
            taken = seconds(work)
            if round_:
                found[name].append(taken)
    return found


def ratio(over: Sequence[float], under: Sequence[float]) -> float:
    """Return the median of the ratios of each repeat."""
    return statistics.median(a / b for a, b in zip(over, under, strict=True))


def milliseconds(times: Iterable[float]) -> dict[str, float]:
    """Summarize times for the report."""
    listed = list(times)
    return {
        "median_ms": round(statistics.median(listed) * 1e3, 3),
        "min_ms": round(min(listed) * 1e3, 3),
        "repeats": len(listed),
    }
