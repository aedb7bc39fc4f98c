"""The three streams: exactly the documented bits, every boundary of the tokens, and every way to be wrong."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulse_kernels import CELL_TYPES, Backend, CellType, CodecError
from pulse_kernels.streams import Streams
from tests.kernels.inputs import MEMORY, WIDTHS, same

CELLS = {width: CELL_TYPES[f"U{8 * width}"] for width in WIDTHS}
EDGES = [0, 1, 190, 191, 192, 193, 254, 255, 256, 257, 383, 511, 512]
GAPS = sorted({*EDGES, *((1 << n) + d for n in (16, 24, 31) for d in (-1, 0, 1)), 2**32 - 2, 2**32 - 1})
Change = tuple[int, int]
"""(gap, distance as a signed integer)."""


def magnitudes(width: int) -> list[int]:
    """Return |d| - 1 around all boundaries of the tokens and of the cell's width."""
    top = 1 << (8 * width - 1)
    powers = {(1 << n) + d for n in range(8, 8 * width) for d in (-1, 0, 1)}
    return sorted(v for v in {*EDGES, *powers, top - 1, top - 2} if 0 <= v < top)


def documented(changes: list[list[Change]], shifts: list[int]) -> tuple[list[int], list[int], bytes]:
    """Code runs of changes by the text of the format, as strings of bits."""
    gap_tokens, magnitude_tokens, bits = [], [], ""

    def low_first(value: int, count: int) -> str:
        return f"{value:0{count}b}"[::-1] if count else ""

    def coded(value: int) -> tuple[int, str]:
        if value < 192:
            return value, ""
        n = value.bit_length()
        return 184 + n, low_first(value - (1 << (n - 1)), n - 1)

    for run, shift in zip(changes, shifts, strict=True):
        for gap, distance in run:
            gap_token, gap_extra = coded(gap >> shift)
            magnitude_token, magnitude_extra = coded(abs(distance) - 1)
            gap_tokens.append(gap_token)
            magnitude_tokens.append(magnitude_token)
            bits += str(int(distance < 0)) + low_first(gap & ((1 << shift) - 1), shift) + gap_extra + magnitude_extra
    bits += "0" * (-len(bits) % 8)
    return gap_tokens, magnitude_tokens, bytes(int(bits[k : k + 8][::-1], 2) for k in range(0, len(bits), 8))


def arrays(changes: list[list[Change]], shifts: list[int], width: int) -> tuple[np.ndarray, ...]:
    flat = [change for run in changes for change in run]
    top = 1 << (8 * width)
    return (
        np.array([gap for gap, _ in flat], np.uint32),
        np.array([distance % top for _, distance in flat], f"<u{width}"),
        np.array([len(run) for run in changes], np.uint32),
        np.array(shifts, np.uint8),
    )


def positions(changes: list[list[Change]]) -> list[int]:
    found = []
    for run in changes:
        at = -1
        for gap, _ in run:
            at += gap + 1
            found.append(at)
    return found


def lists(streams: Streams) -> tuple[list[int], list[int], bytes]:
    return streams.gap_tokens.tolist(), streams.magnitude_tokens.tolist(), streams.bits.tobytes()


def streams_of(gap_tokens: list[int], magnitude_tokens: list[int], bits: bytes) -> Streams:
    return Streams(np.array(gap_tokens, np.uint8), np.array(magnitude_tokens, np.uint8), np.frombuffer(bits, np.uint8))


def check(backend: Backend, changes: list[list[Change]], shifts: list[int], width: int) -> None:
    """Code the changes, compare with the text of the format, and decode them."""
    gaps, distance, counts, shift_array = arrays(changes, shifts, width)
    streams = backend.pack(gaps, distance, counts, shift_array)
    assert lists(streams) == documented(changes, shifts)
    where, steps = backend.unpack(streams, counts, shift_array, CELLS[width], 1 << 32)
    assert same(where, np.array(positions(changes), np.uint32))
    assert same(steps, distance)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("shift", [0, 1, 7, 8, 23, 24])
