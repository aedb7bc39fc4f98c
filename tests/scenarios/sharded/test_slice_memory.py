"""What slices lie in: memory that is tied, shared, wider, read-only, odd; each is pulled right, or refused in words."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from pulse_registry import BaseMismatch, InvalidModel, LayoutMismatch, Slice
from pulse_registry.store import Store
from tests.support.records import DictStore
from tests.support.registries import quick

Model = dict[str, npt.NDArray[Any]]


@pytest.fixture
def states() -> list[Model]:
    rng = np.random.default_rng(0)
    return [{name: rng.integers(0, 0x4000, (6, 8), np.uint16) for name in "vw"} for _ in range(3)]


@pytest.fixture
def store(states: list[Model]) -> Store:
    return pushed(states)


def pushed(states: list[Any]) -> DictStore:
    store = DictStore()
    with quick(store, coder="gap", keyframe_share=1e9) as registry:
        for step, state in enumerate(states):
            registry.push(step, state)
    return store


def rows(array: npt.NDArray[Any], at: int) -> Slice:
    return Slice(array, of=(6, 8), at=(at, 0))


@pytest.mark.parametrize("second", ["w", "v"])
def test_slices_that_share_some_of_their_memory_are_refused_and_nothing_is_written(store: Store, second: str) -> None:
    room = np.zeros((5, 8), np.uint16)
    model = {"w": [rows(room[:3], 0)], "v": []} | {
        second: [*([rows(room[:3], 0)] * (second == "w")), rows(room[2:], 3)]
    }
    with quick(store) as registry, pytest.raises(LayoutMismatch, match=r"\[0:3, 0:8\].*memory in common"):
        registry.pull(0, into={name: value for name, value in model.items() if value}, partial=True)
    assert not room.any()


def test_interleaved_slices_of_one_fused_parameter_are_no_overlap(store: Store, states: list[Model]) -> None:
    fused = np.zeros((6, 8), np.uint16)
    columns = [Slice(fused[:, k : k + 4], of=(6, 8), at=(0, k)) for k in (0, 4)]
    with quick(store) as registry:
        for version in (0, 2, 1):
            registry.pull(version, into={"w": columns}, partial=True)
            assert np.array_equal(fused, states[version]["w"])


def test_one_memory_under_two_names_is_pulled_where_the_version_agrees_and_refused_where_it_does_not(
    states: list[Model],
) -> None:
    states[1]["v"] = states[1]["w"].copy()
    states[0]["v"][2:4] = states[0]["w"][2:4]
    room = np.zeros((2, 8), np.uint16)
    model = {name: rows(room, 2) for name in "vw"}
    with quick(pushed(states)) as registry:
        for version in (0, 1):
            registry.pull(version, into=model)
            assert np.array_equal(room, states[version]["w"][2:4])
        with pytest.raises(LayoutMismatch, match=r"'v\[2:4, 0:8\]' and 'w\[2:4, 0:8\]' are one in the model"):
            registry.pull(2, into=model)
        assert np.array_equal(room, states[1]["w"][2:4])


@pytest.mark.parametrize("memories", [1, 2])
def test_slices_of_tied_tensors_are_pulled_into_one_memory_or_two(memories: int) -> None:
    rng = np.random.default_rng(1)
    history, shared = [], np.zeros((6, 8), np.uint16)
    store = DictStore()
    with quick(store, coder="gap", keyframe_share=1e9) as registry:
        for step in range(3):
            shared[rng.integers(6), :] = rng.integers(0, 2**16, 8)
            registry.push(step, {"embed": shared, "head": shared})
            history.append(shared.copy())
        rooms = [np.zeros((6, 3), np.uint16) for _ in range(memories)]
        model = {"embed": Slice(rooms[0], of=(6, 8), at=(0, 5)), "head": Slice(rooms[-1], of=(6, 8), at=(0, 5))}
        for version in (0, 2, 1):
            registry.pull(version, into=model)
            assert all(np.array_equal(room, history[version][:, 5:]) for room in rooms)
        alias = {"head": Slice(np.zeros(5, np.uint16), of=(6, 8), at=11)}
        registry.pull(2, into=alias, partial=True)
        assert np.array_equal(alias["head"].tensor, history[2].reshape(-1)[11:16])


@pytest.mark.parametrize("how", ["rows", "columns"])
def test_slices_in_float32_take_bf16_widened_and_are_checked_to_the_last_bit(how: str) -> None:
    rng = np.random.default_rng(2)
    states = [{"w": torch.from_numpy(rng.standard_normal((6, 8), np.float32)).bfloat16()} for _ in range(3)]
    at, chosen = ((2, 0), np.s_[2:4, :]) if how == "rows" else ((0, 3), np.s_[:, 3:5])
    room = torch.zeros(states[0]["w"][chosen].shape)
    model = {"w": Slice(room, of=(6, 8), at=at)}
    with quick(pushed(states)) as registry:
        with pytest.raises(LayoutMismatch, match="Pass cast=True"):
            registry.pull(0, into=model)
        for version in (0, 2, 1):
            registry.pull(version, into=model, cast=True)
            assert room.equal(states[version]["w"][chosen].float())
        room.view(torch.int32)[0, 0] ^= 1  # below what BF16 holds
        with pytest.raises(BaseMismatch, match=r"not (those of )?version 1"):
            registry.pull(2, into=model, cast=True)
        registry.pull(2, into=model, cast=True, replace=True)
        assert room.equal(states[2]["w"][chosen].float())


def test_lists_of_slices_that_are_whole_together_are_checked_as_the_whole(store: Store, states: list[Model]) -> None:
    rooms = [np.zeros((6, 3), np.uint16), np.zeros((6, 5), np.uint16)]
    cut = [Slice(rooms[0], of=(6, 8), at=(0, 0)), Slice(rooms[1], of=(6, 8), at=(0, 3))]
    model = {"w": cut, "v": np.zeros((6, 8), np.uint16)}
    with quick(store) as registry:
        for version in (1, 2):
            registry.pull(version, into=model)
            assert np.array_equal(np.concatenate(rooms, axis=1), states[version]["w"])
        assert registry.verify(2, model=model).version == 2


def test_long_names_empty_slices_tensors_of_no_dimension_and_pairs_of_four_bits(states: list[Model]) -> None:
    long = "n" * 512
    model = {long: np.arange(12, dtype=np.uint16), "scalar": np.array(7, np.int32), "none": np.zeros((0, 3), np.uint8)}
    pairs = torch.arange(12, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    store = DictStore()
    with quick(store) as registry:
        registry.push(0, {**{name: torch.from_numpy(a) for name, a in model.items()}, "four": pairs})
        halves = [Slice(np.zeros(5, np.uint16), of=(12,), at=(0,)), Slice(np.zeros(7, np.uint16), of=(12,), at=5)]
        scalar, four = np.zeros((), np.int32), torch.zeros(3, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
        rank: dict[str, Any] = {
            long: halves,
            "scalar": Slice(scalar, of=(), at=()),
            "none": Slice(np.zeros((0, 3), np.uint8), of=(0, 3), at=(0, 0)),
            "four": [Slice(four, of=(12,), at=4), Slice(four[:0], of=(12,), at=12)],
        }
        assert registry.pull(0, into=rank).version == 0
        assert np.concatenate([half.tensor for half in halves]).tolist() == list(range(12))
        assert int(scalar) == 7
        assert four.view(torch.uint8).tolist() == [4, 5, 6]
        point = torch.zeros(1, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)[0]
        with pytest.raises(InvalidModel, match="can't be laid out"):
            registry.pull(0, into={"four": Slice(point, of=(12,), at=4)}, partial=True)


def test_read_only_and_expanded_slices_are_refused(store: Store) -> None:
    fixed = np.zeros((2, 8), np.uint16)
    fixed.flags.writeable = False
    with quick(store) as registry:
        with pytest.raises(InvalidModel, match="read-only"):
            registry.pull(0, into={"w": rows(fixed, 0)}, partial=True)
        expanded = np.lib.stride_tricks.as_strided(np.zeros(8, np.uint16), (2, 8), (0, 2))
        with pytest.raises(InvalidModel, match="expanded"):
            registry.pull(0, into={"w": rows(expanded, 0)}, partial=True)


def test_the_same_memory_may_become_other_tensors_and_have_empty_ones_beside_it(
    store: Store, states: list[Model]
) -> None:
    one, other = (np.zeros((6, 8), np.uint16) for _ in "vw")
    with quick(store) as registry:
        registry.pull(0, into={"v": one}, partial=True)
        registry.pull(1, into={"w": one}, partial=True)
        assert np.array_equal(one, states[1]["w"])
        registry.pull(0, into={"w": one, "v": Slice(other[:0], of=(6, 8), at=(0, 0))}, partial=True)
        assert np.array_equal(one, states[0]["w"])
        registry.pull(1, into={"v": other, "w": one})
        assert np.array_equal(other, states[1]["v"])
        with pytest.raises(BaseMismatch, match="something else has changed them"):
            registry.pull(2, into={"w": one}, partial=True)
        with pytest.raises(LayoutMismatch, match="'v' of the version is not in the model"):
            registry.pull(1, into={"w": rows(one, 0)})


def test_slices_that_were_allowed_to_lack_names_are_not_when_that_is_not_said(store: Store) -> None:
    rank = {"w": rows(np.zeros((2, 8), np.uint16), 3)}
    with quick(store) as registry:
        registry.pull(0, into=rank, partial=True)
        with pytest.raises(LayoutMismatch, match="pass partial=True"):
            registry.pull(1, into=rank)
