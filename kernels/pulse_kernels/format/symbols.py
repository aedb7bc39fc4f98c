"""Values as a token and extra bits, and a distance as the value symbol that stands for it (spec, section 5.2).

Values below 4 are their own token. Above, a token says the bit length and the bit below the leading one; the bits
below that follow as they are. So two tokens share each octave, and any 64-bit value has one of 126.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pulse_kernels.cells import Cells, CellType

GAP_TOKENS = 48
"""Gaps are below 2**24, the most cells of a group."""
VALUE_SYMBOLS = 252
"""2 * token(m) + s, with m below 2**63."""
U64 = npt.NDArray[np.uint64]


def bit_length(values: U64) -> npt.NDArray[np.int64]:
    """Return the bit length of each value; 0 for 0."""
    rest, length = values.copy(), np.zeros(len(values), dtype=np.int64)
    for step in (32, 16, 8, 4, 2, 1):
        high = rest >= np.uint64(1 << step)
        length[high] += step
        rest[high] >>= np.uint64(step)
    return length + (rest > 0)


def token(values: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Return the token of each value."""
    wide = values.astype(np.uint64)
    n = np.maximum(bit_length(wide), 2)
    below = (wide >> (n - 2).astype(np.uint64)) & np.uint64(1)
    return np.where(wide < 4, wide, (2 * n - 2).astype(np.uint64) + below).astype(np.uint8)


def extra_bits(symbol: int) -> int:
    """Return how many bits follow a token."""
    return max(0, (symbol >> 1) - 1)


def first_value(symbol: int) -> int:
    """Return the least value of a token: its extra bits are added to it."""
    return symbol if symbol < 4 else (2 + (symbol & 1)) << extra_bits(symbol)


def most_value_symbols(cell_type: CellType) -> int:
    """Return one more than the greatest value symbol that cells of this width can have."""
    return 4 * cell_type.bits - 4


def outward(distance: Cells, old: Cells, cell_type: CellType) -> Cells:
    """Negate the distances of float cells whose old sign bit is set; its own inverse."""
    if not cell_type.is_float:
        return distance
    negative = (old >> old.dtype.type(cell_type.bits - 1)).astype(bool)
    zero = distance.dtype.type(0)
    return np.where(negative, zero - distance, distance)


def sign_and_magnitude(distance: Cells) -> tuple[npt.NDArray[np.uint8], U64]:
    """Return (s, m): 1 where the distance, read as signed, is negative, and its absolute value less one."""
    s = (distance >> distance.dtype.type(8 * distance.itemsize - 1)).astype(np.uint8)
    zero, one = distance.dtype.type(0), distance.dtype.type(1)
    return s, (np.where(s, zero - distance, distance) - one).astype(np.uint64)


def unite(s: int, m: int, bits: int) -> int:
    """Return the distance of a sign and a magnitude, mod 2**bits."""
    return (-m - 1 if s else m + 1) % (1 << bits)
