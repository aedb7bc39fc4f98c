"""Tables of frequencies and gap parameters on the device are the reference's."""

from __future__ import annotations

from fractions import Fraction
from math import isqrt

import numpy as np
import numpy.typing as npt
import pytest
import torch

from pulse_kernels.format.frequencies import cumulative, frequencies, levels_of, store_table
from pulse_kernels.format.gap_tables import PARAMETERS, geometric_tables, nearest_parameter, parameters_of
from pulse_kernels.gpu.coding.layout import choose_parameters
from pulse_kernels.gpu.coding.rans_tables import constants, odds_bounds, tables_from_bytes, tables_from_counts

MOST = 2**24


def histograms() -> npt.NDArray[np.int32]:
    """Return counts of symbols: none, one, two far apart, all alike, steep, and random ones."""
    rng = np.random.default_rng(3)
    counts = np.zeros((10, 256), np.int32)
    counts[1, 251] = 1
    counts[2, [0, 251]] = MOST, 1
    counts[3, :252] = 7
    counts[4, :48] = [MOST >> (k // 2) for k in range(48)]
    counts[5, 3:6] = 5
    for row in range(6, 10):
        counts[row, :252] = rng.geometric(10.0 ** -(row - 5), 252) * (rng.random(252) < 0.5)
    return counts


def packed(frequency: list[int]) -> list[int]:
    return [f | below << 16 for f, below in zip(frequency, cumulative(frequency), strict=True)]


def test_tables_from_counts_are_those_of_the_reference(device: str) -> None:
    counts = histograms()
    made = tables_from_counts(torch.from_numpy(counts).to(device))
    for row, levels, table, ends in zip(
        counts.tolist(), made.levels.tolist(), made.tables.tolist(), made.ends.tolist(), strict=True
    ):
        expected = levels_of(row)
        assert ends == list(store_table(expected)[:2])
        if any(expected):
            assert levels == expected
            assert table == packed(frequencies(expected))


def test_stored_tables_are_read_back_with_their_slots(device: str) -> None:
    levels = [levels_of(row) for row in histograms().tolist()]
    stored = [store_table(row) for row in levels]
    at = np.cumsum([0, *map(len, stored)])[:-1]
    data = torch.frombuffer(bytearray(b"".join(stored) + bytes(8)), dtype=torch.uint8).to(device)
    tables, slots = tables_from_bytes(data, torch.from_numpy(at).to(device))
    for row, table, slot in zip(levels, tables.tolist(), slots.cpu().numpy(), strict=True):
        frequency = frequencies(row)
        assert table == packed(frequency)
        assert not any(frequency) or np.array_equal(slot, np.repeat(np.arange(256), frequency))


def test_the_geometric_tables_on_the_device_are_those_of_the_reference(device: str) -> None:
    known = constants(torch.device(device))
    for table, slots, expected in zip(
        known.gap_tables.tolist(), known.gap_slots.cpu().numpy(), geometric_tables().tolist(), strict=True
    ):
        assert table[:48] == packed(expected)
        assert np.array_equal(slots, np.repeat(np.arange(48), expected))


def test_gap_parameters_are_those_of_the_reference(device: str) -> None:
    rng = np.random.default_rng(5)
    population = np.minimum(2 ** rng.integers(0, 25, (4, 32)) + rng.integers(0, 9, (4, 32)), MOST)
    changed = (population * 2.0 ** -rng.integers(0, 25, (4, 32))).astype(np.int64)
    changed[0, :3], population[0, :3] = (0, MOST, 1), (7, MOST, MOST)
    there = [torch.from_numpy(part.astype(np.int32)).to(device) for part in (changed, population)]
    found = torch.empty_like(there[0])
    choose_parameters[(4,)](*there, constants(torch.device(device)).odds, found)
    expected = parameters_of(changed.ravel(), population.ravel())
    assert found.cpu().numpy().ravel().tolist() == expected.tolist()


def convergents(bound: Fraction) -> list[tuple[int, int]]:
    """Return the fractions a / b that come nearer to a number than any with smaller terms, while a and b < 2**25."""
    found: list[tuple[int, int]] = []
    before, last, rest = (0, 1), (1, 0), bound
    while True:
        whole = rest.numerator // rest.denominator
        before, last = last, (whole * last[0] + before[0], whole * last[1] + before[1])
        if max(last) > 2 * MOST or rest == whole:
            return found
        found.append(last)
        rest = 1 / (rest - whole)


@pytest.mark.parametrize("eighth", range(8))
def test_no_odds_come_so_near_to_a_bound_that_the_device_takes_them_for_the_wrong_side(eighth: int) -> None:
    bounds = odds_bounds()
    for j in range(eighth, PARAMETERS - 1, 8):
        power = 63 - 2 * j
        scaled = Fraction(2**power) * 2**1600  # its eighth root, to 2**-200 of the whole
        root = scaled.numerator // scaled.denominator
        for _ in range(3):
            root = isqrt(root)
        for changed, unchanged in convergents(Fraction(root, 2**200)):
            if changed and unchanged:
                below = changed < unchanged * float(bounds[j])
                assert below == (nearest_parameter(changed, unchanged) > j)
