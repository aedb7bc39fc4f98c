"""How many kernels a push, a pull and an application launch: a few, whatever the number of tensors."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from triton.runtime import interpreter  # type: ignore[import-untyped]

from pulse_registry.store import MemoryStore
from tests.unit.gpu.models import on_device
from tests.unit.kernels.gpu.variants import variants_of

pytestmark = pytest.mark.slow

MOST = 20


@pytest.fixture
def launches(device: str, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count launches by kernel."""
    if device != "cpu":
        pytest.skip("launches are counted where they are interpreted")
    counted: Counter[str] = Counter()
    launch = interpreter.GridExecutor.__call__

    def count(self: Any, *arguments: Any, **named: Any) -> Any:
        counted[self.fn.__name__] += 1
        return launch(self, *arguments, **named)

    monkeypatch.setattr(interpreter.GridExecutor, "__call__", count)
    return counted


def counts(launches: Counter[str], tensors: int) -> list[Counter[str]]:
    """Return the launches of a push, of staging it, and of applying it, for a model of so many tensors."""
    store = MemoryStore(f"launches-{tensors}")
    model = {f"t{n:02}": torch.arange(40 + n, dtype=torch.float32).bfloat16() for n in range(tensors)}
    found = []
    with on_device(store, "cpu", coder="class") as registry:
        registry.push(0, model)
        worker = {name: torch.zeros_like(tensor) for name, tensor in model.items()}
        registry.pull(0, into=worker)
        for tensor in model.values():
            tensor[3] = -9.0
        launches.clear()
        registry.push(1, model)
        found.append(launches.copy())
        launches.clear()
        staged = registry.stage(1, into=worker)
        found.append(launches.copy())
        launches.clear()
        staged.apply()
        found.append(launches.copy())
    return found


def test_a_model_of_many_tensors_takes_the_launches_of_one_of_few_and_all_were_compiled_before(
    launches: Counter[str], device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with variants_of(device, monkeypatch) as variants:
        with on_device(MemoryStore("warm"), device) as registry:
            registry.warm_up({"w": torch.zeros(3, dtype=torch.bfloat16)})
        compiled = variants.copy()
        few, many = counts(launches, 2), counts(launches, 9)
    assert variants - compiled == set()
    assert many == few
    push, stage, apply = (counted.total() for counted in many)
    assert push <= MOST
    assert stage <= MOST
    assert apply == 1
