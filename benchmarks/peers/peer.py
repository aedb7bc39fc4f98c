"""The seam: a codec that turns two states into bytes, and bytes and the old state into the new one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

from benchmarks.states import Cells

T = TypeVar("T")


class Peer(Protocol):
    """One codec, with threads of its own that ``close`` ends."""

    name: str

    def encode(self, old: Sequence[Cells], new: Sequence[Cells]) -> Sequence[bytes]:
        """Return the frames that lead from one state to the other, one a tensor."""

    def decode(self, frames: Sequence[bytes], cells: Sequence[Cells]) -> None:
        """Turn the old state's cells into the new one's, in place."""

    def close(self) -> None:
        """Stop the threads."""


class ByTensor:
    """Work on tensors side by side in threads, the largest first."""

    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads)

    def close(self) -> None:
        """Stop the threads."""
        self._pool.shutdown()

    def _each(self, work: Callable[[int], T], sizes: Sequence[int]) -> list[T]:
        order = sorted(range(len(sizes)), key=lambda number: -sizes[number])
        futures = {number: self._pool.submit(work, number) for number in order}
        return [futures[number].result() for number in range(len(sizes))]
