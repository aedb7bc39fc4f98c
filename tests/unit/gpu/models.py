"""Small models on the device under test, and registries that work on them there or in host memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from pulse_registry.registry import Registry
from pulse_registry.store import MemoryStore, Store
from tests.support.registries import RUN, quick

Tensors = dict[str, torch.Tensor]


def made(device: str, *, counts: bool = False) -> Tensors:
    """Return a model of BF16 and of float32 that is rounded to it, with ``counts`` also of bytes; one tensor is empty.

    In groups of 64 bytes it has three of BF16; a second cell width takes the interpreter as long again.
    """
    random = torch.Generator().manual_seed(0)
    model = {
        "a.weight": torch.randn(9, 8, generator=random).bfloat16(),
        "b.bias": torch.randn(11, generator=random),
        **({"c.count": torch.arange(5, dtype=torch.int8)} if counts else {}),
        "d.none": torch.empty(0, 3),
    }
    return {name: tensor.to(device) for name, tensor in model.items()}


def changed(model: Tensors, *places: int) -> None:
    """Change the cells of the first tensor at these places, and the first one of each other tensor."""
    with torch.no_grad():
        for place in places:
            model["a.weight"].view(-1)[place] *= -1.5
        model["b.bias"][0] += 1
        if "c.count" in model:
            model["c.count"][0] += 1


def blank(model: Mapping[str, torch.Tensor], device: str) -> Tensors:
    """Return a worker's tensors: the model's as they are published, holding nothing."""
    published = {name: torch.bfloat16 if t.dtype == torch.float32 else t.dtype for name, t in model.items()}
    return {name: torch.zeros(t.shape, dtype=published[name], device=device) for name, t in model.items()}


def holds(worker: Mapping[str, torch.Tensor], model: Mapping[str, torch.Tensor]) -> bool:
    """Tell whether a worker has the model's cells, bit for bit."""
    return all(_bytes(worker[name]).equal(_bytes(t.to(worker[name].dtype))) for name, t in model.items())


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().cpu().contiguous().view(-1).view(torch.uint8)


def on_device(store: Store, device: str, **options: Any) -> Registry:
    """Return a registry that works where the tensors are."""
    return _registry(store, lambda views: torch.device(device), options)


def on_host(store: Store, **options: Any) -> Registry:
    """Return a registry that works in host memory."""
    return _registry(store, "cpu", options)


def objects(store: MemoryStore, kind: str) -> list[bytes]:
    """Return the stored objects of a kind, oldest first."""
    return [store.get(key) for key in sorted(store.list(f"{RUN}/objects/{kind}/"))]


def _registry(store: Store, device: Any, options: dict[str, Any]) -> Registry:
    return quick(store, device=device, **({"dtype": "bf16", "keyframe_share": 100.0, "coder": "gap"} | options))
