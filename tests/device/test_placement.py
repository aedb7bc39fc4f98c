"""Where a model is worked on: by name, and by where its tensors are."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from pulse_registry.errors import InvalidArgument
from pulse_registry.model import View, read_model
from pulse_registry.placement import placement
from pulse_registry.registry import Registry
from pulse_registry.store import MemoryStore


def views(*devices: str | None) -> dict[str, Any]:
    """Return as much of views of tensors on devices as a placement looks at; None is a NumPy array."""
    tensors = [None if name is None else SimpleNamespace(device=torch.device(name)) for name in devices]
    return {str(number): SimpleNamespace(tensor=tensor) for number, tensor in enumerate(tensors)}


def test_a_model_on_one_gpu_is_worked_on_there() -> None:
    for name in ("auto", "gpu"):
        assert placement(name)(views("cuda:1", "cuda:1")) == torch.device("cuda:1")  # type: ignore[arg-type]


def test_a_model_on_a_gpu_is_worked_on_in_host_memory_where_that_is_asked_for() -> None:
    assert placement("cpu")(views("cuda:0")) is None


@pytest.mark.parametrize("devices", [("cpu",), (None,), ("cuda:0", "cuda:1"), ("cuda:0", "cpu"), ("cuda:0", None)])
def test_any_other_model_is_worked_on_in_host_memory_and_refused_where_a_gpu_was_asked_for(devices: Any) -> None:
    assert placement("auto")(views(*devices)) is None
    with pytest.raises(InvalidArgument, match="device='gpu'"):
        placement("gpu")(views(*devices))


def test_without_triton_a_gpu_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert placement("auto")(views("cuda:0")) is None
    with pytest.raises(InvalidArgument, match=r"pulse-registry\[gpu\]"):
        placement("gpu")(views("cuda:0"))


def test_a_device_that_is_not_known_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="auto, cpu, gpu"):
        Registry(MemoryStore("placement"), "run", device="tpu")  # type: ignore[arg-type]


def test_a_model_in_host_memory_is_refused_by_a_registry_that_is_to_work_on_a_gpu() -> None:
    with Registry(MemoryStore("gpu"), "run", device="gpu") as registry:
        with pytest.raises(InvalidArgument, match="host memory"):
            registry.push(0, {"w": np.zeros(3, np.uint16)})
        assert registry.versions() == []


def test_the_cells_of_a_tensor_on_a_device_are_not_copied_before_they_are_asked_for() -> None:
    view = read_model({"w": torch.arange(3, dtype=torch.int16)})["w"]
    later = View("w", "I16", (3,), True, view.owner, ("where",), view.tensor, lambda: pytest.fail("it was copied"))
    assert (later.size, later.identity) == (3, ("where",))
