"""Raw bits survive push and pull, masters are rounded as torch rounds them, and the same states make the same bytes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pulse_kernels import CELL_TYPES
from pulse_registry.weights.cell_space import Geometry
from pulse_registry.weights.dtypes import NUMPY_NAMES, numpy_dtype
from pulse_registry.weights.model import read_model
from pulse_registry.weights.tensors import new_tensors
from pulse_schemas import DTYPE_ORDER
from tests.support.chains import Chain, chains, special_bits
from tests.support.groups import small_groups
from tests.support.records import DictStore
from tests.support.registries import bits, garbage, quick, restored
from tests.support.sampling import examples

RUN_KEY = "run/objects/patch/"


def as_dtype(cells: np.ndarray, dtype: str) -> np.ndarray:
    return cells.view(numpy_dtype(dtype))


@pytest.mark.parametrize("coder", ["gap", "class"])
@pytest.mark.parametrize("dtype", [d for d in DTYPE_ORDER if CELL_TYPES[d].is_float or d in ("F8_E8M0", "F4")])
def test_every_special_pattern_survives_a_change_into_every_other(dtype: str, coder: str) -> None:
    odd = np.array(special_bits(CELL_TYPES[dtype]), CELL_TYPES[dtype].dtype)
    before, after = (grid.reshape(-1).copy() for grid in np.meshgrid(odd, odd))
    store = DictStore()
    with quick(store, coder=coder, backend="numba", keyframe_share=1e9) as registry:
        registry.push(0, {"w": as_dtype(before, dtype)})
        worker = {"w": as_dtype(np.full_like(before, 3), dtype)}
        registry.pull(0, into=worker)
        assert worker["w"].tobytes() == before.tobytes()
        pushed = registry.push(1, {"w": as_dtype(after, dtype)})
        assert pushed.changed == int((before != after).sum())
        registry.pull(1, into=worker)
        assert worker["w"].tobytes() == after.tobytes()
        registry.pull(0, into=worker)
        assert worker["w"].tobytes() == before.tobytes()


@pytest.mark.parametrize("dtype", ["BF16", "F16"])
def test_every_pattern_of_16_bits_survives_a_torch_model_and_back(dtype: str) -> None:
    kind = getattr(torch, NUMPY_NAMES[dtype])
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
    store = DictStore()
    with quick(store, backend="numba", coder="class", keyframe_share=1e9) as registry:
        for version, pattern in enumerate([every, every.flip(0), every.roll(1), every]):
            registry.push(version, {"w": pattern.view(kind)})
        for version in (3, 0, 1, 2, 0):
            pulled = registry.load(version)["w"]
            wanted = [every, every.flip(0), every.roll(1), every][version]
            assert pulled.dtype == kind
            assert torch.equal(pulled.view(torch.int16), wanted)


MASTERS = st.lists(
    st.one_of(
        st.integers(0, 2**32 - 1),
        st.sampled_from([0, 0x80000000, 0x7F800000, 0xFF800000, 0x7F7FFFFF, 0x7F7F8000, 0x00007FFF, 0x00008000, 1]),
        st.integers(0, 2**16 - 1).map(lambda high: high << 16 | 0x8000),
        st.integers(0, 2**16 - 1).map(lambda high: high << 16 | 0x7FFF),
    ),
    min_size=1,
    max_size=80,
)


@given(MASTERS, MASTERS, st.sampled_from(["reference", "numba"]))
@examples(40)
def test_masters_are_published_as_torch_rounds_them(first: list[int], second: list[int], backend) -> None:
    size = max(len(first), len(second))
    masters = [np.resize(np.array(bits, np.uint32), size).view(np.float32) for bits in (first, second)]
    store = DictStore()
    with quick(store, dtype="bf16", backend=backend, keyframe_share=1e9) as registry:
        for version, master in enumerate(masters):
            registry.push(version, {"w": torch.from_numpy(master.copy())})
        for version, master in enumerate(masters):
            pulled = registry.load(version)["w"]
            wanted = torch.from_numpy(master).to(torch.bfloat16)
            real = ~torch.isnan(wanted)
            assert torch.equal(pulled.view(torch.int16)[real], wanted.view(torch.int16)[real])
            assert torch.isnan(pulled[~real]).all(), "NaN stays NaN"
            # Of a NaN, torch's own vector code drops the sign; ours is the master's.
            assert torch.equal(torch.signbit(pulled), torch.signbit(torch.from_numpy(master)))


def test_all_ties_and_neighbours_of_bf16_are_rounded_as_torch_rounds_them() -> None:
    high = np.arange(2**16, dtype=np.uint32) << np.uint32(16)
    masters = np.concatenate([high | np.uint32(low) for low in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF)]).view(np.float32)
    wanted = torch.from_numpy(masters).to(torch.bfloat16)
    real = ~torch.isnan(wanted)
    with quick(DictStore(), dtype="bf16", backend="numba") as registry:
        registry.push(0, {"w": torch.from_numpy(masters)})
        pulled = registry.load(0)["w"]
    assert torch.equal(pulled.view(torch.int16)[real], wanted.view(torch.int16)[real])
    assert torch.isnan(pulled[~real]).all()


@given(chains(length=3), st.sampled_from(["gap", "class", "auto"]), st.sampled_from(["torch", "numpy"]))
@examples(20)
def test_any_layout_of_any_dtypes_comes_back_bit_for_bit(chain: Chain, coder, framework) -> None:
    store = DictStore()
    names = [tensor.name for tensor in chain.layout.tensors]

    def model(number: int) -> dict[str, np.ndarray]:
        weights = chain.weights(Geometry(chain.layout), number)
        return new_tensors(weights, framework)

    with small_groups(chain.group_bytes), quick(store, coder=coder, backend="numba", keyframe_share=1e9) as registry:
        for step in range(3):
            registry.push(step, model(step))
        assert registry.layout() == chain.layout
        worker = model(1)
        for version in (0, 1, 2, 0):
            registry.pull(version, into=worker)
            found = read_model(worker)
            assert [found[n].cells.tobytes() for n in names] == [cells.tobytes() for cells in chain.states[version]]


@pytest.mark.slow
@given(st.integers(0, 2**32 - 1), st.sampled_from(["gap", "class", "auto"]), st.sampled_from([8, 64, 2**24]))
@examples(20)
def test_the_same_states_make_the_same_objects_on_every_backend(seed: int, coder, group_bytes: int) -> None:
    rng = np.random.default_rng(seed)
    states = [
        {
            "a": as_dtype(rng.integers(0, 2**16, 50, dtype=np.uint16), "BF16"),
            "b": rng.integers(0, 5, (4, 4), dtype=np.int64),
            "c": as_dtype(rng.integers(0, 256, 30, dtype=np.uint8), "F8_E4M3"),
        }
        for _ in range(3)
    ]
    made = []
    for backend in ("reference", "numba"):
        store = DictStore()
        with small_groups(group_bytes), quick(store, coder=coder, backend=backend, keyframe_share=1e9) as registry:
            digests = [registry.push(step, state).digest for step, state in enumerate(states)]
            objects = {key.rsplit("-", 1)[0]: store.get(key) for key in store.list(RUN_KEY)}
            assert len(objects) == 2
            made.append((objects, digests))
            for version, state in enumerate(states):
                assert restored(store, garbage(state), version) == bits(state)
    assert made[0] == made[1]
