"""Pinned host memory is as large as was asked for, and is given back once nothing is copied any more."""

from __future__ import annotations

import gc
from types import SimpleNamespace

import pytest
import torch

from pulse_registry.gpu.pinned import pinned_bytes


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, ...]]:
    """Note what CUDA's runtime is asked for."""
    gc.collect()  # what tests before pinned is given back now, and not noted here
    found: list[tuple[object, ...]] = []

    def register(address: int, nbytes: int, flags: int) -> int:
        found.append(("register", address, nbytes))
        return 0 if nbytes < 1 << 20 else 2

    def unregister(address: int) -> None:
        found.append(("unregister", address))

    def check(code: int) -> None:
        if code:
            raise RuntimeError("out of memory")

    runtime = SimpleNamespace(cudaHostRegister=register, cudaHostUnregister=unregister)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    monkeypatch.setattr(torch.cuda, "check_error", check)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: found.append(("synchronize", device)))
    return found


def test_as_many_bytes_are_pinned_as_are_wanted_for_as_long_as_they_are_seen(calls: list[tuple[object, ...]]) -> None:
    device = torch.device("cuda")
    memory = pinned_bytes(5000, device)
    address = memory.data_ptr()
    memory.fill_(7)
    part = memory.numpy()[100:]
    assert calls == [("register", address, 5000)]
    del memory
    gc.collect()
    assert part.tolist() == [7] * 4900
    assert len(calls) == 1
    del part
    gc.collect()
    assert calls[1:] == [("synchronize", device), ("unregister", address)]


def test_memory_that_can_not_be_pinned_is_an_error(calls: list[tuple[object, ...]]) -> None:
    with pytest.raises(RuntimeError, match="out of memory"):
        pinned_bytes(1 << 20, torch.device("cuda"))
    gc.collect()
    assert [name for name, *_ in calls] == ["register"]


def test_on_a_cpu_and_where_nothing_is_wanted_nothing_is_pinned(calls: list[tuple[object, ...]]) -> None:
    assert len(pinned_bytes(5000, torch.device("cpu"))) == 5000
    assert len(pinned_bytes(0, torch.device("cuda"))) == 0
    assert calls == []
