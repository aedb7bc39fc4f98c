"""The order of work on one memory by several streams: whoever comes to it waits for the one that wrote it last.

A worker's weights are written on whatever stream ``apply`` is called on, and read on other streams, from other threads,
which know nothing of that stream. So what was written last is known by the memory.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch

_LOCK = threading.Lock()
_written: WeakKeyDictionary[torch.UntypedStorage, Any] = WeakKeyDictionary()
"""By memory, what was queued when it had been written: an event."""


def has_streams(device: torch.device) -> bool:
    """Tell whether work on a device is queued; on a CPU, where kernels are interpreted, it is done at once."""
    return device.type == "cuda"


class Memory:
    """The memory of some tensors on one device; others may share some of it."""

    def __init__(self, device: torch.device, tensors: Iterable[torch.Tensor]) -> None:
        """Take the tensors; their memory lives for as long as this does."""
        self._device = device
        storages = (tensor.untyped_storage() for tensor in tensors) if has_streams(device) else ()
        self._storages = list(storages)

    @contextmanager
    def read(self) -> Iterator[None]:
        """Read it in the block, on the current stream, behind what was written."""
        self._wait()
        yield

    @contextmanager
    def written(self) -> Iterator[None]:
        """Write it in the block, on the current stream, behind what was written; who comes later waits for that."""
        self._wait()
        try:
            yield
        finally:
            if self._storages:
                event = torch.cuda.current_stream(self._device).record_event()
                with _LOCK:
                    _written.update(dict.fromkeys(self._storages, event))

    def _wait(self) -> None:
        if not self._storages:
            return
        with _LOCK:
            events = {id(event): event for storage in self._storages if (event := _written.get(storage)) is not None}
        stream = torch.cuda.current_stream(self._device)
        for event in events.values():
            stream.wait_event(event)
