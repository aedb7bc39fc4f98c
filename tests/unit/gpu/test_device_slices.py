"""Slices on the device are pulled as slices in host memory are, and refused where they are wrong."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pulse_registry import BaseMismatch, InvalidModel, LayoutMismatch, Slice
from pulse_registry.gpu.strided_cells import StridedCells
from pulse_registry.options import ComputeOptions, Options, PullOptions
from pulse_registry.peers.local_peers import LocalGroup, LocalPeers
from tests.scenarios.sharded.test_pull_slices import models
from tests.support.chains import Chain, chains
from tests.support.groups import small_groups
from tests.support.ranks import outcomes
from tests.support.records import DictStore
from tests.support.registries import quick, registry_with
from tests.support.slices import cells_of, cut, held, wanted
from tests.unit.gpu.models import on_device

Model = dict[str, npt.NDArray[Any]]
_DTYPES = {1: torch.uint8, 2: torch.uint16, 4: torch.uint32, 8: torch.uint64}


@pytest.fixture(autouse=True)
def groups() -> Iterator[None]:
    with small_groups():
        yield


def pushed(states: list[Model], **options: Any) -> DictStore:
    store = DictStore()
    with quick(store, **({"coder": "gap", "keyframe_share": 1e9} | options)) as registry:
        for step, state in enumerate(states):
            registry.push(step, state)
    return store


def on(device: str, rank: Mapping[str, Any]) -> dict[str, Any]:
    """Return a rank's arrays and slices as zeros on the device, of the same strides."""
    return {name: _there(device, value) for name, value in rank.items()}


def _there(device: str, value: Any) -> Any:
    if isinstance(value, list):
        return [_there(device, one) for one in value]
    if isinstance(value, Slice):
        return Slice(_there(device, value.tensor), of=value.of, at=value.at)
    gaps = 1 if value.flags.c_contiguous else 2
    room = torch.zeros((*value.shape, gaps), dtype=_DTYPES[value.itemsize], device=device)
    return room[..., -1]


