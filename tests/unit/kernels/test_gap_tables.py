"""Geometric gap tables: near the true distribution, the same everywhere, and chosen by the nearest odds."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from pulse_kernels.format.gap_tables import ROOTS, geometric_tables, nearest_parameter, parameters_of
from pulse_kernels.format.symbols import GAP_TOKENS, first_value

FINGERPRINT = "30d343b2caf0fc0432505b2284cfeb634b64f1eb6792881c0555d0ef2e4d71f9"
"""BLAKE3 of all tables as uint16, little-endian, table after table: the one that docs/spec.md gives."""


def test_all_tables_are_those_of_the_specification():
    tables = geometric_tables()
    assert tables.shape == (128, GAP_TOKENS)
    assert blake3(tables.astype("<u2").tobytes()).hexdigest() == FINGERPRINT


def test_the_roots_are_rounded_down():
    for k, root in enumerate(ROOTS):
        assert root**4 <= 2 ** (4 * 96 + k) < (root + 1) ** 4


@pytest.mark.parametrize("parameter", [0, 1, 31, 32, 50, 77, 100, 127])
def test_a_table_follows_the_geometric_distribution(parameter: int):
    odds = 2 ** ((32 - parameter) / 4)
    q = 1 / (1 + odds)
    found = geometric_tables()[parameter]
    assert int(found.sum()) == 4096
    for token, f in enumerate(found.tolist()):
        a, b = first_value(token), first_value(token + 1)
        mass = math.exp(a * math.log(q)) - math.exp(b * math.log(q))
        assert f == pytest.approx(1 + mass * (4096 - GAP_TOKENS) / (1 - math.exp(2**24 * math.log(q))), abs=49)
    assert int(found.min()) >= 1


def test_more_changes_have_lower_parameters():
    populations = np.full(24, 2**23)
    counts = 2 ** np.arange(24)
    found = parameters_of(counts, populations).tolist()
    assert found == sorted(found, reverse=True)
    assert parameters_of(np.array([0, 5, 5]), np.array([9, 5, 10])).tolist() == [0, 19, 32]


@given(st.integers(1, 2**24), st.integers(1, 2**25))
def test_the_nearest_parameter_is_nearest(changed: int, unchanged: int):
    j = nearest_parameter(changed, unchanged)
    eighth = Fraction(changed, unchanged) ** 8
    assert j == 127 or eighth > Fraction(2) ** (63 - 2 * j)
    assert j == 0 or eighth < Fraction(2) ** (65 - 2 * j)


@given(st.lists(st.tuples(st.integers(0, 2**24), st.integers(0, 2**24)), min_size=1, max_size=32))
def test_parameters_of_many_classes_are_those_of_each(classes: list[tuple[int, int]]):
    counts = np.array([changed for changed, _ in classes], np.uint32)
    populations = counts + np.array([rest for _, rest in classes], np.uint32)
    expected = [nearest_parameter(2 * c, max(2 * rest, 1)) if c else 0 for c, rest in classes]
    assert parameters_of(counts, populations).tolist() == expected
