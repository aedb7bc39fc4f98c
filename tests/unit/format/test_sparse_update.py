"""Deltas and changes: apply, undo, join and negate are the algebra that they are called."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulse_kernels import CELL_TYPES, Cells, get_backend
from pulse_registry.format.sparse_update import Delta, SparseUpdate, join
from pulse_registry.weights.cell_space import Group, Span
from pulse_schemas import DTYPE_ORDER, Dtype
from tests.support.groups import geometry_of, weights_of
from tests.support.meeting import resolve

BACKEND = get_backend("numba")
SIZE = 40
states_of = st.lists(st.lists(st.integers(0, 255), min_size=SIZE, max_size=SIZE), min_size=2, max_size=7)


def group_of(dtype: Dtype) -> Group:
    return Group(3, 10**12, SIZE, CELL_TYPES[dtype], (Span(0, 0, SIZE),))


def between(group: Group, old: Cells, new: Cells) -> SparseUpdate:
    return SparseUpdate(group, *BACKEND.diff(new, old))


@pytest.mark.parametrize("dtype", DTYPE_ORDER)
@settings(max_examples=15)
@given(states=states_of)
def test_the_deltas_of_a_chain_join_to_the_delta_of_its_ends(dtype: Dtype, states: list[list[int]]):
    group = group_of(dtype)
    cells = [np.array(state, np.uint64).astype(group.cell_type.dtype) << (group.cell_type.bits - 8) for state in states]
    steps = [between(group, a, b).delta(BACKEND) for a, b in itertools.pairwise(cells)]
    whole = between(group, cells[0], cells[-1])
    joined = join(BACKEND, steps, group)
    assert joined.index.tolist() == whole.index.tolist()
    assert joined.distance.tolist() == whole.delta(BACKEND).distance.tolist()


def test_a_delta_and_its_negative_join_to_nothing():
    group = group_of("BF16")
    delta = Delta(np.array([1, 5, 9], np.uint32), np.array([1, 0xFFFF, 0x8000], np.uint16))
    assert len(join(BACKEND, [delta, -delta], group).index) == 0
    assert (-delta).distance.tolist() == [0xFFFF, 1, 0x8000]
    assert delta.distance.tolist() == [1, 0xFFFF, 0x8000]


def test_no_deltas_join_to_the_empty_one_of_the_groups_cells():
    joined = join(BACKEND, [], group_of("F32"))
    assert (len(joined.index), joined.index.dtype, joined.distance.dtype) == (0, np.uint32, np.uint32)


def test_apply_and_undo_are_idempotent_inverses():
    model = {"w": np.arange(SIZE, dtype=np.uint16)}
    geometry = geometry_of(model, group_bytes=2 * SIZE)
    weights, before = weights_of(geometry, model), model["w"].copy()
    after = before.copy()
    after[[0, 7, SIZE - 1]] ^= 0x8001
    change = between(geometry.groups[0], before, after)
    for _ in range(2):
        change.apply(BACKEND, weights)
        assert model["w"].tolist() == after.tolist()
    for _ in range(2):
        change.undo(BACKEND, weights)
        assert model["w"].tolist() == before.tolist()
    change.apply_to(BACKEND, before)
    assert before.tolist() == after.tolist()
    met = resolve(BACKEND, geometry.groups[0], change.delta(BACKEND), weights)
    assert (met.old.tolist(), met.new.tolist()) == (change.old.tolist(), change.new.tolist())


def test_the_sums_are_those_of_the_old_and_the_new_cells_at_their_flat_indices():
    group = group_of("BF16")
    old, new = np.arange(SIZE, dtype=np.uint16), np.arange(SIZE, dtype=np.uint16)
    new[[3, 30]] += 1
    before, after = between(group, old, new).sums(BACKEND)
    full = [BACKEND.digest(cells, group.start) for cells in (old, new)]
    assert (after.lane_0 - before.lane_0) % 2**64 == (full[1][0] - full[0][0]) % 2**64
    assert (after.lane_1 - before.lane_1) % 2**64 == (full[1][1] - full[0][1]) % 2**64
    assert (before.lane_0, before.lane_1) == BACKEND.digest_sparse(
        np.array([3, 30], np.uint32), old[[3, 30]], group.start
    )
