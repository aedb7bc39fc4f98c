"""The coding of BF16 exponents: nothing is lost, both loops give the same bytes, and no others are taken."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulse_kernels import Cells, CodecError
from pulse_kernels.format.exponents import (
    HEAD,
    TILE_CELLS,
    coded_size,
    decode_cells,
    encode_cells,
    max_coded_size,
)
from pulse_kernels.select import exponent_loops

PLAIN, FAST = exponent_loops("reference"), exponent_loops("numba")


def weights(count: int, seed: int = 1) -> Cells:
    drawn = np.random.default_rng(seed).normal(0, 0.02, count).astype(np.float32)
    return (drawn.view(np.uint32) >> 16).astype(np.uint16)


def anything(count: int) -> Cells:
    return np.random.default_rng(2).integers(0, 2**16, count, dtype=np.uint16)


def hidden(count: int) -> Cells:
    """Return cells of which those that a sample sees are unlike the rest."""
    cells = np.full(count, 0x7FC1, np.uint16)
    cells[:: max(1, min(count, TILE_CELLS) // 2048)] = 0x0001
    return cells


CELLS: dict[str, Callable[[int], Cells]] = {
    "weights": weights,
    "anything": anything,
    "one value": lambda count: np.full(count, 0x3F80, np.uint16),
    "zeros of both signs": lambda count: (np.arange(count, dtype=np.uint16) % 2) << 15,
    "NaNs": lambda count: np.arange(count, dtype=np.uint16) | 0x7F80,
    "hidden from the sample": hidden,
}
by_kind = pytest.mark.parametrize("kind", CELLS)


def coded(cells: Cells) -> bytes:
    """Return the coded cells, the same from both."""
    heads = FAST.fit(cells)
    assert (heads == PLAIN.fit(cells)).all()
    data = encode_cells(FAST, cells, heads)
    assert data == encode_cells(PLAIN, cells, heads)
    assert len(data) == coded_size(heads, len(cells)) <= max_coded_size(len(cells))
    return bytes(data)


def decoded(data: bytes, count: int) -> Cells:
    """Return the cells, the same from both."""
    found = []
    for loops in (PLAIN, FAST):
        out = np.full(count, 0x5555, np.uint16)
        decode_cells(loops, data, out)
        found.append(out)
    assert (found[0] == found[1]).all()
    return found[0]


def refused(data: bytes, count: int, why: str = ".") -> None:
    for loops in (PLAIN, FAST):
        with pytest.raises(CodecError, match=why):
            decode_cells(loops, data, np.empty(count, np.uint16))


# -- what comes back ---------------------------------------------------------------------------------------------------


@by_kind
@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 63, 1000, TILE_CELLS - 1, TILE_CELLS, TILE_CELLS + 1, 150_001])
def test_cells_come_back_bit_for_bit_and_both_loops_agree(kind: str, count: int):
    cells = CELLS[kind](count)
    assert (decoded(coded(cells), count) == cells).all()


@given(st.lists(st.integers(0, 2**16 - 1), max_size=200), st.integers(1, 40))
def test_any_cells_come_back(values: list[int], times: int):
    cells = np.array(values * times, np.uint16)
    assert (decoded(coded(cells), len(cells)) == cells).all()


def test_every_pattern_comes_back():
    cells = np.random.default_rng(3).permutation(np.arange(2**16, dtype=np.uint16))
    assert (decoded(coded(cells), len(cells)) == cells).all()


def test_cells_at_an_odd_address_are_coded_and_decoded_alike():
    cells = weights(70_000)
    shifted = np.frombuffer(b"\0" + cells.tobytes(), np.uint16, len(cells), 1)
    data = coded(shifted)
    assert data == coded(cells)
    out = np.frombuffer(bytearray(1 + 2 * len(cells)), np.uint16, len(cells), 1)
    decode_cells(FAST, memoryview(b"\0" + data)[1:], out)
    assert (out == cells).all()


def test_weights_take_under_three_quarters_and_nothing_takes_much_more_than_it_did():
    assert len(coded(weights(300_000))) < 0.72 * 600_000
    assert len(coded(anything(300_000))) < 1.001 * 600_000


def test_cells_that_changed_after_they_were_fitted_are_not_coded():
    cells = weights(1000)
    heads = FAST.fit(cells)
    cells[10] = 0x7FC0
    for loops in (PLAIN, FAST):
        with pytest.raises(ValueError, match="changed"):
            encode_cells(loops, cells, heads)
    assert (decoded(coded(cells), 1000) == cells).all()


# -- what is refused ---------------------------------------------------------------------------------------------------


def with_head(data: bytes, field: str, value: int) -> bytes:
    heads = np.frombuffer(data, HEAD, 1).copy()
    heads[field] = value
    return heads.tobytes() + data[HEAD.itemsize :]


def test_bytes_of_any_other_length_are_refused():
    data = coded(weights(1000))
    for size in (0, 7, 8, 100, len(data) - 1):
        refused(data[:size], 1000)
    refused(data + b"\0", 1000, "where the heads say")
    refused(data, 999)
    refused(data, TILE_CELLS * 1000, "too few")
    refused(b"\0", 0)


@pytest.mark.parametrize(("field", "value"), [("planes", 8), ("planes", 255), ("zero", 1), ("escapes", 1001)])
def test_a_head_that_breaks_the_format_is_refused(field: str, value: int):
    refused(with_head(coded(weights(1000)), field, value), 1000, "head breaks")


@pytest.mark.parametrize("change", [-1, 1])
def test_another_number_of_escapes_than_the_codes_have_is_refused(change: int):
    cells = weights(1000)
    data, escapes = coded(cells), int(FAST.fit(cells)["escapes"][0])
    assert escapes > 5
    longer = with_head(data, "escapes", escapes + change) + b"\x7f"
    refused(longer[: len(data) + change], 1000, "do not fit the escapes")


@pytest.mark.parametrize("count", [1, 17, 999])
def test_codes_of_places_without_a_cell_are_refused(count: int):
    cells = weights(count)
    data, planes = bytearray(coded(cells)), int(FAST.fit(cells)["planes"][0])
    lanes = -(-count // 16)
    last = HEAD.itemsize + 2 * (planes * lanes - 1)  # the last lane of the last plane
    data[last + 1] |= 0x80  # its last row
    refused(bytes(data), count, "go on after the last cell")


def test_no_bytes_are_taken_that_are_not_the_right_ones_for_their_cells():
    cells = weights(300)
    data = coded(cells)
    for place in range(len(data)):
        for bit in (0, 5, 7):
            damaged = bytearray(data)
            damaged[place] ^= 1 << bit
            out = np.empty(300, np.uint16)
            try:
                decode_cells(FAST, damaged, out)
            except CodecError:
                continue
            assert (out != cells).any()
