"""The bytes of PULSEPT1 v3, re-derived from what is known of it; nothing decodes them, so it has no times.

Changed cells by class (their old exponent): the rank of each among the tensor's cells of that class, as Rice-coded
gaps with the best parameter of each class; and the difference of the bit patterns, zig-zag, in bytes where it fits
and escaped where not. zstd level 1 over all of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import zstandard

from benchmarks.states import Cells
from pulse_kernels import CellType

LEVEL = 1
NAME = "PULSEPT1 v3 (size)"
_CLASS_HEAD = 6
"""Bytes a class: its number, its changed cells, its Rice parameter."""
_ESCAPE = 255
Integers = npt.NDArray[Any]


def coded_bytes(cell_type: CellType, old: Sequence[Cells], new: Sequence[Cells]) -> int:
    """Return the bytes of a patch between two states, a frame a tensor."""
    compressor = zstandard.ZstdCompressor(level=LEVEL)
    return sum(
        len(compressor.compress(data)) for a, b in zip(old, new, strict=True) if (data := _tensor(cell_type, a, b))
    )


def rice(gaps: Integers) -> bytes:
    """Return gaps as Rice codes with the parameter that makes them shortest, packed into bytes."""
    lengths = {k: len(gaps) * (1 + k) + int((gaps >> k).sum()) for k in range(32)}
    best = min(lengths, key=lambda k: (lengths[k], k))
    bits = np.zeros(lengths[best], np.uint8)
    quotients = (gaps >> best).astype(np.int64)
    starts = np.cumsum(quotients + 1 + best) - (quotients + 1 + best)
    unary = np.repeat(starts - (np.cumsum(quotients) - quotients), quotients) + np.arange(int(quotients.sum()))
    bits[unary] = 1
    for bit in range(best):
        bits[starts + quotients + 1 + bit] = (gaps >> bit) & 1
    return np.packbits(bits).tobytes()


def _tensor(cell_type: CellType, old: Cells, new: Cells) -> bytes:
    index = np.flatnonzero(old != new)
    if not len(index):
        return b""
    classes, signed = cell_type.class_of(old), np.dtype(f"<i{cell_type.width}")
    changed, parts = classes[index], []
    for number in np.unique(changed):
        mine = index[changed == number]
        ranks = np.searchsorted(np.flatnonzero(classes == number), mine)
        difference = (new[mine] - old[mine]).view(signed).astype(np.int64)
        parts.append(bytes(_CLASS_HEAD) + rice(np.diff(ranks, prepend=-1) - 1) + _values(difference, cell_type.width))
    return b"".join(parts)


def _values(difference: Integers, width: int) -> bytes:
    zigzag = np.where(difference < 0, -2 * difference - 1, 2 * difference)
    far = zigzag[zigzag >= _ESCAPE]
    return np.minimum(zigzag, _ESCAPE).astype(np.uint8).tobytes() + far.astype(f"<u{width}").tobytes()
