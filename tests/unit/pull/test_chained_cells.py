"""Long chains: followed a few patches at a time, they lead where a plain one does, in the cells' memory."""

from __future__ import annotations

import itertools
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pulse_registry
from pulse_kernels import get_backend
from pulse_registry import PushOptions, Registry
from pulse_registry.errors import BaseMismatch, CorruptObject
from pulse_registry.format.delta_step import DeltaStep, WrongBase
from pulse_registry.format.sparse_update import Delta, HostUpdate, SparseUpdate
from pulse_registry.log.leg import Leg
from pulse_registry.options import Options
from pulse_registry.process.parallel import Map
from pulse_registry.pull import chained_cells
from pulse_registry.pull.chained_cells import DENSE_SHARE, ChainedCells, windows
from pulse_registry.weights.arrays import Weights
from pulse_registry.weights.cell_space import Geometry, Group
from pulse_schemas import Layout, Tensor
from tests.support.chains import Chain, chains, difference
from tests.support.groups import small_groups
from tests.support.records import DictStore, patch
from tests.support.sampling import examples

NUMBA = get_backend("numba")
CELLS, LENGTH = 300_000, 9
"""Patches that change all of these are over a megabyte together, from the second on: each is followed by itself."""


@contextmanager
def allocated() -> Iterator[list[int]]:
    """Fill a list with the bytes that the body has allocated at its peak."""
    found: list[int] = []
    tracemalloc.start()
    try:
        yield found
        found.append(tracemalloc.get_traced_memory()[1])
    finally:
        tracemalloc.stop()


def step_of(change: SparseUpdate, *, needs_base: bool = False) -> DeltaStep:
    def decode(_: object) -> Delta:
        return change.delta(NUMBA)

    return DeltaStep(decode, needs_base, len(change.index), *change.sums(NUMBA))


def follow(chain: Chain, geometry: Geometry, base: Weights, cut: Sequence[int], needs: Sequence[bool]) -> ChainedCells:
    """Follow a chain of states, its links cut at some numbers."""
    states = [chain.weights(geometry, number) for number in range(len(chain.states))]
    links = [difference(NUMBA, old, new) for old, new in itertools.pairwise(states)]
    chained = ChainedCells(base, NUMBA)
    for first, last in itertools.pairwise([0, *sorted(cut), len(links)]):
        for group in geometry.groups:
            steps = [
                step_of(change, needs_base=needs[number])
                for number in range(first, last)
                for change in links[number]
                if change.group.number == group.number and len(change.index)
            ]
            if steps:
                chained.follow(group, steps)
    return chained


@pytest.mark.slow
@examples(60)
@given(
    chain=chains(length=6),
    cut=st.sets(st.integers(1, 4), max_size=4),
    needs=st.lists(st.booleans(), min_size=5, max_size=5),
    stretch=st.sampled_from([3, 64, chained_cells._STRETCH]),
)
def test_a_chain_leads_to_its_last_state_wherever_it_is_cut(
    chain: Chain, cut: set[int], needs: list[bool], stretch: int
) -> None:
    with small_groups(chain.group_bytes):
        geometry = Geometry(chain.layout)
    first, last = chain.weights(geometry, 0), chain.weights(geometry, -1)
    expected = [change for change in difference(NUMBA, first, last) if len(change.index)]
    base = chain.weights(geometry, 0)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(chained_cells, "_STRETCH", stretch)
        update = follow(chain, geometry, base, list(cut), needs).update(map)
    if update is None:
        assert sum(len(change.index) for change in expected) > DENSE_SHARE * geometry.cells
        end = follow(chain, geometry, base, list(cut), needs).whole(map)
        assert all(np.array_equal(one, other) for one, other in zip(end.arrays, last.arrays, strict=True))
    else:
        found = [
            (c.group.number, *(column.tolist() for column in (c.index, c.old, c.new)), c.sums(NUMBA))
            for c in update.groups
        ]
        assert found == [
            (c.group.number, *(column.tolist() for column in (c.index, c.old, c.new)), c.sums(NUMBA)) for c in expected
        ]
    assert all(np.array_equal(one, other) for one, other in zip(base.arrays, first.arrays, strict=True))


