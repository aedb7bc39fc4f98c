"""Times and memory of work on a device: wall clock around a synchronized call, and the allocator's high-water mark."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Spent:
    """What a call took.

    Attributes:
        seconds: of each repeat.
        nbytes: the most device memory that one took beyond what was there; 0 on a CPU.
        result: what the last one returned.
    """

    seconds: tuple[float, ...]
    nbytes: int
    result: Any = None

    @property
    def median_ms(self) -> float:
        """The median, in milliseconds."""
        return statistics.median(self.seconds) * 1e3


def measured(
    device: torch.device,
    work: Callable[[], object],
    repeats: int,
    after: Callable[[], object] | None = None,
    *,
    returned: bool = False,
) -> Spent:
    """Time a call ``repeats`` times, on a GPU after one that does not count, as it compiles; keep the last result.

    Args:
        device: that it works on.
        work: the call.
        repeats: how often.
        after: puts things back after each call; not timed.
        returned: the time ends when the call returns, whatever the device goes on with.
    """
    found, nbytes, result = [], 0, None
    for repeat in range(-1 if device.type == "cuda" else 0, repeats):
        result = None
        before = _begin(device)
        began = time.perf_counter()
        result = work()
        if not returned:
            _wait(device)
        taken = time.perf_counter() - began
        if repeat >= 0:
            found.append(taken)
            nbytes = max(nbytes, _peak(device) - before)
        if after is not None:
            after()
    return Spent(tuple(found), nbytes, result)


def _begin(device: torch.device) -> int:
    if device.type != "cuda":
        return 0
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    return torch.cuda.memory_allocated(device)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _peak(device: torch.device) -> int:
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0
