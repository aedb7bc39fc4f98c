"""Trainers in threads, each with a registry of its own, train a torch model in rounds through one root."""

from __future__ import annotations

import threading
import uuid
from pathlib import Path
from typing import Any

import pytest

import pulse_registry
from pulse_registry.errors import InvalidArgument, InvalidModel
from pulse_registry.outer.result import RoundResult
from tests.support.installed import needs

needs("torch")
import torch  # noqa: E402

ROUNDS, INNER = 3, 2


def model(seed: int = 1) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.Tanh(), torch.nn.Linear(30, 5))


@pytest.fixture
def root() -> str:
    return f"memory://{uuid.uuid4().hex}"


def train(
    root: str,
    member: str,
    results: dict[str, tuple[torch.nn.Module, list[RoundResult]]],
    seed: int,
    options: dict[str, Any],
) -> None:
    held = model(seed)
    with pulse_registry.open(root, run="run") as registry:
        registry_outer = registry.outer(held, member=member, inner_steps=INNER, quorum=3, **options)
        with registry_outer as outer:
            optimizer, found = torch.optim.AdamW(held.parameters(), lr=1e-4), []
            made = torch.Generator().manual_seed(seed)
            while len(found) < ROUNDS:
                inputs = torch.randn(16, 20, generator=made)
                loss = (held(inputs) - inputs[:, :5]).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                if result := outer.step():
                    found.append(result)
            results[member] = held, found


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"values": "float32", "gain": 1.0, "weighting": "steps"}, {"gain": None}])
def test_three_trainers_end_with_the_same_bits_and_workers_pull_each_round(root: str, options: dict[str, Any]) -> None:
    with pulse_registry.open(root, run="run") as registry:
        registry.push(0, model())
    results: dict[str, tuple[torch.nn.Module, list[RoundResult]]] = {}
    threads = [threading.Thread(target=train, args=(root, f"m{k}", results, k + 1, options)) for k in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert sorted(results) == ["m0", "m1", "m2"]
    first = results["m0"][0].state_dict()
    for held, found in results.values():
        assert [result.round for result in found] == [1, 2, 3]
        assert [result.version for result in found] == [1, 2, 3]
        assert all(set(result.members) == {"m0", "m1", "m2"} and not result.late for result in found)
        assert all(result.counts and 0 < result.density < 1 and result.nbytes > 0 for result in found)
        for name, tensor in held.state_dict().items():
            assert torch.equal(tensor.view(torch.int32), first[name].view(torch.int32)), name
    with pulse_registry.open(root, run="run", create=False) as worker:
        assert [version.step for version in worker.versions()] == [0, 1, 2, 3]
        pulled = worker.load("latest", framework="torch")
        for name, tensor in first.items():
            assert torch.equal(pulled[name].view(torch.int16), tensor.bfloat16().view(torch.int16)), name


def test_one_trainer_alone_starts_the_run(root: str) -> None:
    results: dict[str, tuple[torch.nn.Module, list[RoundResult]]] = {}
    held = model()
    with pulse_registry.open(root, run="run") as registry, registry.outer(held, member="a", inner_steps=1) as outer:
        optimizer = torch.optim.SGD(held.parameters(), lr=1e-3)
        outer.attach(optimizer)
        for _ in range(2):
            held(torch.ones(4, 20)).square().sum().backward()
            optimizer.step()
        assert outer.round == 2
        assert [version.version for version in registry.versions()][:1] == [0]
    assert not results


def test_models_and_options_that_do_not_fit_are_refused_before_anybody_hears_of_them(tmp_path: Path) -> None:
    with pulse_registry.open(tmp_path, run="run") as registry:
        registry.push(0, model())
        with pytest.raises(InvalidModel, match="float32 masters"), registry.outer(model().bfloat16(), member="a"):
            pass
        with pytest.raises(InvalidModel, match="not those"), registry.outer(torch.nn.Linear(3, 4), member="a"):
            pass
        with pytest.raises(InvalidArgument, match="momentum"):
            registry.outer(model(), member="a", momentum=1.0)
        with (
            pytest.raises(InvalidArgument, match="options of outer rounds"),
            registry.outer(model(), member="a", gain=-1),
        ):
            pass
    assert not (tmp_path / "run" / "outer").exists()
