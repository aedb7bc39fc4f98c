"""A device stream of its own, on which a push or a pull works beside the model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from pulse_registry.gpu.stream_order import has_streams

QUEUED_BYTES = 256 << 20
"""Of host memory on its way to the device: what is pinned for it, at most."""


class DeviceStream:
    """Work on one device, in order; on a CPU, where kernels are interpreted, plain calls.

    What is allocated within ``work`` is this stream's, and given back to it: nothing else may use it without
    ``callers``, or another stream's ``keep``.

    Attributes:
        device: where tensors are made.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream: Any = torch.cuda.Stream(device) if has_streams(device) else None  # type: ignore[no-untyped-call]
        self._queued = 0

    @contextmanager
    def work(self, *, after_caller: bool = False) -> Iterator[None]:
        """Make this the stream of the block; with ``after_caller``, behind what the caller's stream has queued."""
        if self._stream is None:
            yield
            return
        if after_caller:
            self._stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._stream):
            yield

    def follow(self, other: DeviceStream) -> None:
        """Go on behind what another stream has queued."""
        if self._stream is not None:
            self._stream.wait_stream(other._stream)

    def wait(self) -> None:
        """Wait for all that was queued."""
        self._queued = 0
        if self._stream is not None:
            self._stream.synchronize()

    def keep(self, tensors: Iterable[torch.Tensor]) -> None:
        """Let tensors that another stream allocated live, if they are let go of, until this one is done with them."""
        if self._stream is not None:
            for tensor in tensors:
                tensor.record_stream(self._stream)

    @contextmanager
    def callers(self) -> Iterator[None]:
        """Make the caller's stream that of the block, behind this stream, which then goes on behind the block.

        So the block may use what the stream has allocated, or keeps, whoever lets go of it and when.
        """
        if self._stream is None:
            yield
            return
        caller = torch.cuda.current_stream(self.device)
        caller.wait_stream(self._stream)
        try:
            with torch.cuda.device(self.device):
                yield
        finally:
            self._stream.wait_stream(caller)

    def download(self, tensor: torch.Tensor) -> torch.Tensor:
        """Copy a tensor into pinned host memory and wait for it; call it within ``work``."""
        if self._stream is None:
            return tensor.clone()
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=self.device.type == "cuda")
        host.copy_(tensor, non_blocking=True)
        self._stream.synchronize()
        return host

    def upload(self, host: torch.Tensor, into: list[torch.Tensor]) -> None:
        """Copy host memory, which may then change, into tensors, end to end; call it within ``work``.

        Waits only where much is queued: ``wait`` waits for the last.
        """
        if self.device.type == "cuda":
            host = host.pin_memory()  # the allocator does not give it away before it was read
        for tensor, piece in zip(into, torch.split(host, [tensor.numel() for tensor in into]), strict=True):
            tensor.copy_(piece, non_blocking=True)
        self._queued += host.nbytes  # several threads may lose a few: it is a bound, not a count
        if self._queued > QUEUED_BYTES:
            self.wait()
