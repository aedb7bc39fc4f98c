"""Loading: a version as new tensors, by name; staging and pulling want weights to go into."""

from __future__ import annotations

import importlib.util
import uuid
from collections.abc import Iterator

import ml_dtypes
import numpy as np
import pytest
import torch

import pulse_registry
from pulse_registry import InvalidArgument, InvalidModel, NotFound, Registry


@pytest.fixture
def registry() -> Iterator[Registry]:
    with pulse_registry.open(
        f"memory://{uuid.uuid4().hex}", run="run", compute=pulse_registry.ComputeOptions(backend="reference")
    ) as registry:
        weight = torch.arange(6.0).bfloat16().reshape(2, 3)
        model = {"w": weight, "head": weight, "ids": torch.arange(3)}
        registry.push(0, model)
        weight[1, 2] = -0.0
        registry.push(1, model)
        yield registry


def test_load_returns_new_tensors_of_the_framework_that_is_asked_for(registry: Registry) -> None:
    arrays = registry.load(framework="numpy")
    assert arrays["w"].dtype == ml_dtypes.bfloat16
    assert arrays["w"].astype(float).tolist() == [[0, 1, 2], [3, 4, 0]]
    for tensors in (registry.load("latest", framework="torch"), registry.load()):
        assert tensors["w"].dtype == torch.bfloat16
        assert bool(torch.signbit(tensors["w"][1, 2]))
        assert tensors["ids"].tolist() == [0, 1, 2]
        assert tensors["head"] is tensors["w"], "tied tensors stay tied"
    assert registry.load(0)["w"][1, 2] == 5


def test_what_was_loaded_is_remembered_so_that_a_pull_into_it_needs_patches_only(registry: Registry) -> None:
    loaded = registry.load(0)
    with registry.stage(1, into=loaded) as staged:
        assert [leg.kind for leg in staged.route.legs] == ["patch"]


def test_load_refuses_a_framework_that_is_not_there_before_it_fetches_anything(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InvalidArgument, match="framework is 'jax'; it is one of auto, torch, numpy"):
        registry.load(framework="jax")  # type: ignore[call-overload]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InvalidArgument, match="not installed: pip install"):
        registry.load(framework="torch")
    assert isinstance(registry.load()["ids"], np.ndarray)
    with pytest.raises(NotFound, match="no version 7"):
        registry.load(7)


def test_stage_and_pull_want_weights_to_go_into(registry: Registry) -> None:
    for call in (registry.stage, registry.pull):
        with pytest.raises(TypeError, match="'into'"):
            call("latest")  # type: ignore[call-arg]
        with pytest.raises(InvalidModel, match="NoneType"):
            call("latest", into=None)
