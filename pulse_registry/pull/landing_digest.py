"""State digest of a keyframe that is landing: each piece's cells are summed right after its check, still in the cache.

So nobody has to read the keyframe again to know its digest. Cells lie where the index puts them; that the headers which
have landed say the same is for the end.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from pulse_kernels import Backend, Cells
from pulse_registry.format.keyframe import Shard
from pulse_registry.pull.piece_cells import PieceCells
from pulse_registry.weights.cell_space import Geometry
from pulse_registry.weights.digest import Digest


class LandingDigest:
    """Sums the cells of checked pieces, in any order and from any thread, each piece once."""

    def __init__(self, geometry: Geometry, backend: Backend) -> None:
        self._geometry, self._backend = geometry, backend
        self._shards: Sequence[Shard] = ()
        self._cells = PieceCells(geometry, self._take)
        self._mutex = threading.Lock()
        self._sum, self._summed = Digest(), 0

    def expect(self, shards: Sequence[Shard]) -> None:
        """Take where the index puts the cells; before the first piece."""
        self._shards = shards
        nbytes = map(self._geometry.tensor_bytes, range(len(self._geometry.sizes)))
        self._starts = list(accumulate(nbytes, initial=0))  # of each tensor, were they all end to end

    def add(self, number: int, start: int, data: memoryview) -> None:
        """Sum the cells among the checked bytes of the shard of this number, from ``start`` on."""
        if not self._shards:
            return
        shard = self._shards[number]
        moved = len(shard.header) - self._starts[shard.first]
        first = max(shard.first, bisect_right(self._starts, start - moved) - 1)
        last = bisect_right(self._starts, start + len(data) - moved - 1, hi=shard.last)
        tensors = [(n, self._starts[n] + moved) for n in range(first, last) if self._geometry.sizes[n]]
        self._cells.over(data, start, tensors)

    def total(self, shards: Sequence[Shard]) -> Digest | None:
        """Return the state digest; None unless all cells were summed, and lie where these shards have them."""
        same = [_place(shard) for shard in shards] == [_place(shard) for shard in self._shards]
        return self._sum if same and self._summed == self._geometry.cells else None

    def _take(self, tensor: int, start: int, cells: Cells) -> None:
        digest = Digest(*self._backend.digest(cells, self._geometry.tensor_start(tensor) + start))
        with self._mutex:
            self._sum += digest
            self._summed += len(cells)


def _place(shard: Shard) -> tuple[int, int, int]:
    return shard.first, shard.last, len(shard.header)
