"""The weight loader for SGLang: what its calls do to a model that loads as engines' models do."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

import pulse_registry
from pulse_registry import BaseMismatch, InvalidArgument, LayoutMismatch, NotFound
from pulse_registry.integrations.sglang import Control, load, serves


class Fused(torch.nn.Module):
    """One parameter of two tensors."""

    def __init__(self, dtype: torch.dtype = torch.bfloat16) -> None:
        super().__init__()
        self.both = torch.nn.Parameter(torch.zeros(8, 4, dtype=dtype), requires_grad=False)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        for name, weight in weights:
            self.both.data.narrow(0, 4 * (name == "up"), 4).copy_(weight)


@pytest.fixture
def states(tmp_path: Path) -> list[torch.Tensor]:
    """The live parameter at each of a run's versions, 0 to 2."""
    model, found = {name: torch.randn(4, 4).bfloat16() for name in ("gate", "up")}, []
    with pulse_registry.open(str(tmp_path), run="math") as trainer:
        for step in range(3):
            model["up"][1:3, step] = float("nan") if step == 1 else -0.0
            trainer.push(step, model)
            found.append(torch.cat(list(model.values())).view(torch.int16))
    return found


def engine(states: list[torch.Tensor], version: int = 0) -> Fused:
    model = Fused()
    model.both.data.copy_(states[version].view(torch.bfloat16))
    return model


def call(model: torch.nn.Module, root: Path, **said: Any) -> None:
    control = Control(**{"url": str(root), "run": "math", "version": "latest"} | said)
    load(model, [("pulse", control.tensor())])


def holds(model: Fused, states: list[torch.Tensor], version: int) -> bool:
    return torch.equal(model.both.view(torch.int16), states[version]) and serves(model) == version


def test_each_call_brings_the_live_parameter_to_a_version_in_place(tmp_path: Path, states: list[torch.Tensor]) -> None:
    model = engine(states)
    place = model.both.data_ptr()
    for version in (1, 2, 0):
        call(model, tmp_path, version=version)
        assert holds(model, states, version)
    call(model, tmp_path)
    assert holds(model, states, 2)
    assert model.both.data_ptr() == place


def test_a_version_is_staged_while_the_engine_serves_and_applied_later(
    tmp_path: Path, states: list[torch.Tensor]
) -> None:
    model = engine(states, 1)
    call(model, tmp_path, version=2, loaded=1, phase="stage")
    assert holds(model, states, 1)
    call(model, tmp_path, version=2, phase="apply")
    assert holds(model, states, 2)


def test_two_models_of_a_process_follow_by_themselves(tmp_path: Path, states: list[torch.Tensor]) -> None:
    target, draft = engine(states), engine(states)
    call(target, tmp_path, version=1)
    call(draft, tmp_path, version=2)
    assert holds(target, states, 1)
    assert holds(draft, states, 2)


def test_what_the_engine_was_loaded_from_is_compared_cell_by_cell(tmp_path: Path, states: list[torch.Tensor]) -> None:
    model = engine(states)
    with pytest.raises(BaseMismatch, match="'up'"):
        call(model, tmp_path, version=2, loaded=1)
    assert torch.equal(model.both.view(torch.int16), states[0])
    call(model, tmp_path, version=2)
    assert holds(model, states, 2)


def test_a_version_that_is_not_there_leaves_the_model_as_it_was(tmp_path: Path, states: list[torch.Tensor]) -> None:
    model = engine(states)
    with pytest.raises(NotFound, match="has no version 9"):
        call(model, tmp_path, version=9)
    assert holds(model, states, 0)
    call(model, tmp_path, version=1)
    assert holds(model, states, 1)


def test_a_model_that_casts_is_refused_by_name(tmp_path: Path, states: list[torch.Tensor]) -> None:
    with pytest.raises(LayoutMismatch, match="'gate'"):
        call(Fused(torch.float32), tmp_path)


def test_an_engine_follows_one_run(tmp_path: Path, states: list[torch.Tensor]) -> None:
    model = engine(states)
    call(model, tmp_path, version=1)
    with pytest.raises(InvalidArgument, match="the model follows run 'math'"):
        call(model, tmp_path, run="other")
    assert holds(model, states, 1)


@pytest.mark.parametrize(
    ("tensors", "why"),
    [
        ([], "the tensors are nothing"),
        ([("w", torch.zeros(2))], "the tensors are 'w'"),
        ([("pulse", torch.tensor(list(b"{}"), dtype=torch.uint8))], "url"),
        ([("pulse", torch.tensor(list(b'{"url": "a", "run": "b", "version": 1, "x": 1}')))], "x"),
    ],
)
def test_calls_that_say_nothing_clear_are_refused(tensors: list[tuple[str, torch.Tensor]], why: str) -> None:
    with pytest.raises(InvalidArgument, match=why):
        load(Fused(), tensors)
