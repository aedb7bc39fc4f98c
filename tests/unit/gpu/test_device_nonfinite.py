"""Weights that are no numbers, on the device: refused as in host memory, and the shadow stays right."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from pulse_kernels import CELL_TYPES
from pulse_kernels import nonfinite as on_host
from pulse_kernels.gpu.tiling import CELL_DTYPES
from pulse_registry import InvalidModel, PushOptions, Registry
from pulse_registry.gpu.nonfinite import first_nonfinite
from pulse_registry.options import ComputeOptions, Options, PullOptions
from pulse_registry.store import MemoryStore
from tests.support.groups import small_groups
from tests.support.registries import RUN
from tests.unit.gpu.models import Tensors, blank, holds, made, on_device
from tests.unit.gpu.models import on_host as in_host_memory


@pytest.fixture(autouse=True)
def groups() -> Iterator[None]:
    with small_groups():
        yield


def refusing(store: MemoryStore, device: str) -> Registry:
    options = PushOptions(keyframe_share=100.0, coder="gap", nonfinite="refuse")
    return Registry(
        store,
        RUN,
        Options(
            push=options,
            pull=PullOptions(nonfinite="refuse"),
            compute=ComputeOptions(backend="reference", device=lambda views: torch.device(device)),
        ),
    )


def put(model: Tensors, name: str, at: int, value: float) -> None:
    with torch.no_grad():
        model[name].view(-1)[at] = value


def test_a_push_is_refused_and_the_next_one_carries_the_rest(device: str) -> None:
    store, model = MemoryStore("device-nonfinite-push"), made(device)
    with refusing(store, device) as trainer:
        trainer.push(0, model)
        put(model, "a.weight", 3, 5.0)
        put(model, "b.bias", 10, float("inf"))
        with pytest.raises(InvalidModel, match=r"tensor 'b\.bias' has NaN or an infinity at flat index 10"):
            trainer.push(1, model)
        put(model, "b.bias", 10, 2.0)
        assert trainer.push(2, model).changed == 2
        worker = blank(model, "cpu")
        with in_host_memory(store) as other:
            other.pull(into=worker)
        assert holds(worker, model)


def test_a_pull_is_refused_and_changes_nothing(device: str) -> None:
    store, model = MemoryStore("device-nonfinite-pull"), made(device)
    with on_device(store, device) as trainer:
        trainer.push(0, model)
        before = {name: tensor.clone() for name, tensor in model.items()}
        put(model, "a.weight", 71, float("nan"))
        trainer.push(1, model)
    with refusing(store, device) as worker:
        mine = blank(model, device)
        worker.pull(0, into=mine)
        with pytest.raises(InvalidModel, match=r"version 1 is not finite: tensor 'a\.weight' .* flat index 71"):
            worker.pull(1, into=mine)
        assert holds(mine, before)


@pytest.mark.parametrize("width", [1, 2, 4, 8])
def test_among_changes_of_all_dtypes_of_a_width_the_first_is_the_one_that_host_memory_finds(
    device: str, width: int
) -> None:
    types = [t for t in CELL_TYPES.values() if t.width == width for _ in range(2)]  # two groups of each
    rng = np.random.default_rng(width)
    for share in (0.0, 0.02, 1.0):
        cells = [rng.integers(0, 256, (30, width), np.uint8).view(f"<u{width}").ravel() >> 2 for _ in types]
        for group in cells:  # the shift took the top bits, so that all are finite; some get them back
            group[rng.random(30) < share] |= group.dtype.type((1 << 8 * width) - 1)
        starts = [100 * number for number in range(len(types))]
        index = [np.sort(rng.choice(100, 30, replace=False)) for _ in types]
        places = [on_host.first_nonfinite(*pair) for pair in zip(cells, types, strict=True)]
        expected = next((s + i[p] for s, i, p in zip(starts, index, places, strict=True) if p is not None), None)
        new = np.concatenate(cells)
        changes: Any = SimpleNamespace(
            tiles=SimpleNamespace(types=tuple(types), starts=torch.tensor(starts)),
            host_offsets=np.arange(len(types) + 1) * 30,
            new=torch.from_numpy(new.view(f"i{width}" if width > 1 else "u1")).to(CELL_DTYPES[width]).to(device),
            index=torch.from_numpy(np.concatenate(index)).int().to(device),
        )
        assert first_nonfinite(changes) == expected
        assert (expected is None) == (share == 0.0)
