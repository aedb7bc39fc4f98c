"""The trained part of a model is its topmost layers, and all else is frozen."""

from __future__ import annotations

import pytest

from tests.support.installed import needs

needs("torch", "transformers")

import torch  # noqa: E402

from pulse_registry.demo.outer.trained import trained_part  # noqa: E402
from pulse_registry.demo.policy import empty_model  # noqa: E402
from pulse_registry.demo.toy import toy_config  # noqa: E402


@pytest.mark.slow
@pytest.mark.parametrize("layers", [1, 2, 5])
def test_the_topmost_layers_and_the_last_norm_are_trained(layers: int) -> None:
    model = empty_model(toy_config(), torch.float32)  # of two layers
    part = trained_part(model, layers)
    every = dict(model.named_parameters())
    if layers >= 2:
        assert part == every
    else:
        assert set(part) == {name for name in every if ".layers.1." in name or name == "model.norm.weight"}
    assert {name for name, parameter in every.items() if parameter.requires_grad} == set(part)
    assert all(part[name] is every[name] for name in part)
