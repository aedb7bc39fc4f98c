"""The outer state of trainers of one model: rounds through real arrays, views of any strides, and bad values."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from pulse_kernels import get_backend
from pulse_kernels.format.group import GROUP_BYTES
from pulse_kernels.protocol import OuterRates
from pulse_kernels.select import outer_loops
from pulse_registry.errors import InvalidModel
from pulse_registry.outer.exponents import chosen
from pulse_registry.outer.masters import WholeMasters
from pulse_registry.outer.mean import GroupLevels
from pulse_registry.outer.weights import OuterWeights
from pulse_registry.process.parallel import ParallelMap
from pulse_registry.weights.arrays import Weights
from pulse_registry.weights.cell_space import Geometry
from pulse_registry.weights.model import layout_of, read_model

BACKEND, RATES = get_backend("reference"), OuterRates(0.7, 0.9)
Model = dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float32]]]


def model(seed: int = 1) -> Model:
    """A matrix, a vector, an empty tensor, and a transposed one."""
    rng = np.random.default_rng(seed)

    def drawn(*shape: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        return (rng.standard_normal(shape) * 0.02).astype(np.float32)

    return {"matrix": drawn(40, 50), "vector": drawn(33), "none": drawn(0, 4), "turned": drawn(20, 10).T}


def started(held: Model, loops: str = "reference") -> OuterWeights:
    """Begin with a model's weights, rounded to BF16, and write these into the model."""
    views = read_model(held)
    geometry = Geometry(layout_of(views, "bf16"))
    version = Weights.empty(geometry)
    keep = Weights.of(Geometry(layout_of(views, "keep")), views)
    for number, size in enumerate(geometry.sizes):
        cells = np.empty(size, np.uint16)
        BACKEND.cast_f32(np.ascontiguousarray(keep.cells(number, slice(0, size))), cells)
        version.store(number, 0, cells)
    state = OuterWeights(geometry, BACKEND, outer_loops(loops))
    state.begin(version.copy_of)
    state.store(WholeMasters.of(state.geometry, views))
    return state


def trained(held: Model, seed: int) -> None:
    """Move the weights a little."""
    rng = np.random.default_rng(seed)
    for tensor in held.values():
        tensor -= (rng.standard_normal(tensor.shape) * 1e-5).astype(np.float32)


def test_rounds_of_three_trainers_leave_the_same_bits_in_their_models() -> None:
    models = [model() for _ in range(3)]
    states = [started(held, loops) for held, loops in zip(models, ("reference", "numba", "numba"), strict=True)]
    first = states[0].digest()
    for round_ in range(4):
        sent = []
        for number, (held, state) in enumerate(zip(models, states, strict=True)):
            trained(held, 10 * round_ + number)
            state.collect(WholeMasters.of(state.geometry, read_model(held)))
            gate = state.measured(7.0)
            exponent = chosen(gate.count, gate.square, 7.0, -18)
            levels = state.gated(7.0, exponent, 1)
            state.settle(levels)
            sent.append(levels)
        parts: dict[int, list[GroupLevels]] = {}
        for levels in sent:
            for group, part in levels:
                parts.setdefault(group.number, []).append(part)
        least = min(part.exponent for found in parts.values() for part in found)
        for held, state in zip(models, states, strict=True):
            state.step(parts, least, 3, RATES)
            state.store(WholeMasters.of(state.geometry, read_model(held)))
    assert len({state.digest() for state in states}) == 1
    assert states[0].digest() != first
    for name in models[0]:
        assert len({np.ascontiguousarray(held[name]).tobytes() for held in models}) == 1
    assert len({state.residual.tobytes() for state in states}) == 3  # each has its own


