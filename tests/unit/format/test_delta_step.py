"""Chains of changes: joined into one that leads from end to end, each link checked at the cells that it finds."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulse_kernels import CELL_TYPES, Backend, Cells, Index, Spans, get_backend
from pulse_registry.format import delta_step
from pulse_registry.format.delta_step import DeltaStep, WrongBase, join_steps, passes_all
from pulse_registry.format.sparse_update import Delta, SparseUpdate
from pulse_registry.weights.arrays import Weights
from pulse_registry.weights.cell_space import Group, Span
from pulse_registry.weights.digest import Digest
from pulse_schemas import DTYPE_ORDER, Dtype
from tests.support.groups import geometry_of

SIZE = 40
NUMBA = get_backend("numba")
few_values = st.integers(0, 3)  # so that cells often stay as they are, and often come back
states_of = st.lists(st.lists(few_values, min_size=SIZE, max_size=SIZE), min_size=2, max_size=7)
needs_of = st.lists(st.booleans(), min_size=6, max_size=6)


@pytest.fixture(params=["reference", "numba"], scope="module")
def backend(request: pytest.FixtureRequest) -> Backend:
    return get_backend(request.param)


def group_of(dtype: Dtype) -> Group:
    return Group(2, 2**33, SIZE, CELL_TYPES[dtype], (Span(0, 0, SIZE),))


def cells_of(dtype: Dtype, states: Sequence[Sequence[int]]) -> list[Cells]:
    """Return states as cells: zeros of both signs, ones in the lowest bit, ones in both."""
    top = 1 << (CELL_TYPES[dtype].bits - 1)
    return [np.array([(v >> 1) * top + (v & 1) for v in state], CELL_TYPES[dtype].dtype) for state in states]


def weights_over(cells: Cells) -> Weights:
    return Weights(geometry_of({"w": cells}, group_bytes=cells.nbytes), [cells])


def link(group: Group, old: Cells, new: Cells, needs_base: bool = False, seen: list[Any] | None = None) -> DeltaStep:
    """Return the link between two states; ``seen`` collects the base cells that its decoding is given."""
    change = SparseUpdate(group, *NUMBA.diff(new, old))

    def decode(base: list[Cells] | None) -> Delta:
        if seen is not None:
            seen.append(None if base is None else np.concatenate(base).tolist())
        return change.delta(NUMBA)

    return DeltaStep(decode, needs_base, len(change.index), *change.sums(NUMBA))


def one_way(all_cells: bool) -> AbstractContextManager[object]:
    """Return a block in which chains are joined in a copy of all cells; or, where no step needs that, in a list."""
    return patch.object(delta_step, "passes_all", lambda cells, changed: all_cells)


@pytest.mark.parametrize("all_cells", [False, True])
@pytest.mark.parametrize("dtype", DTYPE_ORDER)
@settings(max_examples=15)
@given(states=states_of, needs=needs_of)
def test_a_chain_is_the_change_from_its_first_state_to_its_last(
    dtype: Dtype, all_cells: bool, states: list[list[int]], needs: list[bool]
):
    group, cells, seen = group_of(dtype), cells_of(dtype, states), []
    steps = list(itertools.pairwise(cells))
    links = [link(group, old, new, need, seen) for (old, new), need in zip(steps, needs, strict=False)]
    base = cells[0].copy()
    with one_way(all_cells):
        change = join_steps(NUMBA, group, weights_over(base), links)
    index, old, new = NUMBA.diff(cells[-1], cells[0])
    assert (change.index.tolist(), change.old.tolist(), change.new.tolist()) == (
        index.tolist(),
        old.tolist(),
        new.tolist(),
    )
    assert base.tolist() == cells[0].tolist()
    assert seen == [old.tolist() if need else None for (old, _), need in zip(steps, needs, strict=False)]
    assert sum((made.after - made.before for made in links), Digest()) == change.sums(NUMBA)[1] - change.sums(NUMBA)[0]


@pytest.mark.parametrize("all_cells", [False, True])
@settings(max_examples=25)
@given(states=states_of, needs=needs_of, place=st.integers(0, SIZE - 1))
def test_a_base_that_differs_at_a_cell_of_any_link_is_refused(
    backend: Backend, all_cells: bool, states: list[list[int]], needs: list[bool], place: int
):
    group, cells = group_of("BF16"), cells_of("BF16", states)
    steps = list(itertools.pairwise(cells))
    links = [link(group, old, new, need) for (old, new), need in zip(steps, needs, strict=False)]
    other = cells[0].copy()
    other[place] ^= 0x0100
    touched = any(old[place] != new[place] for old, new in steps)
    if touched:
        with pytest.raises(WrongBase), one_way(all_cells):
            join_steps(backend, group, weights_over(other), links)
    else:
        with one_way(all_cells):
            change = join_steps(backend, group, weights_over(other), links)
        assert place not in change.index.tolist()


@pytest.mark.parametrize("all_cells", [False, True])
@pytest.mark.parametrize("needs_base", [False, True])
def test_a_link_in_the_middle_from_another_state_is_refused(backend: Backend, needs_base: bool, all_cells: bool):
    # Distances would move the wrong cells as far as the right ones: the difference of the sums would not tell.
    group = group_of("BF16")
    a, b, c, d = cells_of("BF16", [[0] * SIZE, [1] * SIZE, [3] * SIZE, [1] * SIZE])
    right = [link(group, a, b), link(group, b, c, needs_base), link(group, c, d)]
    with one_way(all_cells):
        assert len(join_steps(backend, group, weights_over(a.copy()), right).index) == SIZE
    for wrong in ([right[0], right[2]], [right[1]], [right[0], right[1], right[1]], [right[2], right[0]]):
        with pytest.raises(WrongBase), one_way(all_cells):
            join_steps(backend, group, weights_over(a.copy()), wrong)


@pytest.mark.parametrize("claim", ["before", "after"])
@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("needs_base", [False, True])
@pytest.mark.parametrize("all_cells", [False, True])
def test_a_sum_that_does_not_fit_is_refused_at_every_link(
    backend: Backend, claim: str, number: int, needs_base: bool, all_cells: bool
):
    group = group_of("U8")
    states = cells_of("U8", [[0] * SIZE, [1] * SIZE, [3] * SIZE, [2] * SIZE])
    links = [link(group, old, new, needs_base) for old, new in itertools.pairwise(states)]
    sums = {"before": links[number].before, "after": links[number].after}
    sums[claim] += Digest(0, 1)
    links[number] = replace(links[number], before=sums["before"], after=sums["after"])
    with pytest.raises(WrongBase), one_way(all_cells):
        join_steps(backend, group, weights_over(states[0].copy()), links)
    links[number] = link(group, states[number], states[number + 1], needs_base)
    with one_way(all_cells):
        join_steps(backend, group, weights_over(states[0].copy()), links)


def test_a_chain_that_comes_back_is_no_change(backend: Backend):
    group = group_of("BF16")
    a, b = cells_of("BF16", [[0] * SIZE, [2, 1] * (SIZE // 2)])
    for needs_base, all_cells in itertools.product((False, True), repeat=2):
        links = [link(group, a, b, needs_base), link(group, b, a, needs_base)]
        with one_way(all_cells):
            assert len(join_steps(backend, group, weights_over(a.copy()), links).index) == 0


def test_a_step_that_looks_at_the_cells_itself_is_checked_and_not_decoded():
    group = group_of("BF16")
    a, b = cells_of("BF16", [[0] * SIZE, [2, 1] * (SIZE // 2)])
    seen = list[Spans]()

    def look(cells: Spans) -> SparseUpdate:
        seen.append(cells)
        return SparseUpdate(group, NUMBA.diff(b, a)[0], a, b)

    step = replace(link(group, a, b), decode=lambda _: pytest.fail("it is decoded"), look=look)
    weights = weights_over(a)
    assert join_steps(NUMBA, group, weights, [step]).new is b
    assert seen == [weights.where(group)]
    with pytest.raises(WrongBase):
        join_steps(NUMBA, group, weights, [replace(step, after=step.before)])


class SeenCells:
    """A group's cells that can't be copied, and count those that are read of them."""

    def __init__(self, cells: Cells, *, in_part: bool = False) -> None:
        self.read, self._weights, self._in_part = 0, weights_over(cells), in_part

    def __getattr__(self, name: str) -> Any:
        return getattr(self._weights, name)

    def holds(self, group: Group) -> bool:
        return not self._in_part

    def copy_of(self, group: Group) -> Cells:
        raise AssertionError("all cells are copied")

    def gather(self, backend: Backend, group: Group, index: Index) -> Cells:
        self.read += len(index)
        return self._weights.gather(backend, group, index)


@pytest.mark.parametrize("in_part", [False, True])
def test_few_changes_of_a_large_group_are_listed_and_many_are_not(in_part: bool):
    size = 1 << 16
    group = Group(0, 0, size, CELL_TYPES["BF16"], (Span(0, 0, size),))

    def chain(links: int, changed: int) -> list[DeltaStep]:
        rng, found, cells = np.random.default_rng(0), [], np.zeros(size, np.uint16)
        for _ in range(links):
            after = cells.copy()
            after[rng.choice(size, changed, replace=False)] += 1
            found.append(link(group, cells, after))
            cells = after
        return found

    few = SeenCells(np.zeros(size, np.uint16))
    change = join_steps(NUMBA, group, few, chain(8, size // 1000))
    assert few.read == len(change.index) <= 8 * (size // 1000)
    many = SeenCells(np.zeros(size, np.uint16), in_part=in_part)
    if in_part:  # the other cells are not here
        assert many.read == 0 < len(join_steps(NUMBA, group, many, chain(64, size // 100)).index)
    else:
        with pytest.raises(AssertionError, match="copied"):
            join_steps(NUMBA, group, many, chain(64, size // 100))


@given(cells=st.integers(0, 2**24), changed=st.lists(st.integers(0, 2**24), max_size=300), more=st.integers(0, 2**24))
def test_a_pass_over_all_cells_is_chosen_the_sooner_the_more_steps_there_are(cells: int, changed: list[int], more: int):
    if passes_all(cells, changed):
        assert passes_all(cells, [*changed, more])
        assert len(changed) > 1
    assert passes_all(cells, [cells // 64] * 256) or cells < 64
    assert not passes_all(cells, [cells // 1000] * 4)