def one_group(cells: int) -> tuple[Geometry, Group]:
    geometry = Geometry(Layout(tensors=(Tensor(name="w", dtype="U16", shape=(cells,)),)))
    return geometry, geometry.groups[0]


def test_a_step_that_does_not_fit_is_refused_in_a_list_and_in_a_copy() -> None:
    geometry, group = one_group(1000)
    for changed in (1, 900):
        index = np.arange(changed, dtype=np.uint32)
        zeros, ones = np.zeros(changed, np.uint16), np.ones(changed, np.uint16)
        chained = ChainedCells(Weights(geometry, [np.zeros(1000, np.uint16)]), NUMBA)
        chained.follow(group, [step_of(SparseUpdate(group, index, zeros, ones))])
        with pytest.raises(WrongBase):
            chained.follow(group, [step_of(SparseUpdate(group, index, zeros, ones))])


@pytest.mark.slow
def test_however_long_a_chain_is_it_takes_no_more_memory_than_the_cells() -> None:
    cells, links = 1 << 22, 40
    with small_groups(1 << 19):
        geometry, _ = one_group(cells)
    rng, state = np.random.default_rng(0), np.zeros(cells, np.uint16)

    def walked(links: int) -> ChainedCells:
        state[:] = 0
        chained = ChainedCells(Weights(geometry, [np.zeros(cells, np.uint16)]), NUMBA)
        for _ in range(links):
            for group in geometry.groups:
                index = np.flatnonzero(rng.random(group.cells) < 0.02).astype(np.uint32)
                old = state[group.start + index]
                state[group.start + index] += 1
                chained.follow(group, [step_of(SparseUpdate(group, index, old, old + np.uint16(1)))])
        return chained

    assert walked(1).update(map) is not None  # and all loops are there
    with allocated() as taken:
        chained = walked(links)
        assert chained.update(map) is None
        end = chained.whole(map)
    assert taken[0] < 2.5 * geometry.nbytes, "the base, all cells, and a group of random numbers"
    assert np.array_equal(end.arrays[0], state)


