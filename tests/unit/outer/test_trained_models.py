"""Models in outer rounds: tied and frozen tensors, buffers, other dtypes and devices; optimizers that are attached."""

from __future__ import annotations

import uuid
from typing import Any

import numpy as np
import pytest

import pulse_registry
from pulse_registry.errors import InvalidArgument, InvalidModel
from pulse_registry.weights import model as weights_model
from tests.support.installed import needs

needs("torch")
import torch  # noqa: E402


class Tied(torch.nn.Module):
    """An embedding whose matrix is the head's, too, and a frozen scale."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(30, 8)
        self.head = torch.nn.Linear(8, 30, bias=False)
        self.head.weight = self.embed.weight
        self.scale = torch.nn.Parameter(torch.linspace(0.5, 1.5, 8), requires_grad=False)
        self.register_buffer("mask", torch.linspace(0.1, 0.9, 8))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.head(self.embed(tokens) * self.scale * self.mask)
        return found


@pytest.fixture
def root() -> str:
    return f"memory://{uuid.uuid4().hex}"


def inner_step(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    tokens = torch.arange(30)
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(tokens), tokens).backward()
    optimizer.step()


def test_tied_frozen_and_constant_tensors_are_trained_as_they_are(root: str) -> None:
    torch.manual_seed(1)
    held = Tied()
    with pulse_registry.open(root, run="run") as registry, registry.outer(held, member="a", inner_steps=2) as outer:
        frozen = held.scale.detach().clone()
        optimizer = torch.optim.AdamW(held.parameters(), lr=1e-3)
        before = held.embed.weight.detach().clone()
        for _ in range(4):
            inner_step(held, optimizer)
            outer.step()
        assert outer.round == 2
        assert held.head.weight.data_ptr() == held.embed.weight.data_ptr()
        assert not torch.equal(held.embed.weight, before)
        assert torch.equal(held.scale, frozen)
        assert torch.equal(held.scale.bfloat16().float(), frozen)  # since the first version, which is BF16
        assert outer.last is not None
        assert outer.last.cells == 30 * 8 + 8 + 8  # the tied matrix once
    with pulse_registry.open(root, run="run", create=False) as worker:
        pulled = worker.load("latest", framework="torch")
        assert torch.equal(pulled["head.weight"], held.head.weight.bfloat16())
        assert torch.equal(pulled["embed.weight"], held.embed.weight.bfloat16())


def test_a_mapping_of_the_trained_tensors_alone_is_trained(root: str) -> None:
    """A frozen BF16 model with float32 adapters: the run is of the adapters."""
    torch.manual_seed(1)
    base, adapter = torch.nn.Linear(8, 8, bias=False).bfloat16(), torch.nn.Linear(8, 8, bias=False)
    with pulse_registry.open(root, run="run") as registry:
        model = {"base": base.weight, "adapter": adapter.weight}
        with pytest.raises(InvalidModel, match=r"'base' is BF16: .*mapping of names to the tensors that are trained"):
            registry.outer(model, member="a").join()
    with (
        pulse_registry.open(root, run="adapters") as registry,
        registry.outer({"adapter": adapter.weight}, member="a", inner_steps=1) as outer,
    ):
        with torch.no_grad():
            adapter.weight -= 0.01
        result = outer.step()
        assert result is not None
        assert [version.version for version in registry.versions()] == [0, 1]


@pytest.mark.parametrize("kind", ["buffer", "double"])
def test_what_is_not_float32_is_named_with_what_to_do(root: str, kind: str) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3))
    if kind == "double":
        model = torch.nn.Sequential(torch.nn.Linear(3, 3).double())
    with pulse_registry.open(root, run="run") as registry:
        match = "num_batches_tracked' is I64" if kind == "buffer" else "F64"
        with pytest.raises(InvalidModel, match=match):
            registry.outer(model, member="a").join()


def test_a_model_that_gives_copies_is_refused(root: str) -> None:
    class Copies:
        def state_dict(self) -> dict[str, torch.Tensor]:
            return {"w": torch.ones(4, 4)}

    with (
        pulse_registry.open(root, run="run") as registry,
        pytest.raises(InvalidModel, match="'w' is a copy of what the model computes with"),
    ):
        registry.outer(Copies(), member="a").join()


def test_tensors_of_another_device_are_read_to_the_host_and_written_back(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The device is this machine's memory, of which all that is read is a copy."""
    torch.manual_seed(1)
    reference, held = Tied(), Tied()
    held.load_state_dict(reference.state_dict())
    fetched: list[int] = []

    def copied(tensor: Any) -> np.ndarray[Any, Any]:
        fetched.append(tensor.numel())
        found: np.ndarray[Any, Any] = tensor.cpu().clone().view(torch.int32).numpy().view(np.uint32)
        return found

    models = {"here": reference, "there": held}
    for name, model in models.items():
        if name == "there":
            monkeypatch.setattr(weights_model, "fetched", copied)
            monkeypatch.setattr(weights_model.View, "on_host", property(lambda _: False))
        with (
            pulse_registry.open(f"{root}-{name}", run="run", push=pulse_registry.PushOptions()) as registry,
            registry.outer(dict(model.state_dict()), member="a", inner_steps=2) as outer,
        ):
            optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
            for _ in range(4):
                inner_step(model, optimizer)
                outer.step()
            assert outer.round == 2
    assert fetched
    for name, tensor in reference.state_dict().items():
        assert torch.equal(held.state_dict()[name].view(torch.int32), tensor.view(torch.int32)), name


def test_of_several_optimizers_a_step_counts_once_and_the_hooks_end_with_the_rounds(root: str) -> None:
    torch.manual_seed(1)
    held = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    optimizers = [torch.optim.SGD(part.parameters(), lr=1e-2) for part in held]

    def train(order: list[torch.optim.Optimizer]) -> None:
        held(torch.ones(2, 4)).square().sum().backward()
        for one in order:
            one.step()

    with pulse_registry.open(root, run="run") as registry, registry.outer(held, member="a", inner_steps=2) as outer:
        with pytest.raises(InvalidArgument, match="in one call of attach"):
            outer.attach()
        outer.attach(*optimizers)
        with pytest.raises(InvalidArgument, match="in one call of attach"):
            outer.attach(optimizers[0])
        for k in range(4):
            train(optimizers if k % 2 else optimizers[::-1])
            assert outer.round == (k + 1) // 2
        assert outer.last is not None
        assert (outer.last.round, outer.last.counts) == (2, True)
    train(optimizers)  # the rounds have ended, and nothing is called
    with pulse_registry.open(root, run="run") as registry:
        session = registry.outer(held, member="a", inner_steps=2)
        session.join()
        session.attach(*optimizers)
        session.__exit__(RuntimeError, RuntimeError("mine"), None)
        for _ in range(2):
            train(optimizers)
        assert session.round == 2