def test_the_version_is_the_weights_rounded_to_bf16() -> None:
    held = model()
    state = started(held)
    version = [state.version_cells(group) for group in state.geometry.groups]
    assert state.theta.view(np.uint32).tolist() == (np.concatenate(version).astype(np.uint32) << 16).tolist()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_gradient_that_is_not_finite_is_named_and_changes_nothing(bad: float) -> None:
    held = model()
    state = started(held)
    trained(held, 1)
    state.collect(WholeMasters.of(state.geometry, read_model(held)))
    before = state.residual.copy()
    held["vector"][7] = bad
    with pytest.raises(InvalidModel, match="not finite: tensor 'vector' at flat index 7"):
        state.collect(WholeMasters.of(state.geometry, read_model(held)))
    assert state.residual.tobytes() == before.tobytes()


def test_a_gradient_far_beyond_its_exponent_is_named() -> None:
    held = model()
    state = started(held)
    held["turned"][3, 5] += 2.0
    state.collect(WholeMasters.of(state.geometry, read_model(held)))
    with pytest.raises(InvalidModel, match="too large to be sent: tensor 'turned' at flat index 65"):
        state.gated(7.0, -24, 1)
    assert state.gated(7.0, -22, 1)


def test_a_gradient_over_the_limit_changes_nothing() -> None:
    held = model()
    state = started(held)
    held["vector"][7] += 0.5
    before = state.residual.copy()
    with pytest.raises(InvalidModel, match="too large to be sent: tensor 'vector' at flat index 7"):
        state.collect(WholeMasters.of(state.geometry, read_model(held)), 0.5)
    assert state.residual.tobytes() == before.tobytes()
    assert state.origin is None


def test_rounds_work_in_the_same_memory() -> None:
    held = model()
    state, seen = started(held, "numba"), []
    for round_ in range(6):
        trained(held, round_)
        masters = WholeMasters.of(state.geometry, read_model(held))
        state.collect(masters)
        if round_ % 2:
            trained(held, 10 + round_)
            state.collect(masters)  # again, before it gets the weights
        assert state.origin is not None
        seen += [state.residual, state.origin]  # what is held here is no place for a new array
        state.store(masters)
    assert len({cells.ctypes.data for cells in seen}) <= 4


def test_other_tensors_and_dtypes_are_refused() -> None:
    held = model()
    state = started(held)
    with pytest.raises(InvalidModel, match="float32 masters alone"):
        WholeMasters.of(state.geometry, read_model({**held, "vector": held["vector"].astype(np.float16)}))
    with pytest.raises(InvalidModel, match="not those that the rounds began with"):
        WholeMasters.of(state.geometry, read_model({**held, "more": held["vector"].copy()}))
    with pytest.raises(InvalidModel, match="'x' is U8"):
        OuterWeights(
            Geometry(layout_of(read_model({"x": np.zeros(3, np.uint8)}), "bf16")), BACKEND, outer_loops("numba")
        )


@pytest.mark.slow
def test_threads_over_groups_give_what_one_after_the_other_does() -> None:
    held = {"large": (np.random.default_rng(1).standard_normal(GROUP_BYTES // 2 + 5000) * 0.02).astype(np.float32)}
    views, found, fast = read_model(held), [], get_backend("numba")
    geometry = Geometry(layout_of(views, "bf16"))
    start = Weights.empty(geometry)
    fast.cast_f32(held["large"].view(np.uint32), start.cells(0, slice(0, geometry.cells)))
    trained(held, 2)
    with ThreadPoolExecutor(2) as pool:
        for each in (map, ParallelMap(pool)):
            state = OuterWeights(geometry, fast, outer_loops("numba"), each=each)
            state.begin(start.copy_of)
            state.collect(WholeMasters.of(geometry, views))
            gate = state.measured(7.0)
            sent = state.gated(7.0, -17, 1)
            values = state.passed(7.0, 1)
            assert len(sent) == len(values) == 2
            state.step({group.number: [part] for group, part in sent}, -17, 1, RATES)
            parts = [
                (group.number, part.index.tobytes(), part.levels.tobytes())
                for group, part in sent
                if isinstance(part, GroupLevels)
            ]
            state.settle(sent)
            found.append((gate, parts, state.digest(), state.momentum.tobytes(), state.residual.tobytes()))
    assert found[0] == found[1]
