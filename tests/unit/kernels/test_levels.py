"""Levels of a group: what is coded comes back, in the same bytes from each backend, and in few of them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulse_kernels import Cells, CodecError, get_backend
from pulse_kernels.errors import RankError
from pulse_kernels.format.levels import decode_levels, encode_levels

BACKENDS = [get_backend("reference"), get_backend("numba")]
Index = npt.NDArray[np.uint32]
Levels = npt.NDArray[np.int16]


def weights(cells: int, seed: int = 1) -> Cells:
    drawn = np.random.default_rng(seed).normal(0, 0.02, cells).astype(np.float32)
    return (drawn.view(np.uint32) >> 16).astype(np.uint16)


def drawn_levels(cells: int, share: float, seed: int = 2) -> tuple[Index, Levels]:
    rng = np.random.default_rng(seed)
    index = np.flatnonzero(rng.random(cells) < share).astype(np.uint32)
    levels = np.rint(rng.normal(0, 1.5, len(index))).astype(np.int16)
    levels[levels == 0] = 1
    return index, levels


def cut(held: Cells, parts: int) -> list[Cells]:
    return [np.ascontiguousarray(one) for one in np.array_split(held, parts)]


@pytest.mark.parametrize(("cells", "share"), [(50_000, 0.03), (50_000, 0.4), (7, 1.0)])
def test_each_backend_codes_and_decodes_the_same(cells: int, share: float) -> None:
    held, (index, levels) = weights(cells), drawn_levels(cells, share)
    coded = {encode_levels(backend, cut(held, 3), index, held[index], levels) for backend in BACKENDS}
    assert len(coded) == 1
    for backend in BACKENDS:
        found, old, values = decode_levels(backend, cut(held, 2), len(index), next(iter(coded)))
        assert old.tolist() == held[index].tolist()
        assert (found.tolist(), values.dtype, values.tolist()) == (index.tolist(), np.int16, levels.tolist())


@given(
    held=st.lists(st.integers(0, 2**16 - 1), min_size=1, max_size=60),
    levels=st.dictionaries(st.integers(0, 59), st.integers(-(2**15), 2**15 - 1).filter(bool), min_size=1),
)
def test_any_levels_at_any_weights_come_back(held: list[int], levels: dict[int, int]) -> None:
    cells = np.array(held, np.uint16)
    kept = dict(sorted((place % len(held), level) for place, level in levels.items()))
    index, values = np.array(list(kept), np.uint32), np.array(list(kept.values()), np.int16)
    for backend in BACKENDS:
        data = encode_levels(backend, [cells], index, cells[index], values)
        found = decode_levels(backend, [cells], len(index), data)
        assert [one.tolist() for one in found] == [one.tolist() for one in (index, cells[index], values)]


def test_levels_of_3_percent_of_the_cells_take_about_their_entropy() -> None:
    """Positions drawn alike in each class, so that nothing but their density is to be known of them."""
    cells, share = 2_000_000, 0.03
    held, (index, levels) = weights(cells), drawn_levels(cells, share)
    bits = 8 * len(encode_levels(BACKENDS[1], [held], index, held[index], levels)) / len(index)
    counts = np.unique(levels, return_counts=True)[1] / len(levels)
    entropy = -(share * np.log2(share) + (1 - share) * np.log2(1 - share)) / share - (counts * np.log2(counts)).sum()
    assert entropy < bits < 1.06 * entropy


@pytest.mark.parametrize("backend", BACKENDS, ids=["reference", "numba"])
def test_what_is_damaged_or_of_other_weights_is_refused(backend: object) -> None:
    held, (index, levels) = weights(5000), drawn_levels(5000, 0.2)  # several classes
    data = encode_levels(BACKENDS[0], [held], index, held[index], levels)
    one = BACKENDS[0] if backend is BACKENDS[0] else BACKENDS[1]
    for count in (0, len(held) + 1, len(index) - 1):
        with pytest.raises(CodecError):
            decode_levels(one, [held], count, data)
    with pytest.raises(CodecError):
        decode_levels(one, [held], len(index), data[:-3])
    others = np.full_like(held, held[0])
    others[-1] = held[1]
    with pytest.raises((RankError, CodecError)):
        decode_levels(one, [others], len(index), data)
