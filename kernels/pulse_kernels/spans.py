"""Spans: 1-D arrays of cells that count as if they lay end to end, given as they are, or as a table of where they lie.

Of a group of 100,000 small tensors, to make the table takes a thousand times as long as to look at a few of its cells:
who comes back to the same memory keeps it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from pulse_kernels.cells import Cells

U64 = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True, eq=False)
class SpanTable:
    """Where spans lie. Holds no reference to them: whoever passes it on keeps their memory for as long.

    Attributes:
        dtype: of the cells.
        at: the address of each span.
        ends: 0, then the cells up to the end of each span.
        wide: which of them are uint32 instead of uint16: float32 patterns, which count as the BF16 that they round to.
        writable: whether all of them can be written.
    """

    dtype: np.dtype[Any]
    at: U64
    ends: U64
    wide: npt.NDArray[np.bool]
    writable: bool

    @classmethod
    def of(cls, spans: Sequence[Cells], dtype: np.dtype[Any]) -> Self:
        """Return the table of arrays of cells of a dtype; of uint16, some may be ``wide``.

        Raises:
            ValueError: an array is not 1-D and contiguous, or has other cells.
        """
        for span in spans:
            if span.ndim != 1 or not span.flags.c_contiguous or not _fits(span.dtype, dtype):
                raise ValueError(f"a span is {span.ndim}-D of {span.dtype}; a table is of contiguous runs of {dtype}")
        return cls(
            dtype,
            np.array([span.ctypes.data for span in spans], np.uint64),
            np.array([0, *accumulate(map(len, spans))], np.uint64),
            np.array([span.dtype != dtype for span in spans], np.bool),
            all(span.flags.writeable for span in spans),
        )

    def __len__(self) -> int:
        return len(self.at)

    def arrays(self) -> list[Cells]:
        """Return the spans as arrays over their memory, which is to be there for as long as they are."""
        return [
            self._array(at, end - start, np.dtype(np.uint32) if wide else self.dtype)
            for at, (start, end), wide in zip(
                self.at.tolist(), pairwise(self.ends.tolist()), self.wide.tolist(), strict=True
            )
        ]

    def _array(self, at: int, cells: int, dtype: np.dtype[Any]) -> Cells:
        if not cells:
            return np.empty(0, dtype)
        memory = memoryview((ctypes.c_uint8 * (cells * dtype.itemsize)).from_address(at))
        array: Cells = np.frombuffer(memory, dtype)
        array.flags.writeable = self.writable
        return array


Spans: TypeAlias = Sequence[Cells] | SpanTable
"""Spans, at least one, of one dtype; a table stands for them wherever they are taken."""


def arrays_of(spans: Spans) -> Sequence[Cells]:
    """Return spans as arrays."""
    return spans.arrays() if isinstance(spans, SpanTable) else spans


def dtype_of(spans: Spans) -> np.dtype[Any]:
    """Return the dtype of the cells of spans."""
    return spans.dtype if isinstance(spans, SpanTable) else spans[0].dtype


def _fits(found: np.dtype[Any], wanted: np.dtype[Any]) -> bool:
    return found == wanted or (found == np.uint32 and wanted == np.uint16)
