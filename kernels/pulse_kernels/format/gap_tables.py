"""The gap tables of ``class``: geometric distributions, of which a class names one by its parameter.

Within a class, changed cells lie about as if each cell were drawn alone with one probability p, so that the gaps are
geometric; one byte then says what a table of gap tokens would. Parameter j stands for odds p / (1 - p) of
2**((32 - j) / 4). All is exact integer arithmetic on 96-bit fractions, so that every implementation agrees.
"""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from pulse_kernels.format.frequencies import share
from pulse_kernels.format.symbols import GAP_TOKENS, first_value

PARAMETERS = 128
_ONE = 1 << 96
ROOTS = (
    0x1000000000000000000000000,
    0x1306FE0A31B7152DE8D5A4630,
    0x16A09E667F3BCC908B2FB1366,
    0x1AE89F995AD3AD5E8734D1773,
)
"""2**(k / 4) for k = 0..3, times 2**96, rounded down."""


def geometric_table(parameter: int) -> list[int]:
    """Return the frequencies of the gap tokens for parameter j.

    q = 1 / (1 + odds); P(1) = q, P(2) = P(1) * P(1), P(3) = P(2) * q, P(2 a) = P(a) * P(a), each product cut to 96
    bits: the chance of a gap of a or more. A token of the values a to b - 1 has the mass P(a) - P(b), with P(0) = 1.
    """
    octaves, root = divmod(32 - parameter, 4)
    odds = ROOTS[root] << octaves if octaves >= 0 else ROOTS[root] >> -octaves
    q = (_ONE * _ONE) // (_ONE + odds)
    chance = {0: _ONE, 1: q, 2: q * q >> 96}
    chance[3] = chance[2] * q >> 96
    edges = [first_value(token) for token in range(GAP_TOKENS + 1)]
    for edge in edges[4:]:
        chance[edge] = chance[edge // 2] ** 2 >> 96
    masses = [chance[a] - chance[b] for a, b in itertools.pairwise(edges)]
    return share(masses, [True] * GAP_TOKENS)


@functools.cache
def geometric_tables() -> npt.NDArray[np.uint16]:
    """Return all tables, uint16 [128, 48], read-only."""
    tables = np.array([geometric_table(j) for j in range(PARAMETERS)], dtype=np.uint16)
    tables.flags.writeable = False
    return tables


def parameters_of(counts: npt.NDArray[Any], populations: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Return the parameter of each class: its odds are nearest, in the logarithm, to changed / unchanged cells.

    Unchanged cells count as at least a half. 0 for a class without changed cells.
    """
    # Some twenty classes: NumPy would take twice as long.
    pairs = zip(counts.tolist(), populations.tolist(), strict=True)
    return np.array([_parameter(changed, cells) for changed, cells in pairs], np.uint8)


def _parameter(changed: int, cells: int) -> int:
    if not changed:
        return 0
    changed, unchanged = 2 * changed, max(2 * (cells - changed), 1)
    place = 32 - 4 * math.log2(changed / unchanged)
    nearest = round(place)
    if abs(abs(place - nearest) - 0.5) < 1e-6:
        return nearest_parameter(changed, unchanged)
    return min(max(nearest, 0), PARAMETERS - 1)


def nearest_parameter(changed: int, unchanged: int) -> int:
    """Return the parameter for odds of ``changed / unchanged``, by integers alone.

    j is right where odds**8 lies between 2**(63 - 2 j) and 2**(65 - 2 j); it can't lie on either, which have no
    rational eighth root.
    """
    a, b = changed**8, unchanged**8
    j = 32 + (unchanged.bit_length() - changed.bit_length()) * 4 - 5
    while a << max(0, 2 * j - 63) < b << max(0, 63 - 2 * j):
        j += 1
    return min(max(j, 0), PARAMETERS - 1)
