"""The judge of bit equality sees every cell, and a rank's slices are parts that make up the whole."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from pulse_registry.demo.fingerprint import fingerprint, fingerprints  # noqa: E402
from pulse_registry.demo.slices import slice_of  # noqa: E402

NAMES = ["model.embed.weight", "layers.0.o_proj.weight", "layers.0.down_proj.weight", "norm.weight"]
shapes = st.lists(st.integers(1, 9), min_size=1, max_size=3).map(tuple)


@given(st.sampled_from(NAMES), shapes, st.integers(1, 4))
def test_the_slices_of_all_ranks_hold_each_cell_of_a_matrix_once_and_of_a_vector_all(
    name: str, shape: tuple[int, ...], ranks: int
) -> None:
    held = torch.zeros(shape, dtype=torch.int64)
    for rank in range(ranks):
        held[slice_of(name, shape, rank, ranks)] += 1
    assert held.unique().tolist() == [ranks if len(shape) == 1 else 1]


@given(st.sampled_from(NAMES), st.integers(0, 47), st.integers(0, 15), st.booleans())
def test_one_flipped_bit_changes_the_whole_and_the_slices_of_the_ranks_that_hold_it(
    name: str, cell: int, bit: int, tied: bool
) -> None:
    shape = (48,) if name.startswith("norm") else (6, 8)
    tensors = {name: torch.zeros(shape, dtype=torch.bfloat16), "other.weight": torch.ones(4, 4, dtype=torch.bfloat16)}
    if tied:
        tensors["again.weight"] = tensors["other.weight"]
    before = fingerprints(tensors, 2)
    tensors[name].view(torch.int16).view(-1)[cell] ^= 1 << bit if bit < 15 else -(1 << 15)
    after = fingerprints(tensors, 2)
    assert before[0] != after[0] == fingerprint(tensors)
    own = torch.zeros(shape)
    own.view(-1)[cell] = 1
    for rank in range(2):
        holds = bool(own[slice_of(name, shape, rank, 2)].any())
        assert (before[1 + rank] != after[1 + rank]) is holds


def test_float32_counts_as_what_it_is_rounded_to() -> None:
    rounded = torch.randn(5, 7).to(torch.bfloat16)
    assert fingerprint({"w": rounded.float()}) == fingerprint({"w": rounded})
