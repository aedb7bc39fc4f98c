"""float32 to BF16: as torch and ml_dtypes round, on every upper half and the lower halves that decide."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pulse_kernels import Backend, Cells, Index
from tests.unit.kernels.inputs import CHUNK, MEMORY, all_same, random_cells, same

LOW = (0x0000, 0x0001, 0x1234, 0x7FFF, 0x8000, 0x8001, 0xFFFE, 0xFFFF)
"""Lower halves on both sides of the tie, and at both ends."""
BUFFER = 1 << 16
"""Changes that the compiled diff collects at a time."""


def patterns() -> np.ndarray:
    """Return every upper half with each of the lower ones: 8 x 65,536 float32 patterns."""
    high = np.arange(1 << 16, dtype=np.uint32) << 16
    return np.concatenate([high | low for low in np.array(LOW, np.uint32)])


def cast(backend: Backend, live: np.ndarray) -> np.ndarray:
    out = np.full(len(live), 0xDEAD, np.uint16)
    backend.cast_f32(live, out)
    return out


def changes(backend: Backend, live: Cells, base: Cells) -> tuple[Index, Cells, Cells]:
    """Return (index, old, new) of float32 patterns over a base, which stays as it is."""
    return backend.advance_spans([live], [base.copy()], 0)[:3]


def is_nan(live: np.ndarray) -> np.ndarray:
    return (live & np.uint32(0x7FFFFFFF)) > 0x7F800000


def test_it_rounds_as_torch_does_on_all_upper_halves(backend: Backend):
    live = patterns()
    expected = torch.from_numpy(live.view(np.int32)).view(torch.float32).to(torch.bfloat16)
    expected_cells = expected.view(torch.int16).numpy().view(np.uint16)
    found, nan = cast(backend, live), is_nan(live)
    assert same(found[~nan], expected_cells[~nan])


def test_it_rounds_as_ml_dtypes_does_on_all_upper_halves(backend: Backend):
    live = patterns()
    nan = is_nan(live)
    expected = live[~nan].view(np.float32).astype(ml_dtypes.bfloat16).view(np.uint16)
    assert same(cast(backend, live)[~nan], expected)


def test_every_nan_stays_nan_keeps_its_sign_and_top_payload_and_becomes_quiet(backend: Backend):
    live = patterns()
    live = live[is_nan(live)]
    found = cast(backend, live)
    assert np.isnan(found.view(ml_dtypes.bfloat16).astype(np.float32)).all()
    upper = (live >> 16).astype(np.uint16)
    assert same(found & 0x8000, upper & 0x8000)
    assert (found & 0x40).all()
    assert same(found & 0x3F, upper & 0x3F)


@pytest.mark.parametrize(
    ("live", "rounded"),
    [
        (0x00000000, 0x0000),
        (0x80000000, 0x8000),  # -0.0 keeps its sign
        (0x3F808000, 0x3F80),  # a tie goes to the even neighbour below
        (0x3F818000, 0x3F82),  # and above
        (0x3F808001, 0x3F81),
        (0x3F807FFF, 0x3F80),
        (0xBF818000, 0xBF82),
        (0x7F7F7FFF, 0x7F7F),  # the largest that stays finite
        (0x7F7F8000, 0x7F80),  # and the first that overflows
        (0xFF7FFFFF, 0xFF80),
        (0x7F800000, 0x7F80),
        (0xFF800000, 0xFF80),
        (0x00000001, 0x0000),  # denormals round like the rest
        (0x00008000, 0x0000),
        (0x00008001, 0x0001),
        (0x00018000, 0x0002),
        (0x007F8000, 0x0080),  # into the normal numbers
        (0x80008001, 0x8001),
        (0x7F800001, 0x7FC0),  # a signalling NaN whose payload lies below what BF16 has
        (0xFF800001, 0xFFC0),
        (0x7FFFFFFF, 0x7FFF),  # rounding up must not run over into the sign
        (0xFFFFFFFF, 0xFFFF),
    ],
)
def test_deciding_patterns_round_as_written_here(backend: Backend, live: int, rounded: int):
    assert cast(backend, np.array([live], np.uint32)).tolist() == [rounded]


@settings(max_examples=60)
@given(live=st.lists(st.integers(0, 2**32 - 1), max_size=70))
def test_each_backend_rounds_as_the_reference(fast: Backend, reference: Backend, live: list[int]):
    cells = np.array(live, np.uint32)
    assert same(cast(fast, cells), cast(reference, cells))


@pytest.mark.parametrize("memory", MEMORY)
def test_memory_may_be_unaligned_and_read_only(backend: Backend, memory: str):
    live = random_cells(4, 1000)
    assert same(cast(backend, MEMORY[memory](live)), cast(backend, live))
    base = random_cells(2, 1000)
    assert all_same(changes(backend, MEMORY[memory](live), base), changes(backend, live, base))


@pytest.mark.parametrize("size", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 7, BUFFER, BUFFER + 1])
def test_a_diff_of_float32_is_cast_then_diff(backend: Backend, reference: Backend, size: int):
    live = random_cells(4, size)
    base = cast(reference, live)
    where = sorted({place for place in (0, 1, 63, 64, BUFFER - 1, BUFFER, size - 1) if 0 <= place < size})
    base[where] ^= 1
    index, old, new = changes(backend, live, base)
    assert index.tolist() == where
    assert all_same((index, old, new), reference.diff(cast(reference, live), base))


@pytest.mark.parametrize("tail", [0, 1, CHUNK - 1])
@pytest.mark.parametrize("first", [0, 1, 31, CHUNK - 1, CHUNK])
def test_a_diff_of_float32_returns_more_changes_than_its_buffer_holds(
    backend: Backend, reference: Backend, first: int, tail: int
):
    live = random_cells(4, BUFFER + 4 * CHUNK + tail)
    rounded = cast(reference, live)
    base = ~rounded
    base[first:CHUNK] = rounded[first:CHUNK]
    expected = np.array([*range(first), *range(CHUNK, len(live))], np.uint32)
    assert all_same(changes(backend, live, base), (expected, base[expected], rounded[expected]))


def test_a_diff_of_float32_finds_a_nan_that_plain_rounding_would_take_for_the_base(backend: Backend):
    # One NaN in each chunk, over a base that is what rounding its bits gives: an infinity, or a zero of the other sign.
    live = patterns()
    live = live[is_nan(live)][:: 3 if backend.name == "reference" else 1]
    place = np.arange(len(live)) * CHUNK + np.arange(len(live)) % CHUNK
    cells, base = np.zeros(CHUNK * len(live), np.uint32), np.zeros(CHUNK * len(live), np.uint16)
    cells[place] = live
    base[place] = ((live.astype(np.uint64) + 0x7FFF + ((live >> 16) & 1)) >> 16).astype(np.uint16)
    quiet = (live >> 16 | 0x40).astype(np.uint16)
    other = base[place] != quiet
    assert 100 < other.sum() < len(live)
    found = changes(backend, cells, base)
    assert all_same(found, (place[other].astype(np.uint32), base[place][other], quiet[other]))


def test_a_diff_of_float32_finds_nothing_where_the_base_is_the_rounded_patterns(backend: Backend):
    live = patterns()
    assert len(changes(backend, live, cast(backend, live))[0]) == 0
