"""XOR + zstd-1, the format that we measure against, is done right."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.common_format import STREAMED, WHOLE, XorZstd


@pytest.mark.parametrize("piece", [4096, STREAMED, WHOLE])
def test_decoding_in_place_gives_the_new_cells_and_decoding_again_the_old_ones(piece: int) -> None:
    rng = np.random.default_rng(1)
    old = [rng.integers(0, 1 << 16, size, np.uint16) for size in (1, 3, 5_000, 70_001)]
    new = [cells.copy() for cells in old]
    for cells in new:
        cells[::97] ^= 1
    format_ = XorZstd(2, piece)
    frames = format_.encode(old, new)
    live = [cells.copy() for cells in old]
    format_.decode(frames, live)
    assert all(np.array_equal(a, b) for a, b in zip(live, new, strict=True))
    format_.decode(frames, live)
    assert all(np.array_equal(a, b) for a, b in zip(live, old, strict=True))
    format_.close()


def test_both_ways_take_about_the_same_bytes() -> None:
    rng = np.random.default_rng(2)
    old = [rng.integers(0, 1 << 16, 200_000, np.uint16)]
    new = [old[0].copy()]
    new[0][rng.choice(200_000, 2_000, replace=False)] ^= 1
    streamed, whole = XorZstd(1, 1 << 16), XorZstd(1, WHOLE)
    sizes = [sum(map(len, format_.encode(old, new))) for format_ in (streamed, whole)]
    assert abs(sizes[0] - sizes[1]) < 0.05 * sizes[1]
    streamed.close()
    whole.close()