def test_every_boundary_of_both_tokens_comes_back(backend: Backend, width: int, shift: int):
    small = [[(gap, distance)] for gap in EDGES for distance in (1, -1)]
    sizes = [m + 1 for m in magnitudes(width)]
    top = 1 << (8 * width - 1)
    large = [[(gap, 1)] for gap in GAPS]
    signed = [[(3, d)] for size in sizes for d in (size, -size) if -top <= d < top]
    both = [[(gap, -size)] for gap in GAPS[-4:] for size in sizes[-4:]]
    changes = small + large + signed + both
    check(backend, changes, [shift] * len(changes), width)


@pytest.mark.parametrize("width", WIDTHS)
@settings(max_examples=60)
@given(data=st.data())
def test_random_runs_come_back(backend: Backend, width: int, data: st.DataObject):
    top = 1 << (8 * width - 1)
    gap = st.one_of(st.sampled_from(EDGES), st.integers(0, 1 << 24))
    distance = st.one_of(st.integers(-top, top - 1), st.integers(-3, 3)).filter(bool)
    changes = data.draw(st.lists(st.lists(st.tuples(gap, distance), min_size=1, max_size=9), min_size=1, max_size=6))
    shifts = data.draw(st.lists(st.integers(0, 24), min_size=len(changes), max_size=len(changes)))
    check(backend, changes, shifts, width)


def test_the_largest_token_is_that_of_a_64_bit_magnitude(backend: Backend):
    streams = backend.pack(*arrays([[(0, -(2**63))]], [0], 8))
    assert streams.magnitude_tokens.tolist() == [184 + 63]


@pytest.mark.parametrize("width", WIDTHS)
def test_each_backend_packs_a_long_stream_as_the_reference(fast: Backend, reference: Backend, width: int):
    rng = np.random.default_rng(width)
    gaps = rng.geometric(0.001, 3000).astype(np.uint32)
    distance = np.frombuffer(rng.bytes(3000 * width), f"<u{width}") | 1
    counts, shifts = np.array([1000, 1, 1999], np.uint32), np.array([4, 24, 0], np.uint8)
    streams, expected = fast.pack(gaps, distance, counts, shifts), reference.pack(gaps, distance, counts, shifts)
    assert lists(streams) == lists(expected)
    found = fast.unpack(streams, counts, shifts, CELLS[width], 1 << 32)
    assert all(map(same, found, reference.unpack(expected, counts, shifts, CELLS[width], 1 << 32)))
    assert same(found[1], distance)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("memory", MEMORY)
def test_memory_may_be_unaligned_and_read_only(backend: Backend, width: int, memory: str):
    form = MEMORY[memory]
    changes = [[(5, 1), (300, -2), (70_000, 3)], [(0, -1)]]
    gaps, distance, counts, shifts = map(form, arrays(changes, [2, 0], width))
    streams = backend.pack(gaps, distance, counts, shifts)
    assert lists(streams) == documented(changes, [2, 0])
    streams = Streams(form(streams.gap_tokens), form(streams.magnitude_tokens), form(streams.bits))
    where, steps = backend.unpack(streams, counts, shifts, CELLS[width], 1 << 20)
    assert where.tolist() == positions(changes)
    assert same(steps, arrays(changes, [2, 0], width)[1])


def test_no_changes_are_no_bytes(backend: Backend):
    none = np.empty(0, np.uint32)
    streams = backend.pack(none, np.empty(0, np.uint16), none, np.empty(0, np.uint8))
    assert lists(streams) == ([], [], b"")