def back(rank: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a rank has on the device, in host memory."""

    def of(value: Any) -> Any:
        if isinstance(value, list):
            return [of(one) for one in value]
        if isinstance(value, Slice):
            return Slice(of(value.tensor), of=value.of, at=value.at)
        return value.cpu().numpy()

    return {name: of(value) for name, value in rank.items()}


@pytest.mark.slow
@given(
    chain=chains(length=3),
    ranks=st.integers(1, 3),
    share=st.sampled_from([0.3, 1e9]),
    order=st.permutations(range(3)),
    undo_share=st.sampled_from([0.0, 100.0]),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_rank_on_the_device_holds_its_slices_of_each_version_it_pulls_in_any_order(
    device: str, chain: Chain, ranks: int, share: float, order: list[int], undo_share: float, seed: int
) -> None:
    states = models(chain)
    dealt = [rank for rank in cut(states[0], ranks, seed) if cells_of(rank)]
    if not dealt:
        return  # a model without a cell
    rank = dealt[0]
    with small_groups(chain.group_bytes):
        store, there = pushed(states, keyframe_share=share), on(device, rank)
        with on_device(store, device, undo_share=undo_share) as registry:
            for version in order:
                result = registry.pull(version, into=there, partial=True, check="all")
                assert result.version == version
                assert held(back(there)) == wanted(rank, states[version])
            assert registry.verify(order[-1], model=there, partial=True).version == order[-1]


def states_of(*shapes: tuple[int, ...], versions: int = 3) -> list[Model]:
    """Return versions of BF16 numbers, all finite; each changes a cell in five."""
    rng = np.random.default_rng(7)
    found = [{f"w{n}": rng.integers(0, 0x4000, shape, np.uint16) for n, shape in enumerate(shapes)}]
    for _ in range(versions - 1):
        found.append({name: np.where(rng.random(a.shape) < 0.2, a ^ 3, a) for name, a in found[-1].items()})
    return found


def columns(device: str, fused: torch.Tensor | None = None) -> tuple[torch.Tensor, dict[str, Any]]:
    """Return a fused parameter, and its columns as those of two tensors."""
    fused = torch.zeros((9, 10), dtype=torch.uint16, device=device) if fused is None else fused
    return fused, {"w0": Slice(fused[:, :4], of=(9, 8), at=(0, 4)), "w1": Slice(fused[:, 4:], of=(9, 12), at=(0, 3))}


def joined(state: Model) -> npt.NDArray[Any]:
    """Return what the fused parameter is in a version."""
    return np.concatenate([state["w0"][:, 4:], state["w1"][:, 3:9]], axis=1)


def test_columns_of_a_fused_parameter_are_changed_where_they_are_and_taken_back(device: str) -> None:
    states = states_of((9, 8), (9, 12))
    fused, rank = columns(device)
    with on_device(pushed(states), device) as registry:
        registry.pull(0, into=rank)
        assert np.array_equal(fused.cpu().numpy(), joined(states[0]))
        staged = registry.stage(2, into=rank)
        assert np.array_equal(fused.cpu().numpy(), joined(states[0])), "a staged version changes nothing"
        staged.apply()
        assert np.array_equal(fused.cpu().numpy(), joined(states[2]))
        staged.undo()
        assert np.array_equal(fused.cpu().numpy(), joined(states[0]))
        assert registry.pull(1, into=rank).checked == "slices"
        assert np.array_equal(fused.cpu().numpy(), joined(states[1]))


@pytest.mark.parametrize("coder", ["gap", "class"])
def test_a_rank_on_the_device_and_one_in_host_memory_pull_together(device: str, coder: str) -> None:
    """Patches of coder `class` they follow by a host copy."""
    states, copied = states_of((9, 8), (9, 12)), {"host_copy": coder == "class"}
    store, there = pushed(states, coder=coder), torch.zeros((9, 10), dtype=torch.uint16, device=device)
    dealt: list[dict[str, Any]] = [
        {"w0": Slice(there[:, :4], of=(9, 8), at=(0, 4)), "w1": Slice(there[:, 4:], of=(9, 12), at=(0, 6))},
        {
            name: Slice(np.zeros((9, wide), np.uint16), of=(9, 2 * wide), at=(0, 0))
            for name, wide in (("w0", 4), ("w1", 6))
        },
    ]
    changed = int(np.flatnonzero((states[2]["w0"] != states[1]["w0"])[:, 4:])[0])

    def life(peers: LocalPeers) -> tuple[list[str], str]:
        device_rank = peers.rank == 0
        opened = on_device(store, device, peers=peers, **copied) if device_rank else quick(store, peers=peers, **copied)
        with opened as registry:
            checked = [registry.pull(version, into=dealt[peers.rank]).checked for version in (0, 2, 1)]
            mine = back(dealt[0]) if peers.rank == 0 else dealt[1]
            assert held(mine) == wanted(mine, states[1])
            if peers.rank == 0:
                there.view(torch.int16)[changed // 4, changed % 4] ^= 1
            with pytest.raises(BaseMismatch) as raised:
                registry.pull(2, into=dealt[peers.rank])
        return checked, str(raised.value)

    one, other = outcomes(life, LocalGroup(2))
    assert one == other
    assert one[0] == ["state"] * 3
    assert one[1].startswith("rank 0: the slices are not those of version 1")


@pytest.mark.parametrize("strided", [False, True])
def test_cells_that_others_changed_are_seen_before_any_change_on_the_device(device: str, strided: bool) -> None:
    states = states_of((9, 8), (9, 12))
    fused, rank = columns(device)
    if not strided:
        fused = torch.zeros((3, 8), dtype=torch.uint16, device=device)
        rank = {"w0": Slice(fused, of=(9, 8), at=(4, 0))}
    with on_device(pushed(states), device) as registry:
        registry.pull(0, into=rank, partial=True)
        fused.view(torch.int16)[2, 1] ^= 1
        before = fused.cpu().numpy().copy()
        with pytest.raises(BaseMismatch, match="not those of version 0"):
            registry.pull(1, into=rank, partial=True)
        with pytest.raises(BaseMismatch):
            registry.verify(0, model=rank, partial=True)
        assert np.array_equal(fused.cpu().numpy(), before)
        registry.pull(1, into=rank, partial=True, replace=True)
        assert registry.verify(1, model=rank, partial=True).version == 1


@pytest.mark.parametrize("strided", [False, True])
def test_a_version_with_infinities_in_the_slices_is_refused_and_one_with_them_elsewhere_is_not(
    device: str, strided: bool
) -> None:
    before, after = states_of((9, 8), versions=2)
    after["w0"][4, 2] = 0x7F80
    named = [{name: a.view(np.int16).copy() for name, a in state.items()} for state in (before, after)]
    bf16 = [{name: torch.from_numpy(a).view(torch.bfloat16) for name, a in state.items()} for state in named]
    store = DictStore()
    with quick(store, coder="gap", keyframe_share=1e9) as registry:
        for step, state in enumerate(bf16):
            registry.push(step, state)

    def rank(at: int) -> dict[str, Any]:
        room = torch.zeros((9, 2, 1 + strided), dtype=torch.bfloat16, device=device)[..., 0]
        return {"w0": Slice(room, of=(9, 8), at=(0, at))}

    compute = ComputeOptions(device=lambda views: torch.device(device))
    how = Options(pull=PullOptions(nonfinite="refuse"), compute=compute)
    with registry_with(store, how) as registry:
        hit, spared = rank(2), rank(4)
        for one in (hit, spared):
            registry.pull(0, into=one)
        with pytest.raises(InvalidModel, match=r"is not finite: tensor .w0\[0:9, 2:4\]"):
            registry.pull(1, into=hit)
        assert registry.pull(1, into=spared).version == 1


def test_a_prefetched_version_of_slices_is_applied_on_the_device(device: str) -> None:
    states = states_of((9, 8), (9, 12))
    fused, rank = columns(device)
    with on_device(pushed(states), device) as registry:
        registry.pull(0, into=rank)
        with registry.prefetch(into=rank) as prefetch:
            staged = prefetch.take(timeout=None)
            assert staged is not None
            staged.apply()
        assert np.array_equal(fused.cpu().numpy(), joined(states[2]))


def test_expanded_overlapping_and_wholly_strided_tensors_are_refused_on_the_device(device: str) -> None:
    states = states_of((9, 8))
    with on_device(pushed(states), device) as registry:
        expanded = torch.zeros((1, 8), dtype=torch.uint16, device=device).expand(3, 8)
        with pytest.raises(InvalidModel, match="expanded"):
            registry.pull(0, into={"w0": Slice(expanded, of=(9, 8), at=(0, 0))})
        room = torch.zeros((9, 8), dtype=torch.uint16, device=device)
        halves = [Slice(room[:5], of=(9, 8), at=(0, 0)), Slice(room[4:8], of=(9, 8), at=(5, 0))]
        with pytest.raises(LayoutMismatch, match="memory in common"):
            registry.pull(0, into={"w0": halves})
        with pytest.raises(InvalidModel, match="not contiguous"):
            registry.pull(0, into={"w0": torch.zeros((8, 9), dtype=torch.uint16, device=device).T})
        assert not room.view(torch.int16).any()


@given(st.lists(st.integers(1, 4), max_size=4), st.randoms(use_true_random=False))
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_strided_cells_are_those_of_the_flattened_tensor(device: str, shape: list[int], random: Any) -> None:
    wide = [length + random.randint(0, 2) for length in shape]
    dims = random.sample(range(len(shape)), len(shape))
    tensor = torch.zeros(wide, dtype=torch.int32, device=device)
    for dim, length in enumerate(shape):
        tensor = tensor.narrow(dim, random.randint(0, wide[dim] - length), length)
    tensor = tensor.permute(dims)
    cells = StridedCells(tensor)
    expected = torch.arange(1, tensor.numel() + 1, dtype=torch.int32, device=device)
    cells.fill(0, expected)
    assert tensor.reshape(-1).equal(expected)
    places = torch.arange(0, tensor.numel(), 2, device=device)
    assert cells.gather(cells.offsets(places)).equal(expected[places])
    start = random.randint(0, tensor.numel())
    stop = random.randint(start, tensor.numel())
    assert cells.run(start, stop).equal(expected[start:stop])
