"""Tokens: exactly the documented ones, at every boundary, and back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulse_kernels import CELL_TYPES
from pulse_kernels.format.symbols import (
    extra_bits,
    first_value,
    most_value_symbols,
    outward,
    sign_and_magnitude,
    token,
    unite,
)
from tests.unit.kernels.inputs import WIDTHS, random_cells, same

EDGES = sorted({v for n in range(64) for v in ((1 << n) - 1, 1 << n, (1 << n) + 1, 3 << max(0, n - 2)) if v < 1 << 64})


def documented(value: int) -> int:
    """Return a token by the text of the format."""
    if value < 4:
        return value
    n = value.bit_length()
    return 2 * n - 2 + ((value >> (n - 2)) & 1)


def test_the_listed_tokens_are_these():
    listed = {0: 0, 3: 3, 4: 4, 5: 4, 6: 5, 7: 5, 8: 6, 11: 6, 12: 7, 15: 7, 16: 8, 2**24 - 1: 47, 2**63 - 1: 125}
    assert token(np.array(list(listed), np.uint64)).tolist() == list(listed.values())


def test_every_boundary_has_its_documented_token():
    assert token(np.array(EDGES, np.uint64)).tolist() == [documented(value) for value in EDGES]


@pytest.mark.parametrize("symbol", range(126))
def test_a_token_stands_for_the_values_from_its_first_to_the_next_tokens(symbol: int):
    first, after = first_value(symbol), first_value(symbol + 1)
    assert after - first == 1 << extra_bits(symbol)
    assert token(np.array([first, after - 1], np.uint64)).tolist() == [symbol, symbol]


@pytest.mark.parametrize("width", WIDTHS)
def test_sign_and_magnitude_unite_to_the_distance(width: int):
    bits = 8 * width
    distance = np.concatenate([random_cells(width, 200) | 1, np.array([1, 2**bits - 1, 1 << (bits - 1)], f"<u{width}")])
    s, m = sign_and_magnitude(distance)
    assert [unite(a, b, bits) for a, b in zip(s.tolist(), m.tolist(), strict=True)] == distance.tolist()
    assert (int(s[-1]), int(m[-1])) == (1, 2 ** (bits - 1) - 1)
    symbols = 2 * token(m).astype(np.int64) + s
    assert int(symbols.max()) < most_value_symbols(CELL_TYPES[f"U{bits}"])


@given(st.sampled_from(sorted(CELL_TYPES)), st.integers(0, 99))
def test_outward_is_its_own_inverse_and_turns_only_negative_floats(name: str, seed: int):
    cell_type = CELL_TYPES[name]
    old, distance = random_cells(cell_type.width, 50, seed), random_cells(cell_type.width, 50, seed + 1)
    turned = outward(distance, old, cell_type)
    assert same(outward(turned, old, cell_type), distance)
    negative = (old >> old.dtype.type(cell_type.bits - 1)).astype(bool) & cell_type.is_float
    assert same(turned[~negative], distance[~negative])
    assert not (turned + distance)[negative].any()
