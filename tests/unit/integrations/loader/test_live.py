"""The live map of a model: what its own loader says, against what it loads; and what can't be written in place."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable
from typing import Any

import pytest
import torch

from pulse_registry import Registry
from pulse_registry.integrations.loader import LiveMap, live_map
from pulse_registry.store import MemoryStore
from tests.support.registries import quick

HIDDEN, INNER, WORDS, EXPERTS = 16, 24, 40, 4
Checkpoint = dict[str, torch.Tensor]


def parameter(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.zeros(shape, dtype=dtype), requires_grad=False)


class Engine(torch.nn.Module):
    """A model as engines build it: fused, tensor parallel, experts stacked and spread, vocabulary padded."""

    def __init__(self, ranks: int, rank: int) -> None:
        super().__init__()
        self.ranks, self.rank = ranks, rank
        self.qkv, self.gate_up = parameter(3 * HIDDEN // ranks, HIDDEN), parameter(2 * INNER // ranks, HIDDEN)
        self.down, self.words = parameter(HIDDEN, INNER // ranks), parameter(64, HIDDEN)
        self.norm, self.turned = parameter(HIDDEN), parameter(HIDDEN, 8)
        self.heads, self.experts = parameter(4, 3, HIDDEN // 4, HIDDEN), parameter(EXPERTS // ranks, INNER, HIDDEN)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        for name, weight in weights:
            self.load(name, weight)

    def load(self, name: str, weight: torch.Tensor) -> None:
        rows = {"q": 0, "k": 1, "v": 2}
        if name in rows:
            size = HIDDEN // self.ranks
            self.qkv.data[rows[name] * size :][:size].copy_(weight.narrow(0, self.rank * size, size))
        elif name in ("gate", "up"):
            size = INNER // self.ranks
            self.gate_up.data.narrow(0, (name == "up") * size, size).copy_(weight.chunk(self.ranks)[self.rank])
        elif name == "down":
            self.down.data.copy_(weight.chunk(self.ranks, 1)[self.rank])
        elif name == "words":
            self.words.data[:WORDS].copy_(weight)
            self.words.data[WORDS:].fill_(0)
        elif name == "norm":
            self.norm.data.copy_(weight.to("cpu"))
        elif name == "turned":
            self.turned.data.copy_(weight.t().contiguous())
        elif name in ("head_q", "head_k", "head_v"):
            self.heads.data[:, rows[name[-1]]] = weight.view(4, HIDDEN // 4, HIDDEN)
        elif name.startswith("expert"):
            number = int(name[6:]) - self.rank * len(self.experts)
            if 0 <= number < len(self.experts):
                self.experts.data[number] = weight


def checkpoint(seed: int) -> Checkpoint:
    """All bit patterns but those of NaNs, which a loader may change."""
    generator = torch.Generator().manual_seed(seed)

    def cells(*shape: int) -> torch.Tensor:
        return torch.randint(-(2**15), 2**15, shape, dtype=torch.int16, generator=generator).view(torch.bfloat16)

    square = (HIDDEN, HIDDEN)
    return {
        **{name: cells(*square) for name in ("q", "k", "v", "head_q", "head_k", "head_v")},
        **{f"expert{number}": cells(INNER, HIDDEN) for number in range(EXPERTS)},
        "gate": cells(INNER, HIDDEN),
        "up": cells(INNER, HIDDEN),
        "down": cells(HIDDEN, INNER),
        "words": cells(WORDS, HIDDEN),
        "norm": cells(HIDDEN),
        "turned": cells(8, HIDDEN),
        "inv_freq": cells(3),
    }


def raw(model: torch.nn.Module) -> dict[str, Any]:
    return {name: held.view(torch.int16).tolist() for name, held in model.named_parameters()}


@pytest.fixture
def published() -> tuple[Registry, list[Checkpoint]]:
    registry = quick(MemoryStore("live-map-" + uuid.uuid4().hex), coder="gap", nonfinite="allow")
    versions = [checkpoint(seed) for seed in range(3)]
    versions[1] = {
        name: torch.where(torch.rand(t.shape) < 0.1, t, versions[0][name]) for name, t in versions[1].items()
    }
    for step, version in enumerate(versions):
        registry.push(step, version)
    return registry, versions


@pytest.mark.parametrize(("ranks", "rank"), [(1, 0), (2, 0), (2, 1)])
def test_a_model_pulled_into_through_its_map_is_what_its_loader_makes_of_the_version(
    published: tuple[Registry, list[Checkpoint]], ranks: int, rank: int
) -> None:
    registry, versions = published
    live = Engine(ranks, rank)
    at = [held.data_ptr() for held in live.parameters()]
    found = live_map(live, registry.layout("latest"))
    assert not found.refused
    assert "inv_freq" in found.unused
    assert ("expert3" in found.unused) == (ranks == 2 and rank == 0)
    for number in (0, 1, 2, 0):
        registry.pull(number, into=found.slices, partial=True)
        loaded = Engine(ranks, rank)
        loaded.load_weights(versions[number].items())
        assert raw(live) == raw(loaded)
        registry.verify(number, model=found.slices, partial=True)
    assert [held.data_ptr() for held in live.parameters()] == at


class Other(torch.nn.Module):
    """A model that does with its one tensor what a test says."""

    def __init__(self, load: Any, dtype: torch.dtype = torch.bfloat16) -> None:
        super().__init__()
        self.held = parameter(8, 4, dtype=dtype)
        self.held.data.fill_(3)
        self.load_weights = lambda weights: [load(self.held, weight) for _, weight in weights]


def mapped(model: torch.nn.Module, names: Iterable[str] = ("w",)) -> LiveMap:
    registry = quick(MemoryStore("live-map-" + uuid.uuid4().hex))
    registry.push(0, {name: torch.ones(8, 4, dtype=torch.bfloat16) for name in names})
    return live_map(model, registry.layout("latest"))


def through_buffer(held: torch.Tensor, weight: torch.Tensor) -> None:
    buffer = torch.zeros(8, 4, dtype=torch.bfloat16)
    buffer.copy_(weight)
    held.data.copy_(buffer)


def replaced(held: torch.Tensor, weight: torch.Tensor) -> None:
    held.data = torch.empty(8, 4, dtype=torch.bfloat16)
    held.data.copy_(weight)


@pytest.mark.parametrize(
    ("load", "why"),
    [
        (lambda held, weight: held.data.copy_(weight + 1), r"computes with it \(aten.add.Tensor\)"),
        (lambda held, weight: held.data.copy_(weight.mul_(2)), r"computes with it \(aten.mul_.Tensor\)"),
        (lambda held, weight: held.data.add_(weight), r"aten.add_.Tensor writes what it makes of it to held"),
        (lambda held, weight: held.data.copy_(torch.stack([weight, weight])[1]), "aten.stack"),
        (lambda held, weight: held.data.copy_(weight[:1]), "to several places"),
        (lambda held, weight: held.data.fill_(weight[0, 0].item()), "the loader raises RuntimeError: .*item"),
        (lambda held, weight: held.data.copy_(weight.view(4, 4)), "the loader raises RuntimeError"),
        (through_buffer, "computes with it .a copy in between."),
        (replaced, "whose address would change"),
    ],
)
def test_what_a_loader_does_not_copy_as_it_is_is_refused_and_nothing_is_written(load: Any, why: str) -> None:
    model = Other(load)
    at = model.held.data_ptr()
    found = mapped(model)
    assert not found.slices
    assert list(found.refused) == ["w"]
    assert re.search(why, found.refused["w"])
    assert model.held.data_ptr() == at
    assert bool((model.held == 3).all())


def test_a_cast_is_refused() -> None:
    found = mapped(Other(lambda held, weight: held.data.copy_(weight), torch.float32))
    assert found.refused == {"w": "the loader casts it from torch.bfloat16 to torch.float32, into held"}


def test_of_two_tensors_in_one_place_the_last_one_is_live() -> None:
    found = mapped(Other(lambda held, weight: held.data.copy_(weight)), ("first", "second"))
    assert list(found.slices) == ["second"]
    assert found.unused == ["first"]


def test_a_loader_that_knows_none_of_the_names_raises_its_own_error() -> None:
    def load(held: torch.Tensor, weight: torch.Tensor) -> None:
        raise KeyError("no such name")

    with pytest.raises(KeyError, match="no such name"):
        mapped(Other(load), [f"w{number}" for number in range(65)])