BF16 = CELL_TYPES["BF16"]
WRONG = {
    # name: (gap tokens, magnitude tokens, raw bits, counts, shifts, cell type, limit, what numba says)
    "position at the limit": ([9], [0], "0", [1], [0], BF16, 9, "past the end"),
    "position past the limit": ([3, 6], [0, 0], "00", [2], [0], BF16, 10, "past the end"),
    "position far past 32 bits": ([184 + 32], [0], "0" + "1" * 24 + "1" * 31, [1], [24], BF16, 2**23, "past the end"),
    "distance of 2^15": ([0], [184 + 15], "0" + "1" * 14, [1], [0], BF16, 9, "does not fit"),
    "distance of -2^15 - 1": ([0], [184 + 16], "1" + "0" * 15, [1], [0], BF16, 9, "does not fit"),
    "distance of 129 in a byte": ([0], [128], "0", [1], [0], CELL_TYPES["U8"], 9, "does not fit"),
    "distance of 128 in a byte": ([0], [127], "0", [1], [0], CELL_TYPES["U8"], 9, "does not fit"),
    "distance of 2^63": ([0], [184 + 63], "0" + "1" * 62, [1], [0], CELL_TYPES["I64"], 9, "does not fit"),
    "distance over 2^63": ([0], [184 + 64], "0" + "0" * 63, [1], [0], CELL_TYPES["I64"], 9, "does not fit"),
    "gap token over 248": ([249], [0], "0" * 80, [1], [0], BF16, 2**23, "token"),
    "gap token of 33 bits": ([184 + 33], [0], "0" * 33, [1], [0], BF16, 2**23, "token|past the end"),
    "gap token 255": ([255], [0], "0" * 80, [1], [0], BF16, 2**23, "token"),
    "magnitude token over 248": ([0], [249], "0" * 80, [1], [0], CELL_TYPES["I64"], 9, "token"),
    "magnitude token 255": ([0], [255], "0" * 80, [1], [0], CELL_TYPES["I64"], 9, "token"),
    "a gap below 192 in the long form": ([192], [0], "0" + "1111110", [1], [0], BF16, 500, "token"),
    "a magnitude below 192 in the long form": ([0], [192], "0" + "1111110", [1], [0], BF16, 500, "token"),
    "no bit for the sign": ([0], [0], "", [1], [0], BF16, 9, "too early"),
    "no bits for the low part of a gap": ([0], [0], "0" * 8, [1], [8], BF16, 999, "too early"),
    "no bits for a gap": ([184 + 16], [0], "0" * 8, [1], [0], BF16, 2**23, "too early"),
    "no bits for a magnitude": ([0], [184 + 15], "0" * 8, [1], [0], BF16, 9, "too early"),
    "no bits for the rest of a wide magnitude": ([0], [184 + 60], "0" * 56, [1], [0], CELL_TYPES["I64"], 9, "early"),
    "no bits for the second change": ([1] * 9, [0] * 9, "0" * 8, [9], [0], BF16, 99, "too early"),
    "a byte left over": ([0], [0], "0" * 16, [1], [0], BF16, 9, "left over"),
    "many bytes left over": ([0], [0], "0" * 160, [1], [0], BF16, 9, "left over"),
    "padding that is not zero": ([0], [0], "01", [1], [0], BF16, 9, "left over"),
    "padding whose last bit is not zero": ([0], [0], "00000001", [1], [0], BF16, 9, "left over"),
}


@pytest.mark.parametrize("name", WRONG)
def test_streams_that_break_a_rule_are_refused(backend: Backend, name: str):
    gap_tokens, magnitude_tokens, bits, counts, shifts, cell_type, limit, reason = WRONG[name]
    raw = int(bits[::-1] or "0", 2).to_bytes((len(bits) + 7) // 8, "little")
    with pytest.raises(CodecError, match=reason if backend.name == "numba" else None):
        backend.unpack(
            streams_of(gap_tokens, magnitude_tokens, raw),
            np.array(counts, np.uint32),
            np.array(shifts, np.uint8),
            cell_type,
            limit,
        )


@pytest.mark.parametrize("width", WIDTHS)
def test_the_last_position_and_the_widest_distances_are_taken(backend: Backend, width: int):
    cell_type: CellType = CELLS[width]
    top = 1 << (8 * width - 1)
    changes = [[(4, top - 1), (4, -top)]]
    gaps, distance, counts, shifts = arrays(changes, [0], width)
    streams = backend.pack(gaps, distance, counts, shifts)
    assert backend.unpack(streams, counts, shifts, cell_type, 10)[0].tolist() == [4, 9]
    with pytest.raises(CodecError):
        backend.unpack(streams, counts, shifts, cell_type, 9)
