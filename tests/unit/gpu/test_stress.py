"""Versions are staged in one thread and applied on a side stream while memory changes hands: on a GPU alone."""

from __future__ import annotations

import threading

import pytest
import torch

from pulse_registry.store import MemoryStore
from tests.unit.gpu.models import blank, holds, on_device

VERSIONS = 30
TENSORS = 32
CELLS = 1 << 20
PATIENCE = 120
LATE = 50_000_000
"""Ticks of the GPU, some 30 ms, that an application is kept waiting on its stream."""


def test_prefetched_versions_are_applied_late_on_a_side_stream_while_the_allocator_gives_memory_away(
    device: str,
) -> None:
    if device == "cpu":
        pytest.skip("there are streams on a GPU alone; test_order.py looks at their order")
    store, over = MemoryStore("stress"), threading.Event()
    random = torch.Generator(device).manual_seed(0)
    model = {f"t{n:02}": torch.randn(CELLS, generator=random, device=device).bfloat16() for n in range(TENSORS)}

    def churn() -> None:
        """Take memory, and leave addresses in it that nobody may write to."""
        sizes = [1 << (6 + n % 16) for n in range(64)]
        while not over.is_set():
            for size in sizes:
                torch.full((size,), 8, dtype=torch.int64, device=device)

    def step() -> None:
        for tensor in model.values():
            tensor[torch.randint(CELLS, (CELLS // 200,), generator=random, device=device)] *= -1.25

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        with on_device(store, device) as trainer, on_device(store, device) as registry:
            trainer.push(0, model)
            worker, side = blank(model, device), torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            registry.pull(0, into=worker)
            with registry.prefetch(into=worker, poll_seconds=0.01) as prefetch:
                for version in range(1, VERSIONS):
                    step()
                    trainer.push(version, model)
                    staged = prefetch.take(PATIENCE)
                    assert staged is not None, prefetch.error
                    with torch.cuda.stream(side):
                        torch.cuda._sleep(LATE)
                        staged.apply()
                    staged.discard()
            side.synchronize()
            assert holds(worker, model)
            assert registry.verify(VERSIONS - 1, model=worker).version == VERSIONS - 1
    finally:
        over.set()
        thread.join()
