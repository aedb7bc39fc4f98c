"""A lane: the stream of its own on which a push or a pull works beside the model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch


class Lane:
    """Work on one device, in order; on a CPU, where kernels are interpreted, plain calls.

    Attributes:
        device: where tensors are made.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream: Any = None if device.type != "cuda" else torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

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

    def follow(self, other: Lane) -> None:
        """Go on behind what another lane has queued."""
        if self._stream is not None:
            self._stream.wait_stream(other._stream)

    def wait(self) -> None:
        """Wait for all that was queued."""
        if self._stream is not None:
            self._stream.synchronize()

    @contextmanager
    def callers(self, tensors: Sequence[torch.Tensor]) -> Iterator[None]:
        """Make the caller's stream that of the block, behind this lane; tensors made here live until it is done."""
        if self._stream is None:
            yield
            return
        caller = torch.cuda.current_stream(self.device)
        caller.wait_stream(self._stream)
        for tensor in tensors:
            tensor.record_stream(caller)
        with torch.cuda.device(self.device):
            yield

    def wait_for_all(self) -> None:
        """Wait for everything on the device, whoever queued it."""
        if self._stream is not None:
            torch.cuda.synchronize(self.device)

    def download(self, tensor: torch.Tensor) -> torch.Tensor:
        """Copy a tensor into pinned host memory and wait for it; call it within ``work``."""
        if self._stream is None:
            return tensor.clone()
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        host.copy_(tensor, non_blocking=True)
        self._stream.synchronize()
        return host

    def upload(self, host: torch.Tensor, into: list[torch.Tensor]) -> None:
        """Copy host memory into tensors, end to end, and wait for it; call it within ``work``."""
        if self._stream is not None:
            host = host.pin_memory()
        for tensor, piece in zip(into, torch.split(host, [tensor.numel() for tensor in into]), strict=True):
            tensor.copy_(piece, non_blocking=True)
        if self._stream is not None:
            self._stream.synchronize()
