"""The three streams into which the changes of a group are coded, before zstd.

Each changed cell has a gap g (to the previous changed cell of its run) and a distance d != 0. With s the run's shift:

    gap token        token(g >> s)
    magnitude token  token(|d| - 1), d read as a signed integer of the cell's width
    raw bits         sign (1 bit: 1 for d < 0); the s low bits of g; the gap token's extra bits; the magnitude token's

    token(v) = v                       for v < 192
             = 184 + n, n - 1 extra    for v >= 192, n = bit length of v, extra = v without its leading one bit

Tokens are bytes with skewed statistics (left to zstd's Huffman stage); raw bits are packed from the least significant
bit of the first byte on, cell after cell; the last byte is filled up with zeros.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

DIRECT = 192
"""Values below it are their own token."""
TOKEN_BASE = 184
"""token = TOKEN_BASE + bit length, for the rest; the largest token, of a 64-bit value, is 248."""


@dataclass(frozen=True, slots=True)
class Streams:
    """Coded changes of one group: uint8 arrays; both token arrays have one byte a changed cell."""

    gap_tokens: npt.NDArray[np.uint8]
    magnitude_tokens: npt.NDArray[np.uint8]
    bits: npt.NDArray[np.uint8]
