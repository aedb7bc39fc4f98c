"""Plain COO: a flat int32 index and the new value for each changed cell, as vLLM and verl send sparse updates."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks.peers.peer import ByTensor
from benchmarks.states import Cells


class Raw(ByTensor):
    """No coding at all: what a diff costs by itself, and a store into the cells."""

    name = "int32 + BF16"

    def encode(self, old: Sequence[Cells], new: Sequence[Cells]) -> list[bytes]:
        """Return indices and values, one string of bytes a tensor."""

        def one(number: int) -> bytes:
            index = np.flatnonzero(old[number] != new[number])
            return index.astype("<i4").tobytes() + new[number][index].tobytes()

        return self._each(one, [len(cells) for cells in old])

    def decode(self, frames: Sequence[bytes], cells: Sequence[Cells]) -> None:
        """Store the values."""

        def one(number: int) -> None:
            frame, into = frames[number], cells[number]
            changed = len(frame) // (4 + into.itemsize)
            index = np.frombuffer(frame, "<i4", changed)
            into[index] = np.frombuffer(frame, into.dtype, changed, 4 * changed)

        self._each(one, [len(cell) for cell in cells])