def test_a_list_of_what_differs_takes_the_place_of_the_cells_that_were_walked() -> None:
    cells = 1 << 22
    with small_groups(1 << 19):
        geometry, _ = one_group(cells)

    def walked() -> ChainedCells:
        chained = ChainedCells(Weights(geometry, [np.zeros(cells, np.uint16)]), NUMBA)
        for group in geometry.groups:
            index = np.arange(0, group.cells, 5, dtype=np.uint32)
            for value in range(3):
                before, after = (np.full(len(index), value + n, np.uint16) for n in (0, 1))
                chained.follow(group, [step_of(SparseUpdate(group, index, before, after))])
        return chained

    assert walked().update(map) is not None  # all loops are there
    with allocated() as taken:
        update = walked().update(map)
    assert update is not None
    assert update.changed == sum(-(-group.cells // 5) for group in geometry.groups)
    assert all((change.new == 3).all() and not change.old.any() for change in update.groups)
    assert update.nbytes > 0.75 * geometry.nbytes
    assert taken[0] < 2.3 * geometry.nbytes, "the base, and all cells or what became of them"


def test_a_chain_that_is_walked_takes_the_cells_once() -> None:
    cells, links = 1 << 22, 24
    geometry, group = one_group(cells)
    base, state, steps = np.zeros(cells, np.uint16), np.zeros(cells, np.uint16), []
    for first in range(links):
        index = np.arange(first, cells, 50, dtype=np.uint32)
        steps.append(step_of(SparseUpdate(group, index, state[index], np.ones(len(index), np.uint16))))
        state[index] = 1

    def walked() -> Weights:
        chained = ChainedCells(Weights(geometry, [base]), NUMBA)
        chained.follow(group, steps)
        assert chained.update(map) is None
        return chained.whole(map)

    walked()  # all loops are there
    with allocated() as taken:
        end = walked()
    assert taken[0] < 1.1 * geometry.nbytes
    assert np.array_equal(end.arrays[0], state)


def test_legs_are_followed_together_while_they_have_few_bytes() -> None:
    geometry, _ = one_group(1 << 23)
    most = geometry.nbytes // 16
    legs = [Leg("undo", 9, 0), *(Leg("patch", n, n + 1, patch=patch(n, n + 1, size=most // 3)) for n in range(7))]
    assert [len(window) for window in windows(legs, geometry)] == [4, 3, 1]
    assert [leg for window in windows(legs, geometry) for leg in window] == legs
    large = [Leg("patch", n, n + 1, patch=patch(n, n + 1, size=2 * most)) for n in range(3)]
    assert [len(window) for window in windows(large, geometry)] == [1, 1, 1]
    assert [list(window) for window in windows([], geometry)] == [[]]


# -- whole pulls -------------------------------------------------------------------------------------------------------


def states_of(seed: int) -> list[np.ndarray[Any, Any]]:
    """Return BF16 patterns of finite numbers, most of which change at each step, but back at the last."""
    rng = np.random.default_rng(seed)
    found = [rng.integers(0x3800, 0x4000, CELLS).astype(np.uint16) for _ in range(LENGTH - 1)]
    last = found[0].copy()
    last[::1000] += 1
    return [*found, last]


STATES = states_of(0)


@pytest.fixture(scope="module", params=["gap", "class"])
def store(request: pytest.FixtureRequest) -> DictStore:
    store = DictStore()
    push = PushOptions(coder=request.param, keyframe_share=1e9, dtype="keep")
    with Registry(store, "run", Options(push=push)) as registry:
        for step, state in enumerate(STATES):
            registry.push(step, {"w": state.reshape(300, 1000).copy(), "v": state[:7].copy()})
    return store


def model_of(state: np.ndarray[Any, Any]) -> dict[str, np.ndarray[Any, Any]]:
    return {"w": state.reshape(300, 1000).copy(), "v": state[:7].copy()}


def holds(model: dict[str, np.ndarray[Any, Any]], state: np.ndarray[Any, Any]) -> bool:
    return all(np.array_equal(model[name], cells) for name, cells in model_of(state).items())


@pytest.fixture
def registry(store: DictStore) -> Iterator[Registry]:
    with Registry(store, "run") as registry:
        yield registry


@pytest.mark.parametrize("target", [LENGTH - 2, LENGTH - 1])
def test_a_long_chain_is_pulled_bit_for_bit_from_a_version_and_from_nothing(registry: Registry, target: int) -> None:
    model = model_of(STATES[0])
    registry.pull(0, into=model)
    result = registry.pull(target, into=model)
    assert holds(model, STATES[target])
    assert result.objects == target
    assert [leg.kind for leg in registry.route(target, have=0).legs] == ["patch"] * target
    fresh = model_of(STATES[3])
    registry.pull(target, into=fresh)
    assert holds(fresh, STATES[target])
    assert holds(registry.load(target), STATES[target])


def test_where_little_differs_in_the_end_the_chain_can_be_undone(registry: Registry) -> None:
    model = model_of(STATES[0])
    registry.pull(0, into=model)
    with registry.stage(LENGTH - 1, into=model) as staged:
        assert not staged.whole
        assert staged.changed == CELLS // 1000 + 1
        staged.apply()
        assert holds(model, STATES[-1])
        staged.undo()
    assert holds(model, STATES[0])


def test_where_much_differs_all_cells_are_replaced(registry: Registry) -> None:
    model = model_of(STATES[0])
    registry.pull(0, into=model)
    with registry.stage(LENGTH - 2, into=model) as staged:
        assert staged.whole
        assert holds(model, STATES[0]), "staging changes nothing"
        staged.apply()
        staged.apply()
        assert holds(model, STATES[-2])
        with pytest.raises(pulse_registry.InvalidArgument, match="replaced whole"):
            staged.undo()
    registry.pull(LENGTH - 1, into=model)
    assert holds(model, STATES[-1])


def test_all_cells_are_replaced_without_a_copy_of_them(registry: Registry) -> None:
    model = model_of(STATES[0])
    registry.pull(0, into=model)
    with registry.stage(LENGTH - 2, into=model) as staged, allocated() as taken:
        assert staged.whole
        staged.apply()
    assert taken[0] < CELLS // 2, "bytes"
    assert holds(model, STATES[LENGTH - 2])


def test_weights_that_are_not_the_base_are_refused_unchanged(registry: Registry) -> None:
    model = model_of(STATES[0])
    registry.pull(0, into=model)
    model["w"][250, 3] ^= 1
    before = {name: cells.copy() for name, cells in model.items()}
    with pytest.raises(BaseMismatch, match="not version 0"):
        registry.pull(LENGTH - 2, into=model)
    assert all(np.array_equal(model[name], cells) for name, cells in before.items())


@pytest.mark.parametrize("nears", [False, True], ids=["away", "towards"])
def test_weights_that_somebody_changes_while_differences_are_listed_are_refused(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, nears: bool
) -> None:
    model, update = model_of(STATES[0]), ChainedCells.update
    registry.pull(0, into=model)

    def while_changed(chained: ChainedCells, map_: Map) -> HostUpdate | None:
        def counted(function: Callable[[int], int], numbers: Sequence[int]) -> list[int]:
            found = list(map_(function, numbers))
            model["w"][:] = (STATES[-1] if nears else ~STATES[-1]).reshape(300, 1000)
            return found

        return update(chained, counted)

    monkeypatch.setattr(ChainedCells, "update", while_changed)
    with pytest.raises(BaseMismatch, match="not version 0"):
        registry.pull(LENGTH - 1, into=model)


def test_a_damaged_patch_far_along_leaves_the_weights_as_they_are(store: DictStore) -> None:
    broken = DictStore()
    broken.objects = dict(store.objects)
    with Registry(broken, "run") as registry:
        key = next(iter(registry.state().patches_into(LENGTH - 3))).object.key
        damaged = bytearray(broken.objects[f"run/{key}"])
        damaged[-1] ^= 1
        broken.objects[f"run/{key}"] = bytes(damaged)
        model = model_of(STATES[0])
        registry.pull(0, into=model)
        with pytest.raises(CorruptObject, match=key):
            registry.pull(LENGTH - 2, into=model)
        assert holds(model, STATES[0])


def test_strided_tensors_are_pulled_and_a_way_back_is_followed(registry: Registry) -> None:
    wide = np.zeros((300, 2000), np.uint16)
    model = {"w": wide[:, ::2], "v": np.zeros(7, np.uint16)}
    registry.pull(LENGTH - 2, into=model)
    assert holds({name: np.ascontiguousarray(cells) for name, cells in model.items()}, STATES[-2])
    registry.pull(0, into=model)
    assert holds({name: np.ascontiguousarray(cells) for name, cells in model.items()}, STATES[0])


def test_float32_weights_are_refused_where_they_hold_more_than_the_version(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    states = [torch.from_numpy(state.view(np.int16)).view(torch.bfloat16) for state in STATES]
    with pulse_registry.open(str(tmp_path), run="r", push=PushOptions(keyframe_share=1e9)) as registry:
        for step, state in enumerate(states):
            registry.push(step, {"w": state})
        model = {"w": torch.zeros(CELLS)}
        registry.pull(0, into=model, cast=True)
        registry.pull(LENGTH - 2, into=model, cast=True)
        assert torch.equal(model["w"], states[-2].float())
        registry.pull(0, into=model, cast=True, replace=True)
        model["w"].view(torch.int32)[5] += 1
        with pytest.raises(BaseMismatch, match="not version 0"):
            registry.pull(LENGTH - 2, into=model, cast=True)
