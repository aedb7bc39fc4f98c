"""The coding of float32 weights beside their BF16 cells, and of momentum: exact, canonical, and bounded."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulse_kernels import CodecError, RankError, get_backend
from pulse_kernels.format.exponents import encode_cells
from pulse_kernels.format.outer_state import decode_state, encode_state, most_state_bytes
from pulse_kernels.select import exponent_loops

BACKENDS = ["reference", "numba"]


def rounded(theta: Any) -> Any:
    version = np.empty(len(theta), np.uint16)
    get_backend("reference").cast_f32(theta, version)
    return version


def plain(theta: list[int], momentum: list[int]) -> bytes:
    """Code cell by cell, as the format is written down."""
    tails = [cell for cell in range(len(theta)) if theta[cell] & 0xFFFF]
    moved = [cell for cell in range(len(theta)) if momentum[cell]]
    ups = [cell for cell in tails if theta[cell] & 0xFFFF == 0x8000 and (theta[cell] >> 16) & 1]
    data = struct.pack("<III", len(tails), len(moved), len(ups))
    data += b"".join(struct.pack("<I", cell) for cell in ups)
    data += b"".join(struct.pack("<H", theta[cell] & 0xFFFF) for cell in tails)
    data += b"".join(struct.pack("<H", momentum[cell] & 0xFFFF) for cell in moved)
    if moved:
        loops, high = exponent_loops("reference"), np.array([momentum[cell] >> 16 for cell in moved], np.uint16)
        data += bytes(encode_cells(loops, high, loops.fit(high)))
    for cells in (tails, moved):
        bits = [0] * -(-len(theta) // 8)
        for cell in cells:
            bits[cell // 8] |= 1 << (cell % 8)
        if 0 < len(cells) < len(theta):
            data += bytes(bits)
    return data


def decoded(backend: str, version: Any, data: bytes) -> tuple[Any, Any, int]:
    theta, momentum = np.full(len(version), 7, np.uint32), np.full(len(version), 7, np.uint32)
    touched = decode_state(get_backend(backend), exponent_loops(backend), version, data, theta, momentum)  # type: ignore[arg-type]
    return theta, momentum, touched


def finite(pattern: int) -> int:
    return pattern if pattern & 0x7F800000 != 0x7F800000 else pattern & 0x807FFFFF


EDGES = [0, 0x80000000, 1, 0x80000001, 0x007FFFFF, 0x00008000, 0x00018000, 0x80008000, 0x80018000, 0x3F808000,
         0x3F818000, 0x3F7FFFFF, 0x3F807FFF, 0x3F808001, 0x7F7F8000, 0x7F7FFFFF, 0xFF7F8000, 0xFF7F7FFF]  # fmt: skip
PATTERN = st.one_of(
    st.sampled_from(EDGES),
    st.integers(0, 2**32 - 1).map(finite),
    st.integers(0, 2**16 - 1).map(lambda upper: finite(upper << 16)),
    st.integers(0, 2**16 - 1).map(lambda upper: finite(upper << 16 | 0x8000)),
)


@pytest.mark.parametrize("backend", BACKENDS)
@given(state=st.lists(st.tuples(PATTERN, st.one_of(st.just(0), PATTERN)), min_size=1, max_size=70))
def test_any_finite_bits_come_back_and_the_bytes_are_those_of_the_plain_coder(
    backend: str, state: list[tuple[int, int]]
) -> None:
    theta, momentum = (np.array(column, np.uint32) for column in zip(*state, strict=True))
    version = rounded(theta)
    data, touched = encode_state(exponent_loops(backend), version, theta, momentum)
    assert data == plain(theta.tolist(), momentum.tolist())
    assert len(data) <= most_state_bytes(len(theta))
    again, moved, count = decoded(backend, version, data)
    np.testing.assert_array_equal(again, theta)
    np.testing.assert_array_equal(moved, momentum)
    assert count == touched == sum(bool(a & 0xFFFF or b) for a, b in state)


def test_all_ties_round_to_even_and_are_told_apart() -> None:
    upper = np.arange(0, 0x7F7F, dtype=np.uint32)
    theta = np.concatenate([upper << 16 | 0x8000, upper << 16 | 0x80008000])
    version = rounded(theta)
    assert not (version & 1).any()
    data, _ = encode_state(exponent_loops("numba"), version, theta, np.zeros_like(theta))
    np.testing.assert_array_equal(decoded("numba", version, data)[0], theta)


@pytest.mark.parametrize("pattern", [0x7F800000, 0xFF800000, 0x7FC00000, 0x7F800001])
@pytest.mark.parametrize("which", [0, 1])
def test_what_is_not_finite_is_refused(pattern: int, which: int) -> None:
    state = [np.zeros(5, np.uint32), np.zeros(5, np.uint32)]
    state[which][2] = pattern
    with pytest.raises(ValueError, match="NaN or infinite"):
        encode_state(exponent_loops("reference"), np.zeros(5, np.uint16), *state)
    if which:
        with pytest.raises(CodecError, match="NaN or infinite"):
            decoded("reference", np.zeros(5, np.uint16), plain(*(column.tolist() for column in state)))


def test_other_weights_than_it_was_coded_by_are_told() -> None:
    theta = np.array([0x3F801234, 0x3F80FFFF, 0x3F800000], np.uint32)
    data, _ = encode_state(exponent_loops("reference"), rounded(theta), theta, theta)
    other = rounded(theta)
    other[1] = 0
    with pytest.raises(CodecError):
        decoded("reference", other, data)
    tie = np.array([0x3F808000], np.uint32)  # down, to even: with an odd cell it would have been rounded up
    data, _ = encode_state(exponent_loops("reference"), rounded(tie), tie, tie)
    with pytest.raises(RankError, match="do not round"):
        decoded("reference", rounded(tie) + np.uint16(1), data)


def test_untouched_cells_take_nothing() -> None:
    theta = np.arange(4096, dtype=np.uint32) << 16
    data, touched = encode_state(exponent_loops("reference"), rounded(theta), theta, np.zeros_like(theta))
    assert (data, touched) == (bytes(12), 0)


@pytest.mark.parametrize("backend", BACKENDS)
@given(data=st.data())
def test_damaged_bytes_are_refused_or_are_other_numbers_and_never_take_more_memory(backend: str, data: Any) -> None:
    rng = np.random.default_rng(3)
    theta = np.where(rng.random(300) < 0.5, rng.standard_normal(300), 0).astype(np.float32).view(np.uint32)
    version = rounded(theta)
    good, _ = encode_state(exponent_loops(backend), version, theta, theta)
    bad = bytearray(good)
    match data.draw(st.sampled_from(["flip", "cut", "add", "head"])):
        case "flip":
            bad[data.draw(st.integers(0, len(bad) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        case "cut":
            del bad[data.draw(st.integers(0, len(bad) - 1)) :]
        case "add":
            bad += bytes(data.draw(st.integers(1, 9)))
        case "head":
            place = 4 * data.draw(st.integers(0, 2))
            bad[place : place + 4] = struct.pack("<I", data.draw(st.sampled_from([0, 301, 2**31, 2**32 - 1])))
    try:
        again, moved, _ = decoded(backend, version, bytes(bad))
    except CodecError:
        return
    np.testing.assert_array_equal(rounded(again), version)
    assert np.isfinite(again.view(np.float32)).all()
    assert np.isfinite(moved.view(np.float32)).all()
