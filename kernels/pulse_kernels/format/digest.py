"""Constants of the state digest: h(i, v) is multilinear in the 16-bit limbs of the cells.

For a cell at flat index i with bit pattern v, limb l the l-th 16 bits of v from the least significant, and lane 0 or 1:

    h(i, v) = sum over l of  multiplier(lane, 4 * (i >> 10) + l) * coefficient(lane, i & 1023) * limb_l(v)   mod 2**64

A digest is the sum of h over all cells, a lane. It is a multilinear hash (Carter and Wegman, 1979; Lemire and Kaser,
"Strongly universal string hashing is fast", 2014) with fixed pseudo-random coefficients: proof against accident, not
against an adversary. Within a block of 1,024 cells the products of 32-bit coefficients and 16-bit limbs add up to less
than 2**58, so that a block costs one widening multiply-add a limb and one 64-bit multiplication at its end.
"""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt

BLOCK = 1024
GOLDEN = 0x9E3779B97F4A7C15
LANE_SEEDS = (0x243F6A8885A308D3, 0x13198A2E03707344)
"""The first 128 bits of the fraction of pi."""
MASK64 = 2**64 - 1


def mix64(x: int) -> int:
    """SplitMix64's output function (Steele, Lea, Flood, 2014) of ``x`` mod 2**64."""
    x &= MASK64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK64
    return x ^ (x >> 31)


def multiplier(lane: int, k: int) -> int:
    """Return the odd 64-bit multiplier of block-limb number ``k``."""
    return mix64(LANE_SEEDS[lane] + (k + 1) * GOLDEN) | 1


@functools.cache
def coefficients(lane: int) -> npt.NDArray[np.uint32]:
    """Return the 1,024 odd 32-bit coefficients of a lane, read-only."""
    values = [(mix64(~LANE_SEEDS[lane] + (j + 1) * GOLDEN) >> 32) | 1 for j in range(BLOCK)]
    table = np.array(values, dtype=np.uint32)
    table.flags.writeable = False
    return table
